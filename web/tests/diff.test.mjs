// The page of a difference in a real browser.
import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { describe, test } from "node:test";
import { deflateSync } from "node:zlib";
import { clean, file, open } from "./browser.mjs";
import { page as build } from "./fixture.mjs";

const COLUMNS = 480, MIB = 1 << 20, S = 1_000_000_000;
const values = (median, more = {}) => ({ runs: [], median, min: median, max: median, at_least: false, why: median === null ? "no samples" : null, ...more });
function figure(measure, unit, a, b, more = {}) {
  const known = a !== null && b !== null;
  return { measure, unit, a: values(a), b: values(b), change: known ? b - a : null, ratio: known && a ? b / a : null, p: null, q: null, verdict: !known ? "not_known" : a === b ? "same" : "noise_unknown", ...more };
}
const row = (a, b, figures, more = {}) => ({ kind: "heap", a, b, match: a && b ? "exact" : null, how: null, figures, ...more });

/** "table": A touches all of it all the time, B its first half in the first half. "new": in B alone. "same": alike. */
function data(change = () => {}) {
  const side = (traces, command, duration_ns) => ({ traces, command, runs: 1, duration_ns, complete: true });
  const heats = [];
  const cells = (pages, bins, value) => { heats.push(Uint8Array.from({ length: bins * COLUMNS }, (_, i) => value(Math.floor(i / COLUMNS), i % COLUMNS))); return { pages, address_bins: bins, heat: heats.length - 1 }; };
  const json = {
    generator: "varve test", a: side("a.varve", "./prog <b>a</b>", 4 * S), b: side("b.varve", "./prog", 2 * S), noise: "noise is unknown: one run", noise_known: false, notes: ["the command is not the same"],
    titles: { touched_bytes: "touched", page_touches: "page touches", access_ns: "time at accesses" },
    program: [figure("touched_bytes", "bytes", 64 * MIB, 48 * MIB), figure("access_ns", "ns", null, null)],
    objects: { rows: [
      row("table (a.c:1)", "table (a.c:9)", [figure("touched_bytes", "bytes", 64 * MIB, 16 * MIB), figure("page_touches", "count", 9000, 9500)], { match: "moved", how: "1 line behind the beginning of f" }),
      row(null, "new </script><script>alert(1)</script>", [figure("touched_bytes", "bytes", 0, 16 * MIB)]),
      row("same", "same", [figure("touched_bytes", "bytes", MIB, MIB)]),
    ], omitted: 7 },
    functions: { rows: [row("f (a.c)", "f (a.c)", [figure("access_ns", "ns", 3 * S, S)], { kind: null })], omitted: 0 },
    lines: { rows: [], omitted: 0 },
    findings: [{ id: "hot", fate: "stayed", a: "table is hot", b: "table is hot", runs: [1, 1] }, { id: "cold", fate: "came", a: null, b: "new is cold", runs: [0, 1] }],
    differences: 5,
    map: { columns: COLUMNS, a_duration_ns: 4 * S, b_duration_ns: 2 * S, lanes: [
      { row: 0, a: cells(16384, 8, () => 255), b: cells(16384, 8, (bin, column) => (bin < 4 && column < COLUMNS / 2 ? 255 : 0)) },
      { row: 1, a: null, b: cells(4096, 4, () => 128) },
      { row: 2, a: cells(256, 2, () => 64), b: cells(256, 2, () => 64) },
    ] },
  };
  change(json);
  let offset = 0;
  const columns = heats.map(h => { const c = { offset, count: h.length }; offset += h.length; return c; });
  for (const lane of json.map.lanes) for (const s of ["a", "b"]) if (lane[s]) lane[s].heat = columns[lane[s].heat];
  const text = Buffer.from(JSON.stringify(json)), length = Buffer.alloc(4);
  length.writeUInt32LE(text.length);
  return deflateSync(Buffer.concat([length, text, ...heats])).toString("base64");
}

async function fixture(t, change, options) {
  const path = file();
  await writeFile(path, await build(data(change)));
  const page = await open(t, path, options);
  await page.waitForSelector("header");
  await page.waitForTimeout(150);
  return page;
}

/** The colour of the map at a share of the width of its plot, and of the height of a lane. */
function colour(page, lane, x, y) {
  return page.locator("canvas.diff-map").evaluate((canvas, [lane, x, y]) => {
    const ratio = devicePixelRatio, width = canvas.getBoundingClientRect().width - 320 - 12;
    const at = [(320 + x * width) * ratio, (24 + lane * 46 + y * 40) * ratio].map(Math.floor);
    const copy = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, -at[0], -at[1]);
    return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3).join(" ");
  }, [lane, x, y]);
}

/** The same map with so many more rows, and with a share of the recording's time. */
const many = d => {
  for (let i = 0; i < 30; i++) d.map.lanes.push({ ...d.map.lanes[0], a: { ...d.map.lanes[0].a }, b: { ...d.map.lanes[0].b } });
  d.program.push(figure("held_share", "share", 0.09, 0.146), figure("page_touches", "share", 0.5, 0.5004));
  d.titles.held_share = "held";
};

const A = "77 163 255", BOTH = "214 205 222", NOTHING = "26 32 39", GONE = "14 18 21";

