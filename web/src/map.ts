import { type Mode, Palette } from "./colors";
import { cssVar, ellipsis, fit, font } from "./dom";
import * as fmt from "./format";
import { type Cell, Mips, inspect, objectsOf } from "./grid";
import type { Report } from "./payload";
import { GUTTER, MARGIN, type Placed, type View, indexAt, isEmpty } from "./view";

export interface Selection { group: number | null; object: number | null; lane: number | null }
const FONT = font(12);
const LABEL_HEIGHT = 14;

/** Draws time x address. Nothing here listens to input: see input.ts. */
export class HeatMap {
  mode: Mode = "heat";
  palette = new Palette(true);
  selection: Selection = { group: null, object: null, lane: null };
  private readonly mips: Mips[];
  private readonly possibly: (Mips | null)[];
  private image: ImageData | null = null;
  private pixels = new Uint32Array(0);
  private columns = new Int32Array(0);
  private timeLevel = 0;

  constructor(readonly canvas: HTMLCanvasElement, readonly report: Report, readonly view: View) {
    const mips = (data: Uint8Array, addressBins: number) => new Mips(data, report.bins.count, addressBins);
    this.mips = report.lanes.map(lane => mips(lane.heat, lane.address_bins));
    this.possibly = report.lanes.map(lane => lane.possibly && mips(lane.possibly, lane.address_bins));
  }

  get plotWidth(): number { return Math.max(1, this.canvas.getBoundingClientRect().width - GUTTER - MARGIN); }

  /** Time under a CSS x of the canvas. */
  timeAt(x: number): number {
    return this.view.t0 + ((x - GUTTER) / this.plotWidth) * (this.view.t1 - this.view.t0);
  }

  draw(): void {
    const { width, height, ratio } = fit(this.canvas);
    const ctx = this.canvas.getContext("2d", { alpha: false })!;
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.fillStyle = cssVar("--ground");
    ctx.fillRect(0, 0, this.canvas.width, this.canvas.height);
    const left = Math.round(GUTTER * ratio);
    const w = Math.max(1, this.canvas.width - left - Math.round(MARGIN * ratio)), hgt = this.canvas.height;
    if (!this.image || this.image.width !== w || this.image.height !== hgt) {
      this.image = new ImageData(w, hgt);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.columns = new Int32Array(w);
    }
    this.pixels.fill(this.palette.page);
    this.mapColumns(w);
    const visible = this.view.placed.filter(p => p.top + p.height > this.view.y && p.top < this.view.y + height / this.view.scale);
    for (const p of visible) {
      this.drawLane(p, w, hgt, ratio);
      this.hatch(p, w, hgt, ratio);
    }
    ctx.putImageData(this.image, left, 0);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawLabels(ctx, visible, width);
    this.drawScrollBar(ctx, width, height);
  }

  /** For each device column, the cell of the coarsest level whose cells are at least a pixel wide. */
  private mapColumns(w: number): void {
    const { binEdges } = this.report;
    const { t0, t1 } = this.view;
    const first = indexAt(binEdges, t0), last = indexAt(binEdges, t1);
    const perPixel = Math.max(1, last - first) / w;
    this.timeLevel = perPixel <= 1 ? 0 : Math.ceil(Math.log2(perPixel));
    let bin = first;
    const top = this.report.bins.count - 1;
    for (let x = 0; x < w; x++) {
      const t = t0 + ((x + 0.5) / w) * (t1 - t0);
      while (bin < top && binEdges[bin + 1] <= t) bin++;
      this.columns[x] = bin >> this.timeLevel;
    }
  }

  private addressLevel(p: Placed, ratio: number): number {
    const perPixel = p.lane.address_bins / Math.max(1, p.height * this.view.scale * ratio - ratio);
    return perPixel <= 1 ? 0 : Math.ceil(Math.log2(perPixel));
  }

  private laneBox(p: Placed, ratio: number): { top: number; bottom: number } {
    const top = Math.round((p.top - this.view.y) * this.view.scale * ratio);
    const bottom = Math.round((p.top + p.height - this.view.y) * this.view.scale * ratio);
    const gap = bottom - top > 4 * ratio ? Math.round(ratio) : 0;
    return { top, bottom: Math.max(top + 1, bottom - gap) };
  }

