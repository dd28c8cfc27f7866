import type { LaneData, Report } from "./payload";

export interface Level { width: number; height: number; data: Uint8Array }

const ROOT = new Uint8Array(65026);
for (let i = 0; i < ROOT.length; i++) ROOT[i] = Math.min(255, Math.round(Math.sqrt(i)));

/**
 * The heat of one lane at every power-of-two resolution in time and address, each made when first drawn.
 * A coarse cell is the mean share of its cells; one that was touched at all never rounds to untouched.
 */
export class Mips {
  private readonly levels = new Map<number, Level>();
  constructor(data: Uint8Array, timeBins: number, addressBins: number) {
    this.levels.set(0, { width: timeBins, height: addressBins, data });
  }

  level(time: number, address: number): Level {
    const key = address * 64 + time;
    let level = this.levels.get(key);
    if (!level) {
      level = time > 0 ? halveTime(this.level(time - 1, address)) : halveAddress(this.level(0, address - 1));
      this.levels.set(key, level);
    }
    return level;
  }
}

function mean(a: number, b: number): number {
  if (a === b) return a;
  return ROOT[(a * a + b * b) >> 1] || 1;
}

function halveTime(from: Level): Level {
  const width = (from.width + 1) >> 1;
  const data = new Uint8Array(width * from.height);
  for (let y = 0; y < from.height; y++) {
    const source = y * from.width, target = y * width;
    const pairs = from.width >> 1;
    for (let x = 0; x < pairs; x++) data[target + x] = mean(from.data[source + 2 * x], from.data[source + 2 * x + 1]);
    if (from.width & 1) data[target + width - 1] = from.data[source + from.width - 1];
  }
  return { width, height: from.height, data };
}

function halveAddress(from: Level): Level {
  const height = (from.height + 1) >> 1;
  const data = new Uint8Array(from.width * height);
  for (let y = 0; y < height; y++) {
    const top = 2 * y * from.width, target = y * from.width;
    if (2 * y + 1 < from.height) {
      const bottom = top + from.width;
      for (let x = 0; x < from.width; x++) data[target + x] = mean(from.data[top + x], from.data[bottom + x]);
    } else {
      data.set(from.data.subarray(top, top + from.width), target);
    }
  }
  return { width: from.width, height, data };
}

/** What one drawn cell holds, from the base grid. */
export interface Cell {
  lane: LaneData;
  /** first and one-past-last address bin and time bin */
  a0: number; a1: number; t0: number; t1: number;
  /** lane pages */
  page0: number; pages: number;
  share: number;
  /** the share of pages that others may have touched */
  possibly: number;
  touched: number;
  /** exact: a count; least: at least this many (several time bins merged); about: rounded up */
  touchedIs: "exact" | "least" | "about";
}

export function inspect(lane: LaneData, timeBins: number, a0: number, a1: number, t0: number, t1: number): Cell {
  const per = lane.pages_per_bin;
  let weight = 0, sum = 0, others = 0, touched = 0;
  for (let a = a0; a < a1; a++) {
    const pages = Math.min(per, lane.pages - a * per);
    let most = 0;
    for (let t = t0; t < t1; t++) {
      const v = lane.heat[a * timeBins + t];
      sum += pages * v * v;
      const p = lane.possibly ? lane.possibly[a * timeBins + t] : 0;
      others += pages * p * p;
      weight += pages;
      most = Math.max(most, lane.coverage[a * timeBins + t]);
    }
    touched += per <= 255 ? most : Math.min(pages, Math.floor((most * per) / 255));
  }
  const page0 = a0 * per;
  return {
    lane, a0, a1, t0, t1, page0,
    pages: Math.min(a1 * per, lane.pages) - page0,
    share: weight ? sum / weight / 65025 : 0,
    possibly: weight ? others / weight / 65025 : 0,
    touched,
    touchedIs: per > 255 ? "about" : t1 - t0 > 1 ? "least" : "exact",
  };
}

/** The segments of a lane that hold any of the lane pages [from, to). */
export function segmentsOf(lane: LaneData, from: number, to: number): LaneData["segments"] {
  let low = 0, high = lane.segments.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    const s = lane.segments[mid];
    if (s.lane_page + s.pages <= from) low = mid + 1; else high = mid;
  }
  const out = [];
  while (low < lane.segments.length && lane.segments[low].lane_page < to) out.push(lane.segments[low++]);
  return out;
}

/** The listed objects on the pages of a cell that lived at its time, hottest first. */
export function objectsOf(report: Report, cell: Cell): number[] {
  const parts = segmentsOf(cell.lane, cell.page0, cell.page0 + cell.pages);
  const per = report.bins.intervals_per_bin, last = report.edges.length - 1;
  const from = report.edges[Math.min(last, cell.t0 * per)] * 1000, to = report.edges[Math.min(last, cell.t1 * per)] * 1000;
  const among = cell.lane.group === null ? report.objects.keys() : report.members[cell.lane.group];
  const found: number[] = [];
  for (const i of among) {
    const o = report.objects[i];
    if (o.lane !== cell.lane.index || (o.born_ns ?? 0) > to || (o.died_ns ?? Infinity) < from) continue;
    const first = o.lane_page, end = o.lane_page + (o.pages ?? 0);
    if (parts.length && first < cell.page0 + cell.pages && end > cell.page0) found.push(i);
  }
  return found;
}
