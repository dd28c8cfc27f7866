// A small trace with known contents, encoded by hand from the contract in crates/report/src/html.rs.
import { deflateSync } from "node:zlib";
import { readFile } from "node:fs/promises";

export const NS = 1_000_000;

/** 3 lanes: "grid" of 64 pages over 40 intervals, "table" of 8, and a lane of two small objects. */
export function report() {
  const intervals = 40;
  const cells = (bins, touched) => {
    const heat = new Uint8Array(bins * intervals), coverage = new Uint8Array(bins * intervals);
    for (let a = 0; a < bins; a++) for (let t = 0; t < intervals; t++) {
      const [pages, of] = touched(a, t);
      heat[a * intervals + t] = pages ? Math.max(1, Math.round(Math.sqrt(pages / of) * 255)) : 0;
      coverage[a * intervals + t] = pages;
    }
    return { heat, coverage };
  };
  const lane = (title, group, objects, pages, per, segments, touched, thread, first) => {
    const bins = Math.ceil(pages / per);
    return {
      title, group, kind: group === null ? "heap" : null, objects, pages, pages_per_bin: per, address_bins: bins, segments, ...cells(bins, touched),
      first_thread: Uint16Array.from({ length: bins }, (_, a) => thread(a)),
      first_time: Uint16Array.from({ length: bins }, (_, a) => first(a)),
    };
  };
  const group = (name, kind, objects, pages, touches, more = {}) => ({
    name, kind, site: null, objects, processes: [{ pid: 7, objects, touched_pages_over_lives: pages, page_touches: touches }], threads: [{ pid: 7, tid: 7, pages }],
    bytes: pages * 4096, touched_bytes: pages * 4096, peak_bytes: pages * 4096, died: 0, median_life_ns: null, untouched_objects: 0, touched_pages_over_lives: pages, touch_share: touches / 9700,
    touched_pages: pages, page_touches: touches, intervals_touched: 1, first_touch_ns: 1000 * NS, last_touch_ns: 5000 * NS, reuse: { once: 0, twice: 0, more: pages }, written_pages: null,
    shared_page_touches: 0, huge_page_touches: 0, standing_page_touches: 0, possibly_others_page_touches: 0, cold_pages: 0, first_touches: pages, lane: null, stacks: [], ...more,
  });
  const object = (group, page, pages, touches, more = {}) => ({
    group, pid: 7, processes: [], address: page * 4096, bytes: pages * 4096, pages, touched_pages: pages,
    page_touches: touches, possibly_others_page_touches: 0, written_pages: null, born_ns: null, died_ns: null,
    first_touches: [[0, pages]], reuse: [0, 0, 0, pages], lane: 0, lane_page: 0, ...more,
  });
  return {
    head: {
      generator: "varve test",
      trace: {
        command: "./prog <b>&amp; 'quoted'", machine: { exact: "test, 2 CPUs" }, kernel: { exact: "6.12" }, started: null, start_ns: 1000 * NS, duration_ns: 4000 * NS, lengths: "100 ms",
        selected: null, clock_unit: "nanoseconds", intervals, backend: "scan", imported_from: null, is_emulated: false, complete: true, pages_complete: true, statement: "All pages.", losses: {}, written_known: false,
      },
      overhead: { held_share: { exact: 0.01 }, recorder_cpu_ns: { absent: "the record does not say" } },
      footprint: { touched_pages: { exact: 74 }, touched_pages_per_process: { exact: 74 }, page_touches: { exact: 9700 }, peak_working_set_pages: { exact: 20 }, peak_resident_pages: { absent: "the record does not say" }, peak_process_bytes: { absent: "the record does not say" }, possibly_others_pages: { exact: 8 }, possibly_others_page_touches: { exact: 80 } },
      unknown: ["Whether a touch was a write (null)."],
      bins: { count: intervals, intervals_per_bin: 1 },
      samples: null, counts: null, sharing: null, alloc: null, opens: "pages",
      processes: [{ pid: 7, command: "/bin/prog -x", touched_pages: 74, shared_pages: 0, page_touches: 9700, threads: 2, born_ns: null, died_ns: null, exit_code: null, peak_resident: { absent: "the record does not say" } }],
      threads: [{ pid: 7, tid: 7, name: "main" }, { pid: 7, tid: 8, name: "worker" }],
      groups: [
        group("table", "static", 1, 8, 9000, { lane: 0 }),
        group("grid (a.c:1, in setup)", "heap", 1, 64, 640, { site: "a.c:1, in setup", lane: 1, threads: [{ pid: 7, tid: 7, pages: 32 }, { pid: 7, tid: 8, pages: 32 }], stacks: [{ objects: 1, frames: [{ function: "setup", file: "a.c", line: 1, module: "prog", offset: null, address: 4096 }, { function: null, file: null, line: null, module: "/bin/prog", offset: 0x11d2, address: 0x555500011d3 }] }] }),
        group("left <script>alert(1)</script>", "heap", 3, 2, 3),
        group("right", "heap", 1, 1, 1, { threads: [] }),
      ],
      objects: [
        object(0, 0x400, 8, 9000),
        object(1, 0x10000, 64, 640, { lane: 1, first_touches: [[0, 32], [1, 32]] }),
        object(2, 0x20000, 1, 3, { lane: 2 }),
        object(2, 0x20001, 1, 0, { lane: 2, lane_page: 1 }),
        object(3, 0x20010, 1, 1, { lane: 2, lane_page: 2, first_touches: [] }),
      ],
      omitted_groups: 0,
      phases: [], omitted_phases: 0,
      findings: [{ id: "x", title: "table is hot", evidence: "9,000 page touches.", advice: "Keep it near.", is_note: false, groups: [0] }],
    },
    columns: {
      interval_edges: Int32Array.from({ length: intervals + 1 }, (_, i) => (i ? 100_000 : 0)),
      working_set: Int32Array.from({ length: intervals }, (_, i) => (i ? (i % 2 ? 5 : -5) : 20)),
      resident: null,
    },
    lanes: [
      lane("table", 0, 1, 8, 1, [{ pid: 7, lane_page: 0, page: 0x400, pages: 8 }], () => [1, 1], () => 0, () => 0),
      // 3 of the 4 pages of a bin, on the diagonal
      lane("grid (a.c:1, in setup)", 1, 1, 64, 4, [{ pid: 7, lane_page: 0, page: 0x10000, pages: 64 }], (a, t) => [t % 16 === a ? 3 : 0, 4], a => (a < 8 ? 0 : 1), a => a),
      lane("other heap objects", null, 4, 3, 1, [{ pid: 7, lane_page: 0, page: 0x20000, pages: 2 }, { pid: 7, lane_page: 2, page: 0x20010, pages: 1 }], (a, t) => [a === 0 && t < 3 ? 1 : 0, 1], a => (a ? 0xffff : 0), a => (a ? 0xffff : 0)),
    ],
  };
}

