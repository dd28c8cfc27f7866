// What crates/report/src/html.rs writes: zlib(u32 length of JSON, JSON, columns), as base64.
// Columns are little-endian arrays; the JSON refers to them by byte offset and element count.

export interface Latency { samples: number; median: number; p90: number; p99: number; max: number }
/** Times are nanoseconds at the instruction; null where samples have no weight in time. */
export interface Sampled { samples: number; reads: number | null; writes: number | null; latency_cycles: Latency | null; time_ns: number | null; access_ns: number | null; write_ns: number | null; call_ns: number | null }
export interface Steps { count: number; stride_bytes: number; upward: number }
export interface LineTime { function: string | null; file: string | null; line: number | null; module: string | null; samples: number; time_ns: number | null; access_ns: number | null; write_ns: number | null }
export interface Chain { stack: string; samples: number; time_ns: number | null }
export interface SamplesNote { source: string; rate: number; taken: number; in_calls: number; in_traps: number; behind: number; at: number; ahead: number; hardware: number; undecoded: number; dropped: number }
export interface SampleUse extends Sampled {
  weight: string;
  note: SamplesNote | null;
  with_address: number;
  with_object: number;
  levels: { level: string; samples: number; latency_cycles: Latency | null }[];
  objects: (Sampled & { object: number; name: string; steps: Steps | null })[];
  places: (Sampled & { place: string })[];
  lines: LineTime[];
  flame: Chain[];
  threads: (Sampled & { tid: number; name: string })[];
  omitted: { objects: number; places: number; lines: number; chains: number; threads: number };
}

export interface SharingThread { pid: number; tid: number; name: string; events: number; weight: number; writes: number }
export interface SharingPart { thread: number; tid: number; events: number; weight: number; writes: number; ranges: number; first_pages: number | null }
export interface ObjectSharing {
  object: number;
  name: string;
  objects: number;
  kind: string;
  bytes: number;
  events: number;
  weight: number;
  reads: number | null;
  writes: number | null;
  class: "private" | "read_only" | "one_writer" | "many_writers" | "shared" | null;
  first_tid: number | null;
  threads: SharingPart[];
  never_touched_by: number[] | null;
  never_written_by: number[] | null;
  own_share: number | null;
  ranges: { count: number; pages: number; cells: { range: number; thread: number; events: number; weight: number; writes: number }[] };
  flow: { bin: number; thread: number; weight: number; writes: number }[];
}
export interface SharedBlock {
  object: number | null;
  name: string;
  address: number;
  bytes: number;
  kind: "true_sharing" | "false_sharing";
  events: number;
  weight: number;
  share: number;
  share_error: number;
  turns: number;
  threads: { thread: number; tid: number; events: number; writes: number; bytes: [number, number][] }[];
}
export interface SharingUse {
  source: "counts" | "samples" | "traps" | "faults";
  unit: "accesses" | "nanoseconds" | "samples" | "first_accesses" | "pages";
  weight: string;
  events: number;
  total: number;
  axis: { start_ns: number; bin_ns: number; bins: number } | null;
  threads: SharingThread[];
  objects: ObjectSharing[];
  omitted_objects: number;
  lines: SharedBlock[];
  pages: SharedBlock[];
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
  /** null where there is nothing that others may have touched */
  possibly: Column | null;
  first_thread: Column;
  first_time: Column;
}

export interface Obj {
  name: string;
  kind: string;
  site: string | null;
  stack: Frame[];
  pid: number;
  /** Those that touched it, where several may map it: pages touched and written (null: unknown) */
  processes: [pid: number, touched: number, written: number | null][];
  address: number;
  bytes: number;
  pages: number;
  touched_pages: number;
  page_touches: number;
  possibly_others_page_touches: number;
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
    /** null where it was not recorded */
    machine: string | null;
    kernel: string | null;
    started: string | null;
    duration_ns: number;
    interval_ns: number;
    interval_auto: boolean;
    /** accesses of an interval where those were asked for; 0: the whole run is one */
    interval_accesses?: number | null;
    /** what all times count; absent: nanoseconds */
    clock_unit?: "nanoseconds" | "accesses" | "ticks";
    intervals: number;
    backend: string;
    complete: boolean;
    statement: string;
    losses: Loss[];
    processes: number;
    written_known: boolean;
  };
  overhead: { held_ns: number | null; recorder_cpu_ns: number | null };
  footprint: { touched_pages: number | null; touched_pages_per_process: number | null; peak_resident_pages: number | null; possibly_others_pages: number; possibly_others_page_touches: number };
  samples?: SampleUse | null;
  counts?: CountUse | null;
  sharing?: SharingUse | null;
  unknown: string[];
  bins: { count: number; intervals_per_bin: number };
  interval_edges: Column;
  working_set: Column;
  resident: Column | null;
  threads: Thread[];
  lanes: LaneJson[];
  objects: Obj[];
  omitted: { objects: number; bytes: number; page_touches: number };
  findings: Finding[];
}

export const NO_THREAD = 0xffff;
export const NEVER = 0xffff;
export const PAGE_BYTES = 4096;
export const SCHEMA = 1;

export interface LaneData extends Omit<LaneJson, "heat" | "coverage" | "possibly" | "first_thread" | "first_time"> {
  index: number;
  /** square root of the touched share, 0..255, address-major: [address bin][time bin] */
  heat: Uint8Array;
  /** distinct pages touched in the cell; scaled to 255 when a cell has more pages than that */
  coverage: Uint8Array;
  /** like heat, of what others may have touched */
  possibly: Uint8Array | null;
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
      possibly: lane.possibly && u8(lane.possibly),
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
