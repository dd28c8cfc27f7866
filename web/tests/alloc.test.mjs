// The allocator's part of the page in a real browser.
import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { describe, test } from "node:test";
import { HOSTILE, alloc } from "./alloc.fixture.mjs";
import { clean, file, open } from "./browser.mjs";
import { encode, page as build, report } from "./fixture.mjs";

const ROW = 19;

/** A page of a trace of operations; `change` gets what the page says of the allocator, and the whole. */
async function fixture(t, { change = () => {}, opens = "allocator", pages = true, ...options } = {}) {
  const data = report();
  data.head.alloc = alloc();
  data.head.opens = opens;
  if (!pages) {
    data.lanes = [];
    Object.assign(data.head, { objects: [], groups: [], findings: [], footprint: { ...data.head.footprint, touched_pages: { absent: "not recorded" } } });
  }
  change(data.head.alloc, data);
  const path = file();
  await writeFile(path, await build(encode(data)));
  const page = await open(t, path, options);
  await page.waitForSelector("header");
  await page.waitForTimeout(150);
  return page;
}

const flame = page => page.locator("main.alloc canvas.flame");
const tip = page => page.locator(".tip:visible").innerText();

/** Hovers a box of the flame graph, by its share of the width and its row. */
async function hover(page, share, row) {
  await flame(page).scrollIntoViewIfNeeded();
  const box = await flame(page).boundingBox();
  await page.mouse.move(box.x + share * box.width, box.y + (row + 0.5) * ROW);
}

async function choose(page, name) {
  await page.locator(".flames .choice label", { hasText: name }).click();
}