export function encode({ head, columns, lanes }) {
  const parts = [];
  let offset = 0;
  const put = array => {
    if (!array) return null;
    parts.push(Buffer.from(array.buffer, array.byteOffset, array.byteLength));
    const column = { offset, count: array.length };
    offset += array.byteLength;
    return column;
  };
  const json = Buffer.from(JSON.stringify({
    ...head,
    interval_edges: put(columns.interval_edges), working_set: put(columns.working_set), resident: put(columns.resident),
    lanes: lanes.map(l => ({ ...l, heat: put(l.heat), coverage: put(l.coverage), possibly: l.possibly ? put(l.possibly) : null, first_thread: put(l.first_thread), first_time: put(l.first_time) })),
  }));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(json.length);
  return deflateSync(Buffer.concat([length, json, ...parts])).toString("base64");
}

export async function page(data) {
  const template = await readFile(new URL("../dist/report.html", import.meta.url), "utf8");
  return template.replace("@@VARVE_PAYLOAD@@", () => data);
}

const weigh = (samples, more = {}) => ({ samples, reads: samples, writes: 0, latency_cycles: null, time_ns: samples * NS, access_ns: samples * NS, write_ns: 0, call_ns: 0, ...more });

/** Two threads: each uses half of "grid", one after the other; both read "table" at all times. */
export function sharing() {
  const object = (number, name, more) => ({
    object: number, name, objects: 1, kind: "heap", pid: 7, bytes: 64 * 4096, events: 40, weight: 40 * NS, reads: 30 * NS, writes: 10 * NS, class: "many_writers", pages: null,
    first_tid: 7, never_touched_by: [], never_written_by: [], own_share: 1, phases: [], ...more,
  });
  const part = (thread, weight) => ({ thread, tid: 7 + thread, events: weight, weight: weight * NS, writes: 0, ranges: 1, first_pages: 0, first_ns: 0, last_ns: 1 });
  const cell = (range, thread) => ({ range, thread, events: 10, weight: 10 * NS, writes: 0 });
  return {
    source: "samples", unit: "nanoseconds", weight: "A sample stands for time.", events: 100, enough: true, total: 100 * NS, axis: { start_ns: 0, bin_ns: 1000 * NS, bins: 4 },
    threads: [{ pid: 7, tid: 7, name: "main", events: 60, weight: 60 * NS, writes: 0, phases: [] }, { pid: 7, tid: 8, name: "worker", events: 40, weight: 40 * NS, writes: 0, phases: [] }],
    objects: [
      object(1, "grid (a.c:1, in setup)", {
        threads: [part(0, 20), part(1, 20)], ranges: { count: 4, pages: 16, cells: [cell(0, 0), cell(1, 0), cell(2, 1), cell(3, 1)] },
        flow: [0, 1].map(bin => ({ bin, thread: 0, weight: 10 * NS, writes: 0 })).concat([2, 3].map(bin => ({ bin, thread: 1, weight: 10 * NS, writes: 0 }))),
      }),
      object(2, "<i>table</i>", {
        class: "read_only", reads: null, writes: null, first_tid: null, never_touched_by: null, threads: [part(0, 40)], ranges: { count: 1, pages: 8, cells: [cell(0, 0)] },
        flow: [{ bin: 0, thread: 0, weight: 40 * NS, writes: 0 }],
      }),
    ],
    omitted_objects: 3,
    lines: [{ object: 2, name: "<i>table</i>", address: 0x400040, bytes: 64, kind: "false_sharing", events: 30, weight: 30 * NS, share: 0.3, share_error: 0.02, turns: 9, chance: 0, threads: [
      { thread: 0, tid: 7, events: 20, writes: 20, bytes: [[0, 8]] }, { thread: 1, tid: 8, events: 10, writes: 0, bytes: [[8, 16]] }] }],
    pages: [], tested: 1, missed_below: 0,
  };
}

