import { blank, cssVar, font } from "./dom";
import * as fmt from "./format";
import { PAGE_BYTES, type Report } from "./payload";
import { GUTTER, MARGIN, type View, indexAt } from "./view";

const TOP = 10, BOTTOM = 24;

/** Pages touched per interval over time, with the time axis that the map shares. */
export class Curve {
  constructor(readonly canvas: HTMLCanvasElement, readonly report: Report, readonly view: View) {}

  /** The brushed span, in microseconds, while one is being dragged. */
  brush: [number, number] | null = null;

  draw(): void {
    const { ctx, width, height } = blank(this.canvas);
    const w = Math.max(1, width - GUTTER - MARGIN), base = height - BOTTOM;
    ctx.font = font(11);
    const { workingSet, resident } = this.report;
    const max = Math.max(1, peak(workingSet), resident ? peak(resident) : 0);
    this.drawGrid(ctx, w, base, max);
    if (resident) this.drawSeries(ctx, resident, w, base, max, cssVar("--resident"), false);
    this.drawSeries(ctx, workingSet, w, base, max, cssVar("--accent"), true);
    if (this.brush) {
      const x = (t: number) => GUTTER + ((t - this.view.t0) / (this.view.t1 - this.view.t0)) * w;
      const [a, b] = this.brush.map(x);
      ctx.fillStyle = cssVar("--accent-soft");
      ctx.globalAlpha = 0.7;
      ctx.fillRect(Math.min(a, b), TOP, Math.abs(b - a), base - TOP);
      ctx.globalAlpha = 1;
    }
    this.drawLabels(ctx);
  }

  private drawLabels(ctx: CanvasRenderingContext2D): void {
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    const rows: [string, string, string][] = [["Working set", "touched per interval", "--accent"]];
    if (this.report.resident) rows.push(["Resident", this.report.processes.length > 1 ? "summed over processes" : "held in memory", "--resident"]);
    rows.forEach(([name, what, colour], i) => {
      const y = TOP + 8 + i * 34;
      ctx.fillStyle = cssVar(colour);
      ctx.fillRect(10, y - 1.5, 12, 3);
      ctx.fillStyle = cssVar("--ink");
      ctx.fillText(name, 28, y);
      ctx.fillStyle = cssVar("--ink-2");
      ctx.fillText(what, 28, y + 14);
    });
    const { t0, t1 } = this.view, step = (t1 - t0) / 100;
    ctx.fillStyle = cssVar("--ink-2");
    if (this.view.zoomed) ctx.fillText(`${fmt.time(t0, step)} – ${fmt.time(t1, step)}`, 10, this.canvas.getBoundingClientRect().height - 10);
  }

  private drawGrid(ctx: CanvasRenderingContext2D, w: number, base: number, max: number): void {
    const line = cssVar("--line"), soft = cssVar("--ink-2");
    ctx.fillStyle = soft;
    ctx.strokeStyle = line;
    ctx.lineWidth = 1;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    const bytes = max * PAGE_BYTES;
    // Steps in powers of two: MiB labels stay whole numbers.
    const step = 2 ** Math.ceil(Math.log2(Math.max(1, bytes / 4)));
    for (let v = 0; v <= bytes; v += step) {
      const y = Math.round(base - (v / bytes) * (base - TOP)) + 0.5;
      ctx.beginPath(); ctx.moveTo(GUTTER, y); ctx.lineTo(GUTTER + w, y); ctx.stroke();
      ctx.fillText(fmt.bytes(v), GUTTER - 10, Math.max(8, y - (v === 0 ? 1 : 0)));
    }
    const span = this.view.t1 - this.view.t0, tick = fmt.timeStep(span, w / 110);
    ctx.textAlign = "center";
    for (let t = Math.ceil(this.view.t0 / tick) * tick; t <= this.view.t1; t += tick) {
      const x = GUTTER + ((t - this.view.t0) / span) * w;
      ctx.beginPath(); ctx.moveTo(Math.round(x) + 0.5, TOP); ctx.lineTo(Math.round(x) + 0.5, base + 5); ctx.stroke();
      const label = fmt.time(t, tick), half = ctx.measureText(label).width / 2;
      ctx.fillText(label, Math.max(GUTTER + half, Math.min(x, GUTTER + w - half)), base + 14);
    }
  }

  /** Per column the range of values in it: no spike is lost when many intervals share a pixel. */
  private drawSeries(ctx: CanvasRenderingContext2D, values: Float64Array, w: number, base: number, max: number, colour: string, filled: boolean): void {
    const { edges } = this.report;
    const { t0, t1 } = this.view;
    const n = values.length;
    if (!n) return;
    const x = (t: number) => GUTTER + ((t - t0) / (t1 - t0)) * w;
    const y = (v: number) => base - (v / max) * (base - TOP);
    const first = Math.min(n - 1, indexAt(edges, t0)), last = Math.min(n - 1, indexAt(edges, t1));
    ctx.save();
    ctx.beginPath(); ctx.rect(GUTTER, 0, w, base + 1); ctx.clip();
    const upper: [number, number][] = [], lower: [number, number][] = [];
    const perPixel = (last - first + 1) / w;
    if (perPixel <= 1) {
      for (let i = first; i <= last; i++) {
        upper.push([x(edges[i]), y(values[i])], [x(edges[i + 1] ?? edges[i]), y(values[i])]);
      }
    } else {
      let i = first;
      for (let px = 0; px < w; px++) {
        const end = t0 + ((px + 1) / w) * (t1 - t0);
        let low = Infinity, high = -Infinity;
        do { low = Math.min(low, values[i]); high = Math.max(high, values[i]); i++; } while (i <= last && edges[i] < end);
        i = Math.min(i, last);
        upper.push([GUTTER + px + 0.5, y(high)]);
        lower.push([GUTTER + px + 0.5, y(low)]);
      }
    }
    const trace = (points: [number, number][]) => points.forEach(([px, py], i) => (i ? ctx.lineTo(px, py) : ctx.moveTo(px, py)));
    if (filled) {
      ctx.beginPath(); trace(upper);
      ctx.lineTo(upper[upper.length - 1][0], base); ctx.lineTo(upper[0][0], base);
      ctx.fillStyle = colour; ctx.globalAlpha = 0.16; ctx.fill();
      if (lower.length) {
        ctx.beginPath(); trace(upper); trace2(ctx, lower);
        ctx.globalAlpha = 0.38; ctx.fill();
      }
      ctx.globalAlpha = 1;
    }
    ctx.beginPath(); trace(upper);
    ctx.strokeStyle = colour; ctx.lineWidth = 1.4; ctx.lineJoin = "round"; ctx.stroke();
    ctx.restore();
  }
}

function trace2(ctx: CanvasRenderingContext2D, points: [number, number][]): void {
  for (let i = points.length - 1; i >= 0; i--) ctx.lineTo(points[i][0], points[i][1]);
}

export function peak(values: Float64Array): number {
  let max = 0;
  for (const v of values) if (v > max) max = v;
  return max;
}