describe("the allocator's part", () => {
  test("says the verdict first, then what is wrong", async t => {
    const page = await fixture(t);
    const text = await page.locator("main.alloc").innerText();
    assert.match(text, /^It is the allocator\s*The allocator \(glibc\) is a problem/);
    const tiles = await page.locator(".verdict .tile").allInnerTexts();
    assert.match(tiles[0], /Share of CPU time\s+31\.0 %\s+± 2\.0\s%/);
    assert.match(tiles[1], /Memory nobody asked for\s+20\.0 %/);
    assert.match(tiles[3], /Resident, most seen\s+60 MiB\s+1\.50 × what was asked for/);
    const found = page.locator(".diagnoses li");
    assert.equal(await found.count(), 2);
    assert.match(await found.first().innerText(), /Its threads wait for each other's locks lock, costs 40\.0 % of the CPU time\s+4 threads allocate[^]*Take an allocator/);
    assert.match(await found.nth(1).innerText(), /the program's own doing/);
    clean(page);
  });

  test("has tables that a window of 1,300 pixels holds", async t => {
    const page = await fixture(t, { change: ({ judgement }) => {
      const operations = Object.values(judgement.operations);
      for (const row of [...judgement.classes, ...judgement.sites, ...judgement.threads]) Object.assign(row, { time_ns: 12.4e9, time_error: 0.5, time_unknown: null });
      for (const of of operations) Object.assign(of, { time_ns: 12.4e9, time_error: 0.5 });
    } });
    await page.setViewportSize({ width: 1300, height: 900 });
    const cut = await page.locator("main.alloc .scroll").evaluateAll(all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.getAttribute("aria-label")));
    assert.deepEqual(cut, []);
    // Times of operations have their errors, too.
    assert.match(await page.locator("section[aria-label=Operations] tbody tr").first().innerText(), /12\.4 s ± 6\.2 s$/);
    clean(page);
  });

  test("has no figures of a program of which nothing was counted", async t => {
    const page = await fixture(t, { change: alloc => {
      const { schema, trace, verdict, ...figures } = alloc.judgement;
      Object.assign(trace, { uncounted_processes: 1, uncounted: "Allocator operations of 1 process were not counted: alone (it loads no libraries)." });
      Object.assign(verdict, { answer: "unknown", sentence: "Whether the allocator is a problem is not known: operations were not counted.", time_share: null, time_share_error: null, memory_share: null });
      alloc.judgement = { schema, trace, verdict, ...Object.fromEntries(Object.keys(figures).map(name => [name, null])) };
      alloc.flames = [];
    } });
    const text = await page.locator("main.alloc").innerText();
    assert.match(text, /^Allocator operations of 1 process were not counted[^]*Not known[^]*operations were not counted\.\s*$/);
    assert.equal(await page.locator("main.alloc .tile").count(), 0);
    assert.equal(await page.locator("main.alloc table").count(), 0);
    clean(page);
  });

  test("says what is not known, as the run is too short", async t => {
    const page = await fixture(t, { change: ({ judgement }) => {
      judgement.undecided = [judgement.diagnoses[0]];
      judgement.diagnoses = [];
      judgement.verdict.answer = "unknown";
    } });
    const text = await page.locator(".diagnoses").innerText();
    assert.match(text, /None is known\.\s+Perhaps its threads wait for each other's locks \(lock\): that is not known, as the run is too short\. 4 threads/);
    assert.match(await page.locator(".verdict .badge").innerText(), /Not known/);
    clean(page);
  });

  test("is a part beside the map, whichever is first", async t => {
    const page = await fixture(t, { opens: "pages" });
    assert.ok(await page.locator("canvas.map").isVisible());
    assert.ok(!await page.locator("main.alloc").isVisible());
    await page.getByRole("tab", { name: "Allocator" }).click();
    assert.ok(!await page.locator("canvas.map").isVisible());
    await hover(page, 0.1, 1);
    assert.match(await tip(page), /main \(main\.c:7\)/, "it is drawn though it was hidden");
    await page.getByRole("tab", { name: "Allocator" }).focus();
    await page.keyboard.press("ArrowLeft");
    assert.ok(await page.locator("canvas.map").isVisible());
    clean(page);
  });

  test("leaves the map as it is where that is opened later", async t => {
    const [first, later] = [await fixture(t, { opens: "pages" }), await fixture(t)];
    await later.getByRole("tab", { name: "Memory map" }).click();
    await later.waitForTimeout(150);
    const shots = await Promise.all([first, later].map(page => page.locator("canvas.map").screenshot()));
    assert.deepEqual(shots[0], shots[1]);
    clean(later);
  });

  test("stands alone where no pages were recorded, and is not there without operations", async t => {
    const alone = await fixture(t, { pages: false });
    assert.equal(await alone.locator(".views").count(), 0);
    assert.equal(await alone.locator("canvas.map").count(), 0);
    assert.ok(await alone.locator(".verdict").isVisible());
    const without = await fixture(t, { change: (_, data) => { data.head.alloc = null; } });
    assert.equal(await without.locator(".views, .verdict").count(), 0);
    assert.ok(await without.locator("canvas.map").isVisible());
    clean(alone);
  });

  test("reads the time line by mouse and by keys", async t => {
    const page = await fixture(t);
    const chart = page.locator("svg.chart");
    const box = await chart.boundingBox();
    const at = second => box.x + 66 + (second / 12) * (box.width - 66 - 14);
    await page.mouse.move(at(6) + 2, box.y + 60);
    assert.match(await tip(page), /after 6 s\s+asked for\s+24 MiB\s+usable\s+27 MiB\s+resident, allocator\s+30 MiB\s+resident, process\s+40 MiB/);
    await page.mouse.move(at(7) + 2, box.y + 60);
    assert.match(await tip(page), /after 7 s[^]*resident, allocator\s+–/, "what was not looked at is a dash");
    await chart.focus();
    await page.keyboard.press("End");
    assert.match(await tip(page), /after 12 s\s+asked for\s+48 MiB/);
    await page.keyboard.press("ArrowLeft");
    assert.match(await tip(page), /after 11 s/);
    const labels = await chart.locator("text").allTextContents();
    assert.ok(labels.includes("64 MiB") && labels.includes("10 s"), labels.join());
    clean(page);
  });

  test("says how full pages are, what keeps nearly empty ones, and which blocks share cache lines", async t => {
    const page = await fixture(t);
    const pages = page.getByRole("region", { name: "Nearly empty pages", exact: true });
    const text = await pages.innerText();
    assert.match(text, /40 MiB, blocks had 90\.0 % of it/);
    assert.match(text, /9,000 pages to a quarter at most: 34 MiB of 40 MiB was free there/);
    assert.match(text, /list\.c:12, in grow\s+30 MiB ± 2 MiB\s+60\s+3 s\s+–\s+10 MiB\s+20 MiB\s+–/);
    const lines = await page.getByRole("region", { name: "Cache lines with blocks of several threads", exact: true }).innerText();
    assert.match(lines, /42 blocks began .*: 30 by the allocator alone \(active\), 12 in memory that was freed/);
    assert.match(lines, /3 lines where threads use different bytes and write, with 25\.0 % ± 2\.0 % of the time at accesses/);
    const choice = await page.getByRole("region", { name: "Choice of free blocks", exact: true }).innerText();
    assert.match(choice, /60\.0 % ± 3\.0 % of 1,234 sampled small blocks[^]*list\.c:12[^]*700/);
    clean(page);
    const without = await fixture(t, { change: ({ judgement }) => { judgement.choice = { blocks: 0, far: null, sites: [] }; judgement.pages = null; judgement.lines = { blocks: 0, share: 0, active: 0, passive: 0, sites: [], confirmed: null }; } });
    assert.equal(await without.getByRole("region", { name: "Nearly empty pages", exact: true }).count(), 0);
    assert.equal(await without.getByRole("region", { name: "Cache lines with blocks of several threads", exact: true }).count(), 0);
    assert.equal(await without.getByRole("region", { name: "Choice of free blocks", exact: true }).count(), 0);
    clean(without);
  });

  test("draws a flame graph of each measure, with errors", async t => {
    const page = await fixture(t);
    await hover(page, 0.1, 0);
    // 0.5 MiB thrice, as squares add up.
    assert.match(await tip(page), /what lived when most did\s+in all\s+45 MiB, 100 %\s+error\s+± 887 KiB with 95 % confidence\s+exactly\s+47,185,920 bytes ± 908,093 bytes\s+itself\s+0 B, 0 %/);
    await hover(page, 0.1, 3);
    assert.match(await tip(page), /grow \(list\.c:12\)\s+in all\s+30 MiB, 66\.7 %\s+error\s+± 512 KiB/);
    await hover(page, 0.95, 1);
    assert.match(await tip(page), /\(unknown caller\)\s+in all\s+5 MiB, 11\.1 %/);
    await choose(page, "Allocated");
    await hover(page, 0.995, 1);
    assert.match(await tip(page), /\(other call stacks\)\s+in all\s+2 MiB/);
    await choose(page, "Blocks");
    await hover(page, 0.1, 3);
    assert.match(await tip(page), /grow[^]*400 blocks, 33\.3 %\s+error\s+± 40 blocks/);
    await choose(page, "Time");
    assert.match(await page.locator(".flames").innerText(), /One frame deep: of an operation only the function that it returns to is known/);
    await hover(page, 0.1, 1);
    assert.match(await tip(page), /grow \(list\.c:12\)\s+in all\s+1\.5 s, 75\.0 %\s+error\s+± 300 ms with 95 % confidence\s+exactly\s+1,500,000,000 ns ± 300,000,000 ns/);
    await choose(page, "Idle");
    assert.match(await page.locator(".flames").innerText(), /not touched in the last 10 s/);
    await hover(page, 0.1, 3);
    assert.match(await tip(page), /grow[^]*3 MiB, 100 %/);
    assert.equal(await page.locator(".flames .choice label", { hasText: "Never freed" }).count(), 0, "what the trace does not have is not there");
    clean(page);
  });

  test("zooms and is searched", async t => {
    const page = await fixture(t);
    await hover(page, 0.95, 2);
    assert.equal(await page.locator(".tip:visible").count(), 0, "nothing is below an unknown caller");
    await hover(page, 0.8, 2);
    assert.match(await tip(page), /copy/);
    await page.mouse.down();
    await page.mouse.up();
    await hover(page, 0.05, 2);
    assert.match(await tip(page), /copy/, "it has all the width now");
    assert.match(await page.locator(".trail").innerText(), /copy \(text\.c:3\): 10 MiB, 22\.2 %/);
    await page.getByRole("button", { name: "Show all", exact: true }).click();
    await hover(page, 0.05, 2);
    assert.match(await tip(page), /build/);
    const search = page.getByRole("searchbox", { name: "Search in: Flame graphs of the allocator" });
    const before = await flame(page).screenshot();
    await search.fill("LIST.c");
    assert.match(await page.locator(".flames .toolbar").innerText(), /2 boxes: 30 MiB, 66\.7 %/, "a box within another counts once");
    assert.notDeepEqual(await flame(page).screenshot(), before);
    await search.fill("nothing like it");
    assert.match(await page.locator(".flames .toolbar").innerText(), /not found/);
    clean(page);
  });

  test("is reached by keys", async t => {
    const page = await fixture(t);
    await flame(page).focus();
    const press = async key => { await page.keyboard.press(key); return tip(page); };
    assert.match(await press("ArrowDown"), /what lived when most did/);
    assert.match(await press("ArrowDown"), /main \(main\.c:7\)/);
    assert.match(await press("ArrowRight"), /\(unknown caller\)/);
    assert.match(await press("ArrowLeft"), /main/);
    assert.match(await press("ArrowDown"), /build/);
    assert.match(await press("ArrowRight"), /copy/);
    assert.match(await press("Enter"), /copy/);
    assert.match(await page.locator(".trail").innerText(), /copy/);
    assert.match(await page.locator(".flames [aria-live].sr").textContent(), /copy \(text\.c:3\), 10 MiB, 22\.2 %/);
    assert.match(await press("ArrowUp"), /main/);
    assert.match(await press("Escape"), /what lived/);
    assert.match(await page.locator(".trail").innerText(), /45 MiB in all/);
    clean(page);
  });

  test("deep stacks are scrolled, and keys keep the box in sight", async t => {
    const deep = Array.from({ length: 120 }, (_, i) => `frame ${i}`);
    const page = await fixture(t, { change: a => { a.judgement.blocks.sites[0].stack = [...deep].reverse(); } });
    const rows = page.locator("main.alloc .flame-rows");
    const { inside, outside } = await rows.evaluate(e => ({ inside: e.scrollHeight, outside: e.clientHeight }));
    assert.ok(inside > 120 * ROW && outside <= 760, `${inside} in ${outside}`);
    await flame(page).focus();
    for (let i = 0; i < 60; i++) await page.keyboard.press("ArrowDown");
    assert.match(await tip(page), /frame 58/);
    const top = await rows.evaluate(e => e.scrollTop);
    assert.ok(60 * ROW > top && 60 * ROW <= top + outside, `row 60 is in sight: ${top}`);
    await page.keyboard.press("Escape");
    assert.equal(await rows.evaluate(e => e.scrollTop), 0);
    clean(page);
  });

  test("has the tables", async t => {
    const page = await fixture(t);
    const of = async name => (await page.locator(`main.alloc section[aria-label='${name}']`).innerText());
    assert.match(await of("Time of an operation"), /fresh\s+70\s+61 ns ± 20 ns\s+45 ns\s+1\.2 µs\s+8\.1 ms/);
    assert.match(await of("Operations"), /malloc\s+5,000\s+90 MiB\s+50\.0 %\s+25\.0 %\s+–\s+61 ns\s+1 s/);
    assert.match(await of("System calls and page faults"), /120 page faults within operations[^]*3,000 of these first touches [^(]*\(12\.0 % ± 1\.5 % of the CPU time\); 400 of them by the kernel[^]*gave 80 MiB back to the kernel; 60 MiB of that came again at least[^;]* 11\.0 % ± 1\.2 % of the CPU time\.[^]*futex\s+900\s+300\s+7\s+1 s\s+0 s\s+0 B\s+100\.000/);
    assert.match(await of("Callers"), /grow \(list\.c:12\)\s+1,000\s+3 MiB\s+1 MiB\s+1\.5 s ± 300 ms\s+750 ms\s+4\s+9/);
    assert.match(await of("Size classes"), /64 B\s+4,000\s+3,000\s+800\s+195 KiB\s+250 KiB\s+21\.9 %\s+1 s ± 200 ms\s+\(larger\)\s+1/);
    assert.match(await of("Threads"), /main \(7\)\s+9,000/);
    assert.equal(await page.locator("section[aria-label=Processes]").count(), 0);
    const blocks = page.locator("section[aria-label='Blocks by call stack']");
    assert.match(await blocks.innerText(), /grow \(list\.c:12\) < build\s+60 MiB ± 1 MiB\s+400\s+30 MiB\s+30 MiB ± 512 KiB\s+1\.5 ms\s+25\.0 %\s+0 %\s+1 MiB\s+2 MiB\s+–\s+1 MiB/);
    await blocks.locator("button.twist").first().click();
    assert.deepEqual(await blocks.locator("tr.inside li").allInnerTexts(), ["grow (list.c:12)", "build (list.c:40)", "main (main.c:7)"]);
    clean(page);
  });

  test("shows more rows where they are asked for", async t => {
    const page = await fixture(t, { change: a => { a.judgement.sites = Array.from({ length: 30 }, (_, i) => ({ ...a.judgement.sites[0], label: `caller ${i}` })); a.omitted_threads = 12; } });
    const callers = page.locator("section[aria-label=Callers]");
    assert.equal(await callers.locator("tbody tr").count(), 10);
    await callers.getByRole("button", { name: "Show all 30" }).click();
    assert.equal(await callers.locator("tbody tr").count(), 30);
    assert.match(await page.locator("section[aria-label=Threads]").innerText(), /and 12 more/);
  });

  test("what is not known is said, and no zero", async t => {
    const page = await fixture(t, { change: a => {
      Object.assign(a.judgement.memory, { peak_heap_resident_bytes: null, blowup: null, kept_bytes: null, unknown: "it has memory that nobody saw it map", over_time: [] });
      Object.assign(a.judgement.verdict, { answer: "unknown", time_share: null, time_share_error: null, memory_share: null });
      a.judgement.time.sampled = null;
      a.judgement.trace.lost = 3;
      a.judgement.diagnoses = [];
      a.judgement.blocks.samples = 4;
      a.flames = [];
    } });
    const tiles = await page.locator(".verdict .tile").allInnerTexts();
    assert.match(tiles[0], /–\s+clocks: not known/);
    assert.match(tiles[3], /–\s+not known/);
    assert.equal(await page.locator(".verdict .tile").nth(3).getAttribute("title"), "it has memory that nobody saw it map");
    const text = await page.locator("main.alloc").innerText();
    assert.match(text, /3 operations were not counted/);
    assert.match(text, /no disease that is known of allocators was seen/);
    assert.match(text, /too short for a time line/);
    assert.match(text, /too few for figures by call stack/);
    assert.equal(await page.locator(".flames").count(), 0);
    clean(page);
  });

  test("what lives is not known where operations were not counted", async t => {
    const why = "7 operations were not counted";
    const page = await fixture(t, { change: a => {
      const { memory, blocks } = a.judgement;
      const live = { peak_requested_bytes: null, peak_usable_bytes: null, peak_ns: null, end_requested_bytes: null, end_blocks: null, internal_fragmentation: null };
      Object.assign(memory, live, { peak_heap_resident_bytes: null, blowup: null, kept_bytes: null, mostly_kept: null, mostly_kept_ns: null, uncounted: why, unknown: why });
      for (const moment of memory.over_time) Object.assign(moment, { requested_bytes: null, usable_bytes: null, heap_resident_bytes: null });
      Object.assign(blocks, { peak_ns: null, at_peak: null });
      for (const s of blocks.sites) s.at_peak = null;
      Object.assign(a.judgement, { pages: null, diagnoses: [] });
      a.flames = a.flames.filter(f => f.measure !== "peak");
    } });
    const tiles = page.locator(".verdict .tile");
    for (const i of [2, 3, 4]) {
      assert.match(await tiles.nth(i).innerText(), /–\s+not known/);
      assert.equal(await tiles.nth(i).getAttribute("title"), why);
    }
    const text = await page.locator("main.alloc").innerText();
    assert.match(text, /None is known: 7 operations were not counted\./);
    assert.match(text, /At the peak: not known\./);
    clean(page);
  });

  test("hostile names are names", async t => {
    const page = await fixture(t, { change: a => {
      a.judgement.blocks.sites.slice(0, 2).forEach((s, i) => { s.stack = [HOSTILE[i], HOSTILE[2]]; s.label = HOSTILE[i]; });
      a.judgement.sites[0].label = HOSTILE[0];
      a.judgement.threads[0].name = HOSTILE[1];
      a.judgement.diagnoses[0].evidence = HOSTILE[2];
    } });
    let asked = 0;
    page.on("dialog", d => { asked++; void d.dismiss(); });
    await hover(page, 0.1, 2);
    assert.match(await tip(page), /<\/script><script>alert\(1\)/);
    await hover(page, 0.1, 1);
    const shown = await page.locator(".tip:visible").boundingBox();
    assert.ok(shown.x >= 0 && shown.x + shown.width <= 1280 && shown.height <= 900, "a long name stays within the window");
    assert.equal(await page.locator("main img").count(), 0);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "no sideways scrolling");
    assert.equal(asked, 0);
    clean(page);
  });

  test("fits narrow windows in both themes", async t => {
    for (const [width, colorScheme] of [[700, "light"], [1400, "dark"], [360, "light"]]) {
      const page = await fixture(t, { viewport: { width, height: 900 }, colorScheme });
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `no sideways scrolling at ${width}`);
      const cut = await page.evaluate(() => [...document.querySelectorAll(".verdict .tile b")].filter(b => b.scrollWidth > b.clientWidth + 1).map(b => b.textContent));
      assert.deepEqual(cut, [], `at ${width}`);
      const before = await flame(page).screenshot();
      await page.locator("button.theme").click();
      assert.notDeepEqual(await flame(page).screenshot(), before, "it follows the theme");
      clean(page);
    }
  });
});

test("an allocator's page that varve wrote", { skip: !process.env.ALLOC_PAGE && "ALLOC_PAGE is not set" }, async t => {
  const page = await open(t, process.env.ALLOC_PAGE);
  await page.waitForSelector("main.alloc");
  await page.waitForTimeout(300);
  assert.ok((await page.locator(".verdict .sentence").innerText()).length > 20);
  await hover(page, 0.3, 0);
  assert.match(await tip(page), /in all/);
  clean(page);
});
