// Reads what crates/report/src/html.rs writes: zlib(u32 length of JSON, JSON, columns), as base64.
// Columns are little-endian arrays; the JSON refers to them by byte offset and element count.
import { short } from "./format";
import type * as gen from "./payload.gen";
import type { Column } from "./payload.gen";

export type * from "./payload.gen";
export type Obj = gen.Object;

export const NO_THREAD = 0xffff;
export const NEVER = 0xffff;
export const PAGE_BYTES = 4096;

export interface LaneData extends Omit<gen.Lane, "heat" | "coverage" | "possibly" | "first_thread" | "first_time"> {
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
  /** what is left of other groups, or objects without touches */
  isRest: boolean;
}

export interface Report extends Omit<gen.Payload, "lanes" | "interval_edges" | "working_set" | "resident"> {
  lanes: LaneData[];
  /** microseconds since the start of the trace; one more than there are intervals */
  edges: Float64Array;
  /** the same for time bins */
  binEdges: Float64Array;
  workingSet: Float64Array;
  resident: Float64Array | null;
  /** microseconds */
  duration: number;
  /** a short name of each group, and of each lane */
  groupNames: string[];
  laneNames: string[];
  /** the listed objects of each group, hottest first */
  members: number[][];
  /** Whether a page of a lane was touched from a moment to another, microseconds. */
  isTouched(lane: LaneData, from: number, to: number): boolean;
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

/** The data of a page: what is JSON, and the columns that it refers to. */
export interface Unpacked {
  json: gen.Payload | gen.DiffPage;
  u8(column: Column): Uint8Array;
  u16(column: Column): Uint16Array;
  /** of deltas between neighbours, so that they compress */
  sums(column: Column): Float64Array;
}

export async function unpack(text: string): Promise<Unpacked> {
  const buffer = await inflate(fromBase64(text));
  const length = new DataView(buffer).getUint32(0, true);
  const base = 4 + length;
  return {
    json: JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length))),
    u8: c => new Uint8Array(buffer, base + c.offset, c.count),
    u16: c => new Uint16Array(buffer.slice(base + c.offset, base + c.offset + 2 * c.count)),
    sums: c => {
      const deltas = new Int32Array(buffer.slice(base + c.offset, base + c.offset + 4 * c.count));
      const out = new Float64Array(c.count);
      let sum = 0;
      for (let i = 0; i < c.count; i++) out[i] = sum += deltas[i];
      return out;
    },
  };
}

export function decode(json: gen.Payload, { u8, u16, sums }: Unpacked): Report {
  const edges = sums(json.interval_edges);
  const binEdges = new Float64Array(json.bins.count + 1);
  for (let b = 0; b <= json.bins.count; b++) {
    binEdges[b] = edges[Math.min(b * json.bins.intervals_per_bin, edges.length - 1)] ?? 0;
  }
  const lanes = json.lanes.map((lane, index): LaneData => {
    return {
      ...lane, index,
      heat: u8(lane.heat),
      coverage: u8(lane.coverage),
      possibly: lane.possibly && u8(lane.possibly),
      firstThread: u16(lane.first_thread),
      firstTime: u16(lane.first_time),
      isRest: lane.group === null,
    };
  });
  const members: number[][] = json.groups.map(() => []);
  json.objects.forEach((o, i) => members[o.group].push(i));
  const isTouched = (lane: LaneData, from: number, to: number) => {
    const bins = json.bins.count;
    for (let b = 0; b < bins; b++) {
      if (binEdges[b] > to || binEdges[b + 1] < from) continue;
      for (let a = 0; a < lane.address_bins; a++) if (lane.heat[a * bins + b] || lane.possibly?.[a * bins + b]) return true;
    }
    return false;
  };
  return {
    ...json, lanes, members, isTouched, groupNames: short(json.groups.map(g => g.name)), laneNames: short(lanes.map(l => l.title)), edges, binEdges,
    workingSet: sums(json.working_set),
    resident: json.resident && sums(json.resident),
    duration: edges.length ? edges[edges.length - 1] : 0,
  };
}
