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
  const lane = (title, group, pages, per, segments, touched, thread, first) => {
    const bins = Math.ceil(pages / per);
    return {
      title, group, pages, pages_per_bin: per, address_bins: bins, segments, ...cells(bins, touched),
      first_thread: Uint16Array.from({ length: bins }, (_, a) => thread(a)),
      first_time: Uint16Array.from({ length: bins }, (_, a) => first(a)),
    };
  };
  const object = (name, kind, page, pages, touches, more = {}) => ({
    name, kind, site: null, stack: [], pid: 7, address: page * 4096, bytes: pages * 4096, pages, touched_pages: pages,
    page_touches: touches, written_pages: null, born_ns: null, died_ns: null, first_touch_thread: 0,
    first_touches: [[0, pages]], reuse: [0, 0, 0, pages], lane: 0, ...more,
  });
  return {
    head: {
      schema: 1, generator: "varve test",
      trace: {
        command: "./prog <b>&amp; 'quoted'", machine: "test, 2 CPUs", kernel: "6.12", started: null, duration_ns: 4000 * NS, interval_ns: 100 * NS,
        interval_auto: false, intervals, backend: "scan", complete: true, statement: "All pages.", losses: [], processes: 1, written_known: false,
      },
      overhead: { held_ns: 40 * NS, recorder_cpu_ns: null },
      footprint: { touched_pages: 74, peak_resident_pages: null },
      unknown: ["Whether a touch was a write (null)."],
      bins: { count: intervals, intervals_per_bin: 1 },
      threads: [{ pid: 7, tid: 7, name: "main" }, { pid: 7, tid: 8, name: "worker" }],
      objects: [
        object("grid (a.c:1, in setup)", "heap", 0x10000, 64, 640, { site: "a.c:1, in setup", stack: [{ function: "setup", file: "a.c", line: 1, module: "prog", address: 4096 }], first_touches: [[0, 32], [1, 32]] }),
        object("table", "static", 0x400, 8, 9000, { lane: 1 }),
        object("left <script>alert(1)</script>", "heap", 0x20000, 1, 3, { lane: 2 }),
        object("right", "heap", 0x20010, 1, 1, { lane: 2, first_touch_thread: null, first_touches: [], reuse: null }),
      ],
      omitted: { objects: 0, bytes: 0, touched_pages: 0, page_touches: 0 },
      findings: [{ id: "x", title: "table is hot", evidence: "9,000 page touches.", advice: "Keep it near.", objects: [1] }],
    },
    columns: {
      interval_edges: Int32Array.from({ length: intervals + 1 }, (_, i) => (i ? 100_000 : 0)),
      working_set: Int32Array.from({ length: intervals }, (_, i) => (i ? (i % 2 ? 5 : -5) : 20)),
      resident: null,
    },
    lanes: [
      // 3 of the 4 pages of a bin, on the diagonal
      lane("grid (a.c:1, in setup)", false, 64, 4, [{ object: 0, lane_page: 0, page: 0x10000, pages: 64 }], (a, t) => [t % 16 === a ? 3 : 0, 4], a => (a < 8 ? 0 : 1), a => a),
      lane("table", false, 8, 1, [{ object: 1, lane_page: 0, page: 0x400, pages: 8 }], () => [1, 1], () => 0, () => 0),
      lane("2 small heap objects", true, 2, 1, [{ object: 2, lane_page: 0, page: 0x20000, pages: 1 }, { object: 3, lane_page: 1, page: 0x20010, pages: 1 }], (a, t) => [a === 0 && t < 3 ? 1 : 0, 1], a => (a ? 0xffff : 0), a => (a ? 0xffff : 0)),
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
    lanes: lanes.map(l => ({ ...l, heat: put(l.heat), coverage: put(l.coverage), first_thread: put(l.first_thread), first_time: put(l.first_time) })),
  }));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(json.length);
  return deflateSync(Buffer.concat([length, json, ...parts])).toString("base64");
}

export async function page(data) {
  const template = await readFile(new URL("../dist/report.html", import.meta.url), "utf8");
  return template.replace("@@VARVE_PAYLOAD@@", () => data);
}