describe("the page of a difference", () => {
  test("lays both maps over one another", async t => {
    const page = await fixture(t);
    assert.equal(await colour(page, 0, 0.1, 0.2), BOTH);
    assert.equal(await colour(page, 0, 0.1, 0.8), A);
    // B ends at half of A's time, and touches nothing in the second half of its own.
    assert.equal(await colour(page, 0, 0.4, 0.2), A);
    assert.equal(await colour(page, 0, 0.9, 0.2), A);
    assert.equal(await colour(page, 1, 0.9, 0.2), GONE);
    assert.equal(await colour(page, 2, 0.1, 0.5), await colour(page, 2, 0.4, 0.5));
    await page.locator(".choice label", { hasText: "Each from its beginning to its end" }).click();
    assert.equal(await colour(page, 0, 0.4, 0.2), BOTH);
    assert.notEqual(await colour(page, 1, 0.9, 0.2), GONE);
    await page.locator(".choice label", { hasText: /^B$/ }).click();
    assert.equal(await colour(page, 0, 0.1, 0.8), NOTHING);
    clean(page);
  });

  test("says what differs, and what was found how", async t => {
    const page = await fixture(t);
    assert.match(await page.locator("header").innerText(), /5 figures and findings differ/);
    const sides = await page.locator(".sides").innerText();
    assert.match(sides, /a\.varve: \.\/prog <b>a<\/b>/);
    assert.match(sides, /Noise is unknown: one run\./);
    const program = await page.locator("section", { hasText: "The program" }).first().innerText();
    assert.match(program, /Touched\s+64 MiB\s+48 MiB\s+−16 MiB \(−25 %\)/);
    assert.doesNotMatch(program, /accesses/);
    const objects = page.locator("section[aria-label=Objects]");
    assert.match(await objects.innerText(), /2 of 10; 7 that changed least are left out/);
    const first = objects.locator("tbody tr").first();
    assert.match(await first.innerText(), /table \(a\.c:9\)\s+heap\s+by its place in the function\s+64 MiB\s+16 MiB\s+−48 MiB \(−75 %\)/);
    assert.match(await objects.locator("tbody tr").nth(1).innerText(), /<script>alert\(1\)<\/script>\s+heap\s+only in B/);
    await objects.locator("select").selectOption("page_touches");
    assert.match(await objects.locator("tbody tr").first().innerText(), /9,000\s+9,500\s+\+500 \(\+5\.6 %\)/);
    await objects.locator("select").selectOption("touched_bytes");
    await objects.locator("input[type=checkbox]").check();
    assert.equal(await objects.locator("tbody tr").count(), 3);
    await objects.locator("input[type=search]").fill("none such");
    assert.match(await objects.locator("tbody").innerText(), /None has such a name/);
    assert.deepEqual((await page.locator(".findings li").allInnerTexts()).map(l => l.trim()), ["came new is cold", "stayed table is hot"]);
    clean(page);
  });

  test("says what is under the pointer", async t => {
    const page = await fixture(t);
    const map = page.locator("canvas.diff-map");
    const box = await map.boundingBox();
    await page.mouse.move(box.x + 320 + 0.4 * (box.width - 332), box.y + 24 + 5);
    const tip = await page.locator(".tip:visible").innerText();
    assert.match(tip, /table \(a\.c:9\)\s+matched\s+1 line behind[^]*A\s+a page here was touched in 100 % of the intervals\s+B\s+not touched here/);
    await page.mouse.move(box.x + 100, box.y + 24 + 46 + 5);
    assert.match(await page.locator(".tip:visible").innerText(), /touched\s+\+16 MiB/);
    clean(page);
  });

  test("shows few rows at first, and shares in points", async t => {
    const page = await fixture(t, many);
    const map = page.locator("canvas.diff-map");
    assert.equal((await map.boundingBox()).height, 24 + 16 * 46);
    await page.locator("button", { hasText: "Show all 33 rows" }).click();
    assert.equal((await map.boundingBox()).height, 24 + 33 * 46);
    assert.equal(await colour(page, 32, 0.1, 0.8), A);
    await page.locator("button", { hasText: "Show the first 16 rows" }).click();
    assert.equal((await map.boundingBox()).height, 24 + 16 * 46);
    const program = await page.locator("section", { hasText: "The program" }).first().innerText();
    assert.match(program, /Held\s+9\.0 %\s+14\.6 %\s+\+5\.6 points\s/);
    assert.match(program, /50\.0 %\s+50\.0 %\s+\+< 0\.1 points/);
    clean(page);
  });

  test("names take a third of a narrow page, and nothing is cut off", async t => {
    const page = await fixture(t);
    await page.setViewportSize({ width: 800, height: 900 });
    await page.waitForTimeout(150);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
    const { width } = await page.locator("canvas.diff-map").boundingBox();
    const gutter = Math.round(width * 0.34);
    assert.ok(gutter < 280);
    // The row's left half: A and B touch all of it from the first moment.
    const share = (gutter + 3 - 320) / (width - 332);
    assert.equal(await colour(page, 0, share, 0.2), BOTH);
    assert.notEqual(await colour(page, 0, (gutter - 6 - 320) / (width - 332), 0.2), BOTH);
    clean(page);
  });

  test("of traces that differ in nothing, and of several runs", async t => {
    const page = await fixture(t, d => {
      d.differences = 0;
      d.noise_known = true;
      d.objects.rows[0].figures[0] = figure("touched_bytes", "bytes", 64 * MIB, 16 * MIB, { p: 0.008, q: 0.02, verdict: "more_than_noise", a: values(64 * MIB, { min: 60 * MIB, max: 66 * MIB, at_least: true }) });
      d.map.lanes = [];
    }, { colorScheme: "light" });
    assert.match(await page.locator("header").innerText(), /A and B differ in nothing/);
    const first = page.locator("section[aria-label=Objects] tbody tr").first();
    assert.match(await first.innerText(), /≥ 64 MiB \(60 MiB – 66 MiB\)[^]*✱/);
    assert.equal(await first.locator("td").last().getAttribute("title"), "more than noise; p = 0.008, q = 0.020");
    assert.equal(await page.locator("canvas.diff-map").count(), 0);
    clean(page);
  });
});