/** Samples with two call chains, 75 and 25 of 100. */
export function samples() {
  return {
    weight: "A sample stands for time.", rate: "400/s of CPU time on average, which the permitted overhead chose (at times 333/s; 1,000/s of each CPU at most)", note: { source: "cpu-clock", rate: 1000, by_overhead: true, mean_rate: 400, least_rate: 333, time_ns: 275_000_000, taken: 110, in_calls: 4, in_traps: 3, behind: 90, at: 10, ahead: 0, hardware: 0, undecoded: 3, dropped: 2 },
    ...weigh(110, { access_ns: 100 * NS, write_ns: 25 * NS }), unowned_ns: 0, with_address: 100, with_object: 100, sources: [], events: [], levels: [],
    objects: [{ object: 1, name: "grid (a.c:1, in setup)", ...weigh(100, { write_ns: 25 * NS }), threads: [], objects: 1, kind: "heap", pid: 7, steps: { count: 90, stride_bytes: 64, upward: 0.5 } }],
    places: [], lines: [{ function: "sum", file: "/src/a.c", line: 12, module: "prog", samples: 75, time_ns: 75 * NS, access_ns: 75 * NS, write_ns: 0, kernel_ns: 0, called: null }, { function: null, file: null, line: null, module: null, samples: 35, time_ns: 35 * NS, access_ns: 25 * NS, write_ns: 25 * NS, kernel_ns: 0, called: null }],
    flame: [{ stack: "main;sum", samples: 75, time_ns: 75 * NS }, { stack: "main;<b>fill</b>", samples: 25, time_ns: 25 * NS }],
    threads: [], omitted: { objects: 0, places: 0, lines: 7, chains: 0, threads: 0 },
  };
}