  private drawLane(p: Placed, w: number, hgt: number, ratio: number): void {
    const { lane } = p;
    const addressLevel = this.addressLevel(p, ratio);
    const level = this.mips[lane.index].level(this.timeLevel, addressLevel);
    const { top, bottom } = this.laneBox(p, ratio);
    const [bornX, diedX] = this.lifeColumns(p, w);
    const { pixels, columns } = this;
    let lastRow = -1, lastY = -1;
    for (let y = Math.max(0, top); y < Math.min(hgt, bottom); y++) {
      const base = Math.min(lane.address_bins - 1, Math.floor(((y + 0.5 - top) / (bottom - top)) * lane.address_bins));
      const row = base >> addressLevel;
      const out = y * w;
      if (row === lastRow) { pixels.copyWithin(out, lastY * w, lastY * w + w); continue; }
      lastRow = row; lastY = y;
      const lut = this.rowLut(lane.index, Math.min(lane.address_bins - 1, (row << addressLevel) + ((1 << addressLevel) >> 1)));
      const at = Math.min(level.height - 1, row) * level.width, data = level.data;
      for (let x = 0; x < w; x++) pixels[out + x] = lut[data[at + columns[x]]];
      if (bornX > 0 || diedX < w) {
        const alive = lut[0], dead = this.palette.dead;
        for (let x = 0; x < bornX; x++) if (pixels[out + x] === alive) pixels[out + x] = dead;
        for (let x = diedX; x < w; x++) if (pixels[out + x] === alive) pixels[out + x] = dead;
      }
    }
  }

  /** Hatches what others may have touched and this program did not, off the scale of the heat. */
  private hatch(p: Placed, w: number, hgt: number, ratio: number): void {
    const mips = this.possibly[p.lane.index];
    if (!mips) return;
    const addressLevel = this.addressLevel(p, ratio);
    const heat = this.mips[p.lane.index].level(this.timeLevel, addressLevel);
    const others = mips.level(this.timeLevel, addressLevel).data;
    const { top, bottom } = this.laneBox(p, ratio);
    const { pixels, columns } = this, colour = this.palette.possibly;
    const stripe = Math.max(1, Math.round(ratio * 1.5));
    for (let y = Math.max(0, top); y < Math.min(hgt, bottom); y++) {
      const base = Math.min(p.lane.address_bins - 1, Math.floor(((y + 0.5 - top) / (bottom - top)) * p.lane.address_bins));
      const at = Math.min(heat.height - 1, base >> addressLevel) * heat.width;
      for (let x = 0; x < w; x++) {
        const cell = at + columns[x];
        if (others[cell] && !heat.data[cell] && Math.floor((x + y) / stripe) % 3 === 0) pixels[y * w + x] = colour;
      }
    }
  }

  private rowLut(lane: number, addressBin: number): Uint32Array {
    const data = this.report.lanes[lane];
    if (this.mode === "thread") return this.palette.threadLut(data.firstThread[addressBin]);
    if (this.mode === "first") return this.palette.firstLut(data.firstTime[addressBin], this.report.bins.count);
    return this.palette.heat;
  }

  private lifeColumns(p: Placed, w: number): [number, number] {
    const { group, objects } = p.lane;
    const object = group === null || objects !== 1 ? undefined : this.report.objects[this.report.members[group]?.[0]];
    if (!object) return [0, w];
    const x = (ns: number) => Math.max(0, Math.min(w, Math.round(((ns / 1000 - this.view.t0) / (this.view.t1 - this.view.t0)) * w)));
    return [object.born_ns === null ? 0 : x(object.born_ns), object.died_ns === null ? w : x(object.died_ns)];
  }

