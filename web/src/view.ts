import type { LaneData, Report } from "./payload";

export type Order = "address" | "heat";
export const GUTTER = 240;
export const MARGIN = 10;
const MAX_SCALE = 400;

export interface Placed { lane: LaneData; top: number; height: number }

/** Which time and which lanes are on screen; the curve and the map share one. */
export class View {
  t0 = 0;
  t1: number;
  /** top of the window, in lane units */
  y = 0;
  /** CSS pixels per lane unit */
  scale = 1;
  mapHeight = 400;
  order: Order = "heat";
  placed: Placed[] = [];
  total = 1;
  /** which lanes are shown */
  keep: (lane: LaneData) => boolean = () => true;
  private readonly listeners: (() => void)[] = [];
  private touchedY = false;

  constructor(readonly report: Report) {
    this.t1 = Math.max(1, report.duration);
    this.arrange("heat");
  }

  onChange(listener: () => void): void { this.listeners.push(listener); }
  changed(): void { for (const l of this.listeners) l(); }

  arrange(order: Order): void {
    this.order = order;
    const first = (l: LaneData) => l.segments[0]?.page ?? 0;
    // Lanes come hottest first.
    const lanes = this.report.lanes.filter(l => this.keep(l)).sort((a, b) =>
      Number(a.isRest) - Number(b.isRest) || (order === "heat" ? a.index - b.index : first(a) - first(b)));
    let top = 0;
    this.placed = lanes.map(lane => {
      // Taller with size, but slowly: a 4 GiB array must not hide a 4 KiB lock.
      const height = !isEmpty(lane) ? 15 + 0.35 * Math.log2(Math.max(1, lane.pages)) ** 1.8 : 18;
      const placed = { lane, top, height };
      top += height;
      return placed;
    });
    this.total = Math.max(1, top);
    this.resetY();
    this.changed();
  }

  /** Shows other lanes. */
  only(keep: (lane: LaneData) => boolean): void {
    this.keep = keep;
    this.arrange(this.order);
  }

  /** Scale at which all lanes fit. */
  private get fitScale(): number { return this.mapHeight / this.total; }

  resize(mapHeight: number): void {
    const before = this.mapHeight;
    this.mapHeight = mapHeight;
    if (!this.touchedY || before === mapHeight) this.resetY();
    this.clamp();
  }

  private resetY(): void {
    this.y = 0;
    // All lanes when they stay legible, else their natural height and a scroll bar.
    this.scale = Math.max(this.fitScale, this.fitScale > 0.75 ? 0 : 1);
    this.touchedY = false;
  }

  reset(): void {
    this.t0 = 0;
    this.t1 = Math.max(1, this.report.duration);
    this.resetY();
    this.changed();
  }

  fitLanes(): void {
    this.y = 0;
    this.scale = this.fitScale;
    this.touchedY = true;
    this.changed();
  }

  get zoomed(): boolean {
    return this.t0 > 0 || this.t1 < this.report.duration || this.touchedY;
  }

  private get minSpan(): number {
    const n = Math.max(1, this.report.trace.intervals);
    return Math.min(this.report.duration, (this.report.duration / n) * 4) || 1;
  }

  private clamp(): void {
    const full = Math.max(1, this.report.duration);
    const span = Math.min(full, Math.max(this.minSpan, this.t1 - this.t0));
    this.t0 = Math.max(0, Math.min(full - span, this.t0));
    this.t1 = this.t0 + span;
    this.scale = Math.max(this.fitScale, Math.min(MAX_SCALE, this.scale));
    this.y = Math.max(0, Math.min(this.total - this.mapHeight / this.scale, this.y));
  }

  /** `at` in microseconds stays where it is. */
  zoomTime(factor: number, at: number): void {
    const span = Math.min(Math.max(1, this.report.duration), Math.max(this.minSpan, (this.t1 - this.t0) / factor));
    const f = (at - this.t0) / (this.t1 - this.t0);
    this.t0 = at - f * span;
    this.t1 = this.t0 + span;
    this.clamp();
    this.changed();
  }

  /** `at` in CSS pixels from the top of the map stays where it is. */
  zoomLanes(factor: number, at: number): void {
    const world = this.y + at / this.scale;
    this.scale = Math.max(this.fitScale, Math.min(MAX_SCALE, this.scale * factor));
    this.y = world - at / this.scale;
    this.touchedY = true;
    this.clamp();
    this.changed();
  }

  pan(time: number, pixelsDown: number): void {
    this.t0 += time;
    this.t1 += time;
    if (pixelsDown) { this.y += pixelsDown / this.scale; this.touchedY = true; }
    this.clamp();
    this.changed();
  }

  showTime(from: number, to: number): void {
    this.t0 = Math.min(from, to);
    this.t1 = Math.max(from, to);
    this.clamp();
    this.changed();
  }

  /** Brings a lane into sight, moving no more than needed. */
  reveal(lane: number): void {
    const p = this.placed.find(x => x.lane.index === lane);
    if (!p) return;
    const window = this.mapHeight / this.scale;
    if (p.top < this.y) this.y = p.top - window * 0.1;
    else if (p.top + Math.min(p.height, window) > this.y + window) this.y = p.top + Math.min(p.height, window) - window * 0.9;
    this.clamp();
    this.changed();
  }

  laneAt(pixel: number): Placed | null {
    const world = this.y + pixel / this.scale;
    let low = 0, high = this.placed.length - 1;
    while (low <= high) {
      const mid = (low + high) >> 1, p = this.placed[mid];
      if (world < p.top) high = mid - 1;
      else if (world >= p.top + p.height) low = mid + 1;
      else return p;
    }
    return null;
  }
}

/** A lane of objects that nobody touched. */
export function isEmpty(lane: LaneData): boolean {
  return lane.isRest && lane.kind === null;
}

/** Index of the last edge at or below `t`; edges ascend. */
export function indexAt(edges: Float64Array, t: number): number {
  let low = 0, high = edges.length - 1;
  while (low < high) {
    const mid = (low + high + 1) >> 1;
    if (edges[mid] <= t) low = mid; else high = mid - 1;
  }
  return low;
}
