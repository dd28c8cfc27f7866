// What crates/report/src/html.rs writes: zlib(u32 length of JSON, JSON, columns), as base64.
// Columns are little-endian arrays; the JSON refers to them by byte offset and element count.

export interface Latency { samples: number; median: number; p90: number; p99: number; max: number }
export interface Sampled { samples: number; reads: number | null; writes: number | null; latency_cycles: Latency | null }
export interface SampleUse extends Sampled {
  weight: string;
  with_address: number;
  with_object: number;
  levels: { level: string; samples: number; latency_cycles: Latency | null }[];
  objects: (Sampled & { name: string })[];
  places: (Sampled & { place: string })[];
  threads: (Sampled & { tid: number; name: string })[];
  omitted: { objects: number; places: number; threads: number };
}
export interface CountUse {
  objects: { name: string; reads: number; writes: number; threads: unknown[] }[];
  threads: { tid: number | null; reads: number; writes: number }[];
}
export interface Column { offset: number; count: number }

export interface Loss { kind: string; count: number; meaning: string | null }
export interface Thread { pid: number; tid: number; name: string }
export interface Frame { function: string | null; file: string | null; line: number | null; module: string | null; address: number }
/** `object` and `page` are null where it stands for several objects that the table leaves out. */
export interface Segment { object: number | null; lane_page: number; page: number | null; pages: number }

export interface LaneJson {
  title: string;
  group: boolean;
  pages: number;
  pages_per_bin: number;
  address_bins: number;
  segments: Segment[];
  heat: Column;
  coverage: Column;
  first_thread: Column;
  first_time: Column;
}

export interface Obj {
  name: string;
  kind: string;
  site: string | null;
  stack: Frame[];
  pid: number;
  address: number;
  bytes: number;
  pages: number;
  touched_pages: number;
  page_touches: number;
  written_pages: number | null;
  born_ns: number | null;
  died_ns: number | null;
  first_touch_thread: number | null;
  first_touches: [thread: number, pages: number][];
  reuse: [never: number, once: number, twice: number, more: number] | null;
  lane: number | null;
}

export interface Finding { id: string; title: string; evidence: string; advice: string; objects: number[] }

export interface ReportJson {
  schema: number;
  generator: string;
  trace: {
    command: string;
    machine: string;
    kernel: string | null;
    started: string | null;
    duration_ns: number;
    interval_ns: number;
    interval_auto: boolean;
    intervals: number;
    backend: string;
    complete: boolean;
    statement: string;
    losses: Loss[];
    processes: number;
    written_known: boolean;
  };
  overhead: { held_ns: number | null; recorder_cpu_ns: number | null };
  footprint: { touched_pages: number | null; peak_resident_pages: number | null };
  samples?: SampleUse | null;
  counts?: CountUse | null;
  unknown: string[];
  bins: { count: number; intervals_per_bin: number };
  interval_edges: Column;
  working_set: Column;
  resident: Column | null;
  threads: Thread[];
  lanes: LaneJson[];
  objects: Obj[];
  omitted: { objects: number; bytes: number; touched_pages: number; page_touches: number };
  findings: Finding[];
}

export const NO_THREAD = 0xffff;
export const NEVER = 0xffff;
export const PAGE_BYTES = 4096;
export const SCHEMA = 1;

export interface LaneData extends Omit<LaneJson, "heat" | "coverage" | "first_thread" | "first_time"> {
  index: number;
  /** square root of the touched share, 0..255, address-major: [address bin][time bin] */
  heat: Uint8Array;
  /** distinct pages touched in the cell; scaled to 255 when a cell has more pages than that */
  coverage: Uint8Array;
  firstThread: Uint16Array;
  /** time bin of the first touch, or NEVER */
  firstTime: Uint16Array;
  /** sum of page touches, as a share of pages x intervals */
  meanHeat: number;
}

export interface Report extends Omit<ReportJson, "lanes" | "interval_edges" | "working_set" | "resident"> {
  lanes: LaneData[];
  /** microseconds since the start of the trace; one more than there are intervals */
  edges: Float64Array;
  /** the same for time bins */
  binEdges: Float64Array;
  workingSet: Float64Array;
  resident: Float64Array | null;
  /** microseconds */
  duration: number;
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const raw = atob(text.trim());
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<ArrayBuffer> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

export async function decode(text: string): Promise<Report> {
  const buffer = await inflate(fromBase64(text));
  const length = new DataView(buffer).getUint32(0, true);
  const json = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length))) as ReportJson;
  if (json.schema !== SCHEMA) throw new Error(`this page reads schema ${SCHEMA}, the data has schema ${json.schema}`);
  const base = 4 + length;
  const u8 = (c: Column) => new Uint8Array(buffer, base + c.offset, c.count);
  const u16 = (c: Column) => new Uint16Array(buffer.slice(base + c.offset, base + c.offset + 2 * c.count));
  // Deltas between neighbours, so that they compress; summed here.
  const sums = (c: Column) => {
    const deltas = new Int32Array(buffer.slice(base + c.offset, base + c.offset + 4 * c.count));
    const out = new Float64Array(c.count);
    let sum = 0;
    for (let i = 0; i < c.count; i++) out[i] = sum += deltas[i];
    return out;
  };

  const edges = sums(json.interval_edges);
  const binEdges = new Float64Array(json.bins.count + 1);
  for (let b = 0; b <= json.bins.count; b++) {
    binEdges[b] = edges[Math.min(b * json.bins.intervals_per_bin, edges.length - 1)] ?? 0;
  }
  const lanes = json.lanes.map((lane, index): LaneData => {
    const heat = u8(lane.heat);
    return {
      ...lane, index, heat,
      coverage: u8(lane.coverage),
      firstThread: u16(lane.first_thread),
      firstTime: u16(lane.first_time),
      meanHeat: meanShare(heat),
    };
  });
  return {
    ...json, lanes, edges, binEdges,
    workingSet: sums(json.working_set),
    resident: json.resident && sums(json.resident),
    duration: edges.length ? edges[edges.length - 1] : 0,
  };
}

function meanShare(heat: Uint8Array): number {
  let sum = 0;
  for (let i = 0; i < heat.length; i++) sum += heat[i] * heat[i];
  return heat.length ? sum / heat.length / 65025 : 0;
}