  private drawLabels(ctx: CanvasRenderingContext2D, visible: Placed[], width: number): void {
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    const ink = cssVar("--ink"), soft = cssVar("--ink-2"), accent = cssVar("--accent"), line = cssVar("--line");
    let lastLabel = -Infinity;
    for (const p of visible) {
      const { top, bottom } = this.laneBox(p, 1);
      const tall = bottom - top;
      const selected = this.selection.lane === p.lane.index;
      if (selected) {
        ctx.fillStyle = cssVar("--accent-soft");
        ctx.fillRect(0, top, GUTTER, tall);
        ctx.fillStyle = accent;
        ctx.fillRect(0, top, 3, Math.max(2, tall));
        ctx.strokeStyle = accent;
        ctx.lineWidth = 1.5;
        const [from, to] = this.selectedRows(p, top, bottom);
        ctx.strokeRect(GUTTER + 0.75, from + 0.25, width - GUTTER - MARGIN - 1.5, Math.max(2, to - from - 0.5));
      }
      // In the middle of what can be seen of the lane; left out where it would run into its neighbour.
      const middle = Math.max(9, (Math.max(0, top) + Math.min(this.view.mapHeight, bottom)) / 2);
      if (tall < 8 || middle - lastLabel < LABEL_HEIGHT) continue;
      lastLabel = middle;
      const size = isEmpty(p.lane) ? "" : fmt.pageBytes(p.lane.pages);
      const many = p.lane.group !== null && p.lane.objects > 1 ? `×${fmt.count(p.lane.objects)}` : "";
      ctx.textAlign = "left";
      if (tall >= 34) {
        ctx.fillStyle = selected ? accent : ink;
        ctx.fillText(laneLabel(ctx, p.lane.title, this.report.laneNames[p.lane.index], GUTTER - 20), 10, middle - 7);
        ctx.fillStyle = soft;
        ctx.fillText([many && `${fmt.count(p.lane.objects)} objects`, size].filter(Boolean).join(", "), 10, middle + 8);
        lastLabel = middle + 8;
      } else {
        ctx.fillStyle = selected ? accent : ink;
        const tail = [many, size].filter(Boolean).join("  ");
        const room = GUTTER - 28 - ctx.measureText(tail).width;
        ctx.fillText(laneLabel(ctx, p.lane.title, this.report.laneNames[p.lane.index], room), 10, middle);
        ctx.textAlign = "right";
        ctx.fillStyle = soft;
        ctx.fillText(tail, GUTTER - 10, middle);
      }
      if (tall > 22) {
        ctx.fillStyle = line;
        ctx.fillRect(0, bottom, GUTTER, 1);
      }
    }
  }

  /** Of an object of several only its own rows are outlined. */
  private selectedRows(p: Placed, top: number, bottom: number): [number, number] {
    const o = this.report.objects[this.selection.object ?? -1];
    if (!o || p.lane.objects === 1) return [top, bottom];
    const at = (page: number) => top + ((page / p.lane.pages_per_bin) / p.lane.address_bins) * (bottom - top);
    return [at(o.lane_page), Math.max(at(o.lane_page) + 2, at(o.lane_page + (o.pages ?? 0)))];
  }

  private drawScrollBar(ctx: CanvasRenderingContext2D, width: number, height: number): void {
    const window = height / this.view.scale;
    if (window >= this.view.total - 0.5) return;
    ctx.fillStyle = cssVar("--line");
    ctx.fillRect(width - 6, 0, 5, height);
    ctx.fillStyle = cssVar("--ink-3");
    ctx.fillRect(width - 6, (this.view.y / this.view.total) * height, 5, Math.max(14, (window / this.view.total) * height));
  }

  /** The drawn cell under a CSS position, or null. */
  cellAt(x: number, y: number): Cell | null {
    const { ratio } = { ratio: window.devicePixelRatio || 1 };
    const p = this.view.laneAt(y);
    if (!p || x < GUTTER || x >= GUTTER + this.plotWidth) return null;
    const { top, bottom } = this.laneBox(p, ratio);
    const f = Math.max(0, Math.min(0.999999, (y * ratio - top) / (bottom - top)));
    const level = this.addressLevel(p, ratio);
    const a0 = (Math.floor(f * p.lane.address_bins) >> level) << level;
    const bins = this.report.bins.count;
    const t = Math.min(bins - 1, indexAt(this.report.binEdges, this.timeAt(x)));
    const t0 = (t >> this.timeLevel) << this.timeLevel;
    return inspect(p.lane, bins, a0, Math.min(p.lane.address_bins, a0 + (1 << level)), t0, Math.min(bins, t0 + (1 << this.timeLevel)));
  }

  objectAt(x: number, y: number): Selection {
    const p = this.view.laneAt(y);
    if (!p) return { group: null, object: null, lane: null };
    const { group } = p.lane;
    const sole = group !== null && p.lane.objects === 1 ? this.report.members[group]?.[0] ?? null : null;
    if (x < GUTTER || sole !== null) return { group, object: sole, lane: p.lane.index };
    const cell = this.cellAt(x, y);
    const object = cell ? objectsOf(this.report, cell)[0] ?? null : null;
    return { group: object === null ? group : this.report.objects[object].group, object, lane: p.lane.index };
  }
}

/** Where the room is short, the place in brackets goes before the name does. */
function laneLabel(ctx: CanvasRenderingContext2D, full: string, short: string, room: number): string {
  const title = fmt.name(full);
  return ctx.measureText(title).width <= room ? title : ellipsis(ctx, short, room);
}
