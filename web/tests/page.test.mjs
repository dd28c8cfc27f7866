// Opens the page in a real browser, from a file, with the network watched.
import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { describe, test } from "node:test";
import { clean, file, open } from "./browser.mjs";
import { encode, page as build, report, samples, sharing } from "./fixture.mjs";

const GUTTER = 240;

async function fixture(t, change = () => {}, options) {
  const data = report();
  change(data);
  const path = file();
  await writeFile(path, await build(encode(data)));
  const page = await open(t, path, options);
  await page.waitForSelector("canvas.map");
  await page.waitForTimeout(150);
  return page;
}

/** Hovers a cell of a lane, by lane order on screen, address bin and interval. */
async function hover(page, y, interval) {
  const box = await page.locator("canvas.map").boundingBox();
  const width = box.width - GUTTER - 10;
  await page.mouse.move(box.x + GUTTER + ((interval + 0.5) / 40) * width, box.y + y * box.height);
  return page.locator(".tip").innerText();
}

describe("the page", () => {
  test("shows what ran and loads nothing", async t => {
    const page = await fixture(t);
    assert.equal(await page.locator(".command").innerText(), "./prog <b>&amp; 'quoted'");
    assert.match(await page.locator(".badge").innerText(), /complete/);
    assert.match(await page.locator(".tiles").innerText(), /Target held\s+1\.0 %/);
    assert.match(await page.locator(".tiles").innerText(), /Resident, peak\s+–/);
    assert.equal(await page.locator("#payload").count(), 0);
    clean(page);
  });

  test("draws apart what others may have touched", async t => {
    const plain = await fixture(t, data => { data.head.footprint.possibly_others_pages = { exact: 0 }; });
    assert.doesNotMatch(await plain.locator(".legend").textContent(), /possibly by others/);
    assert.doesNotMatch(await plain.locator(".guide").textContent(), /Hatched cells/);
    const marked = await fixture(t, data => {
      const lane = data.lanes[1];
      // Not on the diagonal, which the program touches.
      lane.possibly = Uint8Array.from(lane.heat, h => (h ? 0 : 80));
      data.head.groups[1].possibly_others_page_touches = 80;
      for (const o of data.head.objects) if (o.group === 1) o.possibly_others_page_touches = 80;
    });
    assert.match(await marked.locator(".legend").innerText(), /possibly by others/);
    const pixels = page => page.locator("canvas.map").evaluate((canvas, gutter) => {
      const left = gutter * window.devicePixelRatio;
      const data = canvas.getContext("2d").getImageData(left, 0, canvas.width - left, canvas.height / 2).data;
      let stripes = 0;
      for (let i = 0; i < data.length; i += 4) if (data[i] === 0x55 && data[i + 1] === 0x69 && data[i + 2] === 0x7d) stripes++;
      return stripes;
    }, GUTTER);
    assert.equal(await pixels(plain), 0);
    assert.ok(await pixels(marked) > 1000);
    assert.match(await marked.locator(".guide").textContent(), /Hatched cells were possibly touched by others: 8 pages/);
    // What was touched of that object is a lower bound, and of no other.
    assert.doesNotMatch(await plain.locator(".objects tbody").innerText(), /≥/);
    assert.doesNotMatch(await marked.locator(".objects tbody tr", { hasText: "table" }).innerText(), /≥/);
    const row = marked.locator(".objects tbody tr", { hasText: "grid" });
    assert.match(await row.innerText(), /≥\s256 KiB[^]*≥\s640/);
    await row.click();
    assert.match(await marked.locator("#p-object").innerText(), /touched\s+≥\s64 pages/);
    clean(marked);
  });

  test("shows the phases that the program names", async t => {
    const plain = await fixture(t);
    assert.equal(await plain.locator("canvas.phases").count(), 0);
    const band = (name, spans, more = {}) => ({ name, is_event: false, times: spans.length, open: 0, total_ns: 800 * 1_000_000, touched_pages: { exact: 17 }, spans, ...more });
    const page = await fixture(t, data => {
      data.head.phases = [
        band("load <i>input</i>", [[0, 800_000]]),
        band("solve", [[1_000_000, 2_000_000], [3_000_000, 4_000_000]], { open: 1 }),
        band("half way", [[2_000_000, 2_000_000]], { is_event: true, total_ns: 0, touched_pages: { absent: "an event has no pages" } }),
        ...Array.from({ length: 10 }, (_, i) => band(`more ${i}`, [[i, i + 1]], { total_ns: 1000 })),
      ];
    });
    const canvas = page.locator("canvas.phases");
    const box = await canvas.boundingBox();
    assert.equal(Math.round(box.height), 11 * 18 + 8);
    const at = (row, time) => [box.x + GUTTER + time / 4e6 * (box.width - GUTTER - 10), box.y + 4 + 18 * (row + 0.5)];
    const colours = () => canvas.evaluate((c, places) => {
      const ratio = window.devicePixelRatio, { left, top } = c.getBoundingClientRect();
      const { width, height } = c;
      const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
      copy.drawImage(c, 0, 0);
      const { data } = copy.getImageData(0, 0, width, height);
      return places.map(([x, y]) => {
        const at = 4 * (Math.round((y - top + 4) * ratio) * width + Math.round((x - left) * ratio));
        return data.slice(at, at + 4).join();
      });
    }, [at(0, 400_000), at(0, 900_000), at(1, 1_500_000), at(1, 2_500_000), at(1, 3_500_000)]);
    const [load, none, first, between, second] = await colours();
    assert.ok(load === first && first === second && none === between && load !== none);
    await page.mouse.move(...at(1, 1_500_000));
    const tip = await page.locator(".tip").innerText();
    assert.match(tip, /solve[^]*1\.000 s to 2\.000 s[^]*2 times[^]*1 not ended by the program[^]*68 KiB \(17 pages\)/);
    await page.mouse.move(...at(0, 100_000));
    assert.match(await page.locator(".tip").innerText(), /load <i>input<\/i>/);
    await page.mouse.click(...at(1, 1_500_000));
    await page.waitForTimeout(100);
    // The run fills the band now, and the other one is out of sight.
    const [, left, , middle] = await colours();
    assert.equal(left, none);
    assert.equal(middle, load);
    clean(page);
  });

  test("can tell a page that asks the network (negative control)", async t => {
    const path = file();
    await writeFile(path, (await build(encode(report()))).replace(/<meta http-equiv[^>]*>/, "").replace("<body>", '<body><img src="http://127.0.0.1:9/x.png">'));
    const page = await open(t, path);
    await page.waitForSelector("canvas.map");
    assert.throws(() => clean(page));
  });

  test("says what a cell holds", async t => {
    const page = await fixture(t);
    // Hottest first: table, grid, then what is left.
    const heights = [15 + 0.35 * 3 ** 1.8, 15 + 0.35 * 6 ** 1.8, 15 + 0.35 * Math.log2(3) ** 1.8];
    const total = heights.reduce((a, b) => a + b);
    const grid = bin => (heights[0] + heights[1] * ((bin + 0.5) / 16)) / total;
    let tip = await hover(page, grid(5), 21);
    assert.match(tip, /grid \(a\.c:1, in setup\)/);
    assert.match(tip, /heap/);
    assert.match(tip, /0x10014000 to 0x10017000/);
    assert.match(tip, /2\.10 s to 2\.20 s \(1 interval\)/);
    assert.match(tip, /3 of 4 pages/);
    assert.match(tip, /500 ms, thread main \(7\)/);
    tip = await hover(page, grid(5), 22);
    assert.match(tip, /0 of 4 pages/);
    tip = await hover(page, grid(12), 12);
    assert.match(tip, /worker \(8\)/);
    tip = await hover(page, (heights[0] + heights[1] + heights[2] / 6) / total, 1);
    assert.match(tip, /left <script>alert\(1\)<\/script>/);
    assert.match(tip, /0x20000000\s/);
    tip = await hover(page, (heights[0] + heights[1] + heights[2] * (5 / 6)) / total, 1);
    assert.match(tip, /right/);
    assert.match(tip, /never/);
    clean(page);
  });

  test("draws the cell that it describes", async t => {
    const page = await fixture(t);
    const pixel = (x, y) => page.evaluate(([px, py]) => {
      const c = document.querySelector("canvas.map"), r = devicePixelRatio;
      return [...c.getContext("2d").getImageData(px * r, py * r, 1, 1).data].slice(0, 3).join();
    }, [x, y]);
    const box = await page.locator("canvas.map").boundingBox();
    const total = 15 + 0.35 * 3 ** 1.8 + 15 + 0.35 * 6 ** 1.8 + 15 + 0.35 * Math.log2(3) ** 1.8;
    const y = ((15 + 0.35 * 3 ** 1.8 + (15 + 0.35 * 6 ** 1.8) * (5.5 / 16)) / total) * box.height;
    const x = i => GUTTER + ((i + 0.5) / 40) * (box.width - GUTTER - 10);
    const hot = await pixel(x(21), y), cold = await pixel(x(22), y);
    assert.notEqual(hot, cold);
    assert.equal(await pixel(x(5), y), hot);
    assert.equal(await pixel(x(30), y), cold);
  });

  test("zooms at the cursor, pans and resets", async t => {
    const page = await fixture(t);
    const box = await page.locator("canvas.map").boundingBox();
    const spot = [box.x + GUTTER + 300, box.y + 200];
    const time = async () => { await page.mouse.move(spot[0] + 1, spot[1]); await page.mouse.move(...spot); return page.locator(".tip").innerText(); };
    const before = await time();
    await page.mouse.wheel(0, -400);
    await page.waitForTimeout(60);
    assert.equal(await time(), before, "the cell under the cursor stays");
    const shot = await page.locator("canvas.map").screenshot();
    await page.mouse.move(...spot);
    await page.mouse.down();
    await page.mouse.move(spot[0] - 120, spot[1], { steps: 4 });
    await page.mouse.up();
    await page.waitForTimeout(60);
    assert.notDeepEqual(await page.locator("canvas.map").screenshot(), shot);
    assert.notEqual(await time(), before, "panned away");
    await page.mouse.dblclick(...spot);
    await page.waitForTimeout(60);
    assert.equal(await time(), before);
    await page.locator("canvas.map").focus();
    await page.keyboard.press("+");
    await page.keyboard.press("ArrowRight");
    assert.match(await page.locator(".explorer [aria-live]").innerText(), /Showing .* to /);
    await page.keyboard.press("r");
    await page.waitForTimeout(60);
    assert.equal(await time(), before);
    clean(page);
  });

  test("selects by click, table and finding", async t => {
    const page = await fixture(t);
    await page.locator(".findings .link").click();
    assert.match(await page.locator("#p-object").innerText(), /table/);
    assert.equal(await page.locator("tr.selected td").first().innerText(), "table");
    await page.locator("tbody tr", { hasText: "grid" }).click();
    const pane = await page.locator("#p-object").innerText();
    assert.match(pane, /setup\s+a\.c:1/);
    assert.match(pane, /prog\+0x11d2\s+\/bin\/prog \(no line information\)/);
    assert.match(pane, /written\s+–/);
    assert.match(pane, /worker \(8\)\s+50\.0 %\s+32/);
    const box = await page.locator("canvas.map").boundingBox();
    await page.mouse.click(box.x + 500, box.y + 10);
    assert.match(await page.locator("#p-object h3").innerText(), /^table$/);
    await page.locator("canvas.map").focus();
    await page.keyboard.press("]");
    assert.match(await page.locator("#p-object h3").innerText(), /grid/);
    clean(page);
  });

  test("sorts and filters the table", async t => {
    const page = await fixture(t);
    const names = async () => (await page.locator(".objects tbody td.c-name").allInnerTexts()).map(n => n.replace(/^[▸▾]/, ""));
    assert.deepEqual(await names(), ["table", "grid", "left <script>alert(1)</script>", "right"]);
    await page.getByRole("button", { name: "Size" }).click();
    assert.equal((await names())[0], "grid");
    assert.equal(await page.locator("th", { hasText: "Size" }).getAttribute("aria-sort"), "descending");
    await page.getByRole("button", { name: "Size" }).click();
    assert.equal((await names()).at(-1), "grid");
    await page.getByRole("button", { name: "First touch by" }).click();
    assert.equal((await names()).at(-1), "right", "unknown goes last");
    const object = page.getByRole("searchbox", { name: "Object" });
    await object.fill("le");
    assert.deepEqual(await names(), ["table", "left <script>alert(1)</script>"]);
    await page.getByLabel("Kind").selectOption("heap");
    assert.deepEqual(await names(), ["▸left <script>alert(1)</script>"].map(n => n.slice(1)));
    await page.getByRole("button", { name: "Clear filters" }).click();
    assert.equal((await names()).length, 4);
    await object.fill("gr?d");
    assert.deepEqual(await names(), ["grid"]);
    await object.fill("nothing like it");
    assert.match(await page.locator(".objects tbody").innerText(), /No object matches/);
    clean(page);
  });

  test("opens a site to its objects", async t => {
    const page = await fixture(t);
    const rows = () => page.locator(".objects tbody tr").count();
    assert.equal(await rows(), 4);
    await page.getByRole("button", { name: "Objects of left" }).click();
    assert.equal(await rows(), 7, "two that are listed, and a row for the third");
    const members = await page.locator("tr.member").allInnerTexts();
    assert.match(members[0], /at 0x20000000\s/);
    assert.match(members[2], /and 1 more objects/);
    await page.locator("tr.member").nth(1).click();
    assert.match(await page.locator("#p-object").innerText(), /one of\s+3 objects of this site[^]*0x20001000/);
    clean(page);
  });

  test("shows one process, one thread or a time", async t => {
    const two = data => {
      data.head.processes.push({ ...data.head.processes[0], pid: 9, command: "/bin/other" });
      const table = data.head.groups[0];
      table.processes.push({ pid: 9, objects: 1, touched_pages_over_lives: 2, page_touches: 77 });
      table.processes[0].page_touches = 8923;
    };
    const page = await fixture(t, two);
    const cells = () => page.locator(".objects tbody tr").first().locator("td").allInnerTexts();
    assert.match((await cells()).join(" | "), /2 processes/);
    await page.getByLabel("Process", { exact: true }).selectOption("9");
    assert.equal(await page.locator(".objects tbody tr").count(), 1);
    assert.match((await cells()).join(" | "), /8 KiB \| 77 /, "its part of what both use");
    await page.getByRole("button", { name: "Clear filters" }).click();
    await page.getByLabel("Thread", { exact: true }).selectOption("1");
    assert.deepEqual((await page.locator(".objects tbody td.c-name").allInnerTexts()), ["grid"]);
    await page.getByRole("button", { name: "Clear filters" }).click();
    await page.getByRole("searchbox", { name: "From" }).fill("2");
    await page.getByRole("searchbox", { name: "To" }).fill("2500 ms");
    await page.locator("canvas.map").focus();
    await page.keyboard.press("ArrowDown");
    assert.match(await page.locator(".explorer [aria-live]").innerText(), /Showing 2\.00* s to 2\.50* s/);
    const single = await fixture(t);
    assert.equal(await single.getByLabel("Process", { exact: true }).count(), 0);
    assert.doesNotMatch(await single.locator(".objects thead").innerText(), /Process/);
    clean(page);
  });

  test("switches the theme and follows the system's", async t => {
    const page = await fixture(t);
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const dark = await ground();
    await page.locator("button.theme").click();
    assert.notEqual(await ground(), dark);
    assert.equal(await page.locator("html").getAttribute("data-theme"), "light");
    const light = await fixture(t, () => {}, { colorScheme: "light" });
    assert.equal(await light.locator("html").getAttribute("data-theme"), "light");
    clean(page);
  });

  test("changes colours and order without moving the page about", async t => {
    for (const width of [1280, 1920]) {
      const page = await fixture(t, () => {}, { viewport: { width, height: 900 } });
      const place = async () => JSON.stringify(await page.locator("canvas.map").boundingBox());
      const at = await place();
      for (const value of ["thread", "first", "heat"]) {
        await page.check(`input[name=mode][value=${value}]`);
        assert.equal(await place(), at, `${value} at ${width}`);
      }
      await page.check("input[name=order][value=heat]");
      assert.equal(await place(), at);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "no sideways scrolling");
      clean(page);
    }
  });

  test("lists what was lost", async t => {
    const page = await fixture(t, d => {
      d.head.trace.complete = false;
      d.head.trace.losses = { reclaim: 12 };
    });
    await page.locator(".badge summary").click();
    assert.match(await page.locator(".badge").innerText(), /incomplete: reclaim 12/);
    assert.match(await page.locator(".badge ul").innerText(), /All pages\.[^]*reclaim\s+12/);
    assert.equal(await page.locator(".badge li").count(), 1);
  });

  test("says whether a page can be missing of what was lost", async t => {
    const guide = async pages_complete => {
      const page = await fixture(t, d => {
        Object.assign(d.head.trace, { complete: false, pages_complete, losses: { stacks: 12 } });
      });
      return page.locator(".guide").textContent();
    };
    assert.match(await guide(false), /an empty cell may have been touched/);
    assert.match(await guide(true), /what was lost concerns no page: an empty cell was not touched/);
  });

  test("says what an imported record is, and what it does not tell", async t => {
    const page = await fixture(t, d => {
      Object.assign(d.head.trace, { command: "", backend: "import/lackey", imported_from: "lackey", complete: false, statement: "Imported: every access.", machine: { absent: "the record does not say" }, kernel: { absent: "the record does not say" }, duration_ns: 220_865, clock_unit: "accesses" });
      Object.assign(d.head, { overhead: { held_share: { absent: "the record does not say" }, recorder_cpu_ns: { absent: "the record does not say" } }, objects: [], groups: [], findings: [] });
      d.lanes = [];
    });
    assert.equal(await page.locator(".badge").innerText(), "imported");
    assert.equal(await page.locator(".command").innerText(), "a record of lackey");
    const tiles = await page.locator(".tile").allInnerTexts();
    assert.match(tiles[0], /220,865 accesses/);
    assert.match(tiles[6], /–\s+not recorded/);
    assert.match(tiles[7], /–\s+not recorded/);
    assert.equal(await page.locator(".tile").nth(7).getAttribute("title"), "not known: the record does not say");
    const guide = await page.locator("#p-guide").innerText();
    assert.match(guide, /every access/);
    assert.doesNotMatch(guide, /processor marks|page fault|Wheel/);
    assert.ok((await page.locator("canvas.map").boundingBox()).height < 10);
    clean(page);
  });

  test("says that ticks are no time", async t => {
    const page = await fixture(t, d => Object.assign(d.head.trace, { duration_ns: 89_432_027_616, clock_unit: "ticks" }));
    assert.match((await page.locator(".tile").allInnerTexts())[0], /89,432,027,616\s+ticks of its own clock/);
    assert.ok(await page.locator(".tile b").first().evaluate(e => e.scrollWidth <= e.clientWidth), "the number does not fit");
  });

  test("says that counts are of the whole run", async t => {
    const page = await fixture(t, d => Object.assign(d.head.trace, { backend: "exact", is_emulated: true, lengths: "the whole run" }));
    const tiles = await page.locator(".tile").allInnerTexts();
    assert.match(tiles[1], /the whole run/);
    assert.match(tiles[5], /never\s+it ran in an emulator/);
    assert.match(await page.locator("#p-guide").textContent(), /each access of the program is counted/);
  });

  test("the cost has the words of the terminal", async t => {
    const page = await fixture(t, d => { d.head.overhead.slowdown = { asked: 0.05, measured: 0.044, held: 0.02, first_accesses: 0.005, samples: 0.003, objects: 0.004, reports: 0.002, contention: 0.01, short: false, beginnings: 502 }; });
    const tile = page.locator(".tile", { hasText: "Cost" });
    assert.match(await tile.innerText(), /Cost\s+4\.4 %\s+measured; asked 5\.0 %/);
    assert.match(await tile.getAttribute("title"), /^held 2\.0 %, first accesses 0\.50 %, samples 0\.30 %, objects 0\.40 %, reports 0\.20 %, recorder's CPU 1\.0 %; not in it: most of the beginnings and ends of 502 processes$/);
    assert.equal(await page.locator(".tile", { hasText: "Slowdown" }).count(), 0);
  });

  test("no figure of the head is cut, and no table hides rows in itself", async t => {
    for (const width of [1280, 800]) {
      const page = await fixture(t, d => { d.head.trace.machine = { exact: "Some Processor of a Long Name, 128 CPUs, 1,000 GiB" }; }, { viewport: { width, height: 900 } });
      const cut = await page.evaluate(() => [...document.querySelectorAll(".tile b")].filter(b => b.scrollWidth > b.clientWidth + 1).map(b => b.textContent));
      assert.deepEqual(cut, [], `at ${width}`);
      const hidden = await page.evaluate(() => [...document.querySelectorAll(".scroll")].filter(e => e.scrollHeight > e.clientHeight + 2).length);
      assert.equal(hidden, 0, `at ${width}`);
    }
  });

  test("too few samples say nothing of who uses what", async t => {
    const page = await fixture(t, d => { d.head.samples = samples(); d.head.sharing = { ...sharing(), events: 3, enough: false }; });
    const matrix = page.locator("section[aria-label='Who uses what']");
    assert.match(await matrix.innerText(), /3 samples[^]*too few to say which threads use what/);
    assert.equal(await matrix.locator("table").count(), 0);
    assert.equal(await page.locator("section[aria-label='Event flow']").count(), 0);
  });

  test("names of places are not cut to nothing beside many columns", async t => {
    const page = await fixture(t, d => {
      const s = { samples: 90, reads: null, writes: null, latency_cycles: { samples: 90, median: 30, p90: 200, p99: 400, max: 900 }, time_ns: null, access_ns: null, write_ns: null, call_ns: null };
      d.head.samples = { ...s, weight: "A sample.", note: null, rate: null, with_address: 0, with_object: 90, events: [], levels: [], objects: [], lines: [], flame: [], threads: [], places: [{ ...s, place: "LULESH_OMP.cc:2035" }], omitted: { objects: 0, places: 0, lines: 0, chains: 0, threads: 0 } };
    });
    const name = page.locator(".sampled td.c-name").first();
    assert.ok(await name.evaluate(e => e.scrollWidth <= e.clientWidth), "the place does not fit");
  });

  const used = d => Object.assign(d.head, { sharing: sharing(), samples: samples() });

  test("says who uses what", async t => {
    const page = await fixture(t, used);
    const matrix = page.locator("section[aria-label='Who uses what']");
    assert.deepEqual(await matrix.locator("thead th").allInnerTexts(), ["Object", "Objects", "Size", "Use", "Writes", "Sharing", "First by", "Never by", "Parts", "7", "8"]);
    const row = i => matrix.locator("tbody tr").nth(i).locator("td").allInnerTexts();
    assert.deepEqual(await row(0), ["grid", "1", "256 KiB", "40.0 %", "25 %", "several write", "7", "", "", "50 %", "50 %"]);
    assert.deepEqual(await row(1), ["<i>table</i>", "1", "256 KiB", "40.0 %", "–", "read only", "–", "–", "", "100 %", ""], "what is not known is a dash");
    assert.match(await matrix.locator(".strip").getAttribute("title"), /4 parts of 16 pages each: 2 most by main \(7\), 2 most by worker \(8\)/);
    assert.equal(await matrix.locator(".strip").count(), 1);
    assert.match(await matrix.innerText(), /3 more objects/);
    assert.match(await matrix.innerText(), /A sample stands for time/, "what a weight is");
    const lines = page.locator("section[aria-label='Lines that threads meet in']");
    assert.match(await lines.innerText(), /<i>table<\/i>\s+0x400040\s+line\s+different bytes\s+30\.0 % ± 2\.0 %\s+9\s+main \(7\): 0–7; 20 of 20 write\s+worker \(8\): 8–15; 0 of 10 write/);
    clean(page);
  });

  test("says of trapped accesses what they do not tell", async t => {
    const page = await fixture(t, d => {
      d.head.sharing = { ...sharing(), source: "traps", unit: "first_accesses", weight: "Each is the first access." };
      d.head.sharing.objects[1].class = null;
      d.head.sharing.lines[0].share_error = 0;
    });
    const matrix = page.locator("section[aria-label='Who uses what']");
    assert.equal(await matrix.locator("thead th").nth(3).innerText(), "Firsts");
    assert.match(await matrix.innerText(), /trapped accesses: 100 times the first to a page in an interval[^]*share of the first accesses[^]*was first most often[^]*Each is the first access\./);
    assert.equal(await matrix.locator("tbody tr").nth(1).locator("td").nth(5).innerText(), "–", "one thread is not private");
    assert.match(await matrix.locator("td.heat").first().getAttribute("title"), /first accesses/);
    const lines = await page.locator("section[aria-label='Lines that threads meet in']").innerText();
    assert.match(lines, /different bytes\s+30\.0 %\s+9[^]*may be false sharing: what the threads use later/);
    assert.doesNotMatch(lines, /±|padding mends/);
    clean(page);
  });

  test("draws the flows of objects and of threads", async t => {
    const page = await fixture(t, used);
    const lanes = page.locator("canvas.lanes");
    await lanes.scrollIntoViewIfNeeded();
    const box = async () => lanes.boundingBox();
    const hover = async (lane, bin) => {
      const b = await box(), gutter = Math.min(208, Math.max(110, b.width * 0.22));
      await page.mouse.move(b.x + gutter + ((bin + 0.5) / 4) * (b.width - gutter - 10), b.y + 6 + (lane + 0.5) * 30);
      return page.locator(".tip:visible").innerText();
    };
    assert.match(await hover(0, 0), /grid[^]*0 s to 1\.00 s[^]*main \(7\)\s+100 %/);
    assert.match(await hover(0, 3), /worker \(8\)\s+100 %/);
    assert.match(await hover(1, 3), /none seen/);
    // One reading: the browser warns of many.
    const cells = await lanes.evaluate(c => {
      const b = c.getBoundingClientRect(), r = devicePixelRatio, gutter = Math.min(208, Math.max(110, b.width * 0.22));
      const { data, width } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
      return [0, 1].map(lane => [0, 1, 2, 3].map(bin => {
        const x = Math.round((gutter + ((bin + 0.5) / 4) * (b.width - gutter - 10)) * r), y = Math.round((6 + lane * 30 + 20) * r);
        return [...data.slice(4 * (y * width + x), 4 * (y * width + x) + 4)].join();
      }));
    });
    assert.equal(cells[0][0], cells[0][1]);
    assert.notEqual(cells[0][0], cells[0][2], "another thread, another colour");
    assert.notEqual(cells[1][0], cells[1][2], "nothing is no colour");
    await page.check("input[name=flow][value=threads]");
    assert.match(await hover(0, 0), /main \(7\)[^]*<i>table<\/i>\s+80\.0 %\s+grid\s+20\.0 %/);
    assert.match(await hover(1, 2), /worker \(8\)[^]*grid\s+100 %/);
    clean(page);
  });

  test("draws a flame graph that zooms", async t => {
    const page = await fixture(t, used);
    const flame = page.locator("canvas.flame");
    await flame.scrollIntoViewIfNeeded();
    const at = async (share, row) => { const b = await flame.boundingBox(); return [b.x + share * b.width, b.y + row * 19 + 9]; };
    await page.mouse.move(...await at(0.5, 2));
    assert.match(await page.locator(".tip:visible").innerText(), /sum\s+in all\s+75 ms, 75\.0 %\s+itself\s+75 ms/);
    await page.mouse.move(...await at(0.9, 2));
    assert.match(await page.locator(".tip:visible").innerText(), /<b>fill<\/b>\s+in all\s+25 ms, 25\.0 %/);
    await page.mouse.click(...await at(0.9, 2));
    await page.mouse.move(...await at(0.1, 2));
    assert.match(await page.locator(".tip:visible").innerText(), /<b>fill<\/b>/, "it has all the width now");
    await page.getByRole("button", { name: "Show all", exact: true }).click();
    await page.mouse.move(...await at(0.1, 2));
    assert.match(await page.locator(".tip:visible").innerText(), /sum/);
    clean(page);
  });

  test("says where the time goes, and fits narrow windows in both themes", async t => {
    for (const [width, colorScheme] of [[900, "light"], [1400, "dark"]]) {
      const page = await fixture(t, used, { viewport: { width, height: 900 }, colorScheme });
      const lines = page.locator("section[aria-label='Lines of code by time']");
      assert.match(await lines.innerText(), /a\.c:12, in sum\s+68\.2 %\s+68\.2 %\s+0 %/);
      assert.match(await lines.innerText(), /unknown\s+31\.8 %\s+22\.7 %\s+100 %[^]*and 7 more/);
      assert.match(await page.locator("section[aria-label='Time at accesses']").innerText(), /110 samples at 400\/s of CPU time on average, which the permitted overhead chose \(at times 333\/s; 1,000\/s of each CPU at most\): 100 resolved, 3 not decoded/);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "no sideways scrolling");
      await page.locator("button.theme").click();
      clean(page);
    }
  });

  test("survives a trace of nothing", async t => {
    const page = await fixture(t, d => {
      d.lanes = [];
      Object.assign(d.head, { objects: [], findings: [], threads: [], unknown: [], bins: { count: 0, intervals_per_bin: 1 } });
      Object.assign(d.head.trace, { intervals: 0, duration_ns: 0 });
      d.columns.interval_edges = new Int32Array([0]);
      d.columns.working_set = new Int32Array(0);
    });
    const box = await page.locator("canvas.map").boundingBox();
    await page.mouse.move(box.x + 400, box.y + 50);
    await page.mouse.wheel(0, -100);
    await page.waitForTimeout(60);
    clean(page);
  });

  test("says so when its data is damaged", async t => {
    const path = file();
    await writeFile(path, await build(encode(report()).slice(0, -400)));
    const page = await open(t, path);
    await page.waitForSelector(".fatal[role=alert]");
    assert.match(await page.locator(".fatal[role=alert]").innerText(), /cannot be shown/);
  });
});

test("a page that varve wrote", { skip: !process.env.PAGE && "PAGE is not set" }, async t => {
  const page = await open(t, process.env.PAGE);
  await page.waitForSelector("canvas.map");
  await page.waitForTimeout(300);
  const box = await page.locator("canvas.map").boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 3);
  assert.match(await page.locator(".tip:visible").innerText(), /touched/);
  await page.mouse.wheel(0, -500);
  await page.locator("tbody tr").first().click();
  clean(page);
});
