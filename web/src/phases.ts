import { blank, cssVar, ellipsis, font, h } from "./dom";
import * as fmt from "./format";
import type { PhaseBand, Report } from "./payload";
import { rows } from "./tip";
import { GUTTER, MARGIN, type View } from "./view";

const ROW = 18, PAD = 4, MAX_ROWS = 10;

/** The phases that the program named, over the time of the map: a row each. */
export class Phases {
  readonly canvas: HTMLCanvasElement;
  private readonly rows: PhaseBand[];
  private readonly omitted: number;

  constructor(readonly report: Report, readonly view: View) {
    const longest = [...report.phases].sort((a, b) => Number(a.is_event) - Number(b.is_event) || b.total_ns - a.total_ns).slice(0, MAX_ROWS);
    this.rows = report.phases.filter(p => longest.includes(p));
    this.omitted = report.phases.length - this.rows.length + report.omitted_phases;
    this.canvas = h("canvas", { class: "phases", role: "img", style: `height:${this.height}px`, "aria-label": `Phases that the program names: ${report.phases.map(p => p.name).join(", ")}. Click one to zoom to it.` });
  }

  private get height(): number { return this.rows.length * ROW + 2 * PAD + (this.omitted ? ROW : 0); }

  draw(): void {
    const { ctx, width } = blank(this.canvas);
    ctx.font = font(11);
    ctx.textBaseline = "middle";
    const w = Math.max(1, width - GUTTER - MARGIN), { t0, t1 } = this.view;
    const x = (t: number) => GUTTER + ((t - t0) / (t1 - t0)) * w;
    const soft = cssVar("--ink-2"), ink = cssVar("--ink"), line = cssVar("--line");
    this.rows.forEach((band, i) => {
      const top = PAD + i * ROW, middle = top + ROW / 2;
      const tail = band.is_event ? `×${fmt.count(band.times)}` : fmt.duration(band.total_ns);
      ctx.textAlign = "right";
      ctx.fillStyle = soft;
      ctx.fillText(tail, GUTTER - 10, middle);
      ctx.textAlign = "left";
      ctx.fillStyle = ink;
      ctx.fillText(ellipsis(ctx, band.name, GUTTER - 30 - ctx.measureText(tail).width), 10, middle);
      ctx.fillStyle = line;
      ctx.fillRect(GUTTER, Math.round(middle), w, 1);
      ctx.save();
      ctx.beginPath();
      ctx.rect(GUTTER, top, w, ROW);
      ctx.clip();
      ctx.fillStyle = cssVar(band.is_event ? "--resident" : "--usable");
      for (const [from, to] of band.spans) {
        if (to < t0 || from > t1) continue;
        // What is shorter than a pixel is seen still.
        const left = x(from), wide = Math.max(2, x(to) - left);
        ctx.fillRect(left, top + 3, wide, ROW - 6);
      }
      ctx.restore();
    });
    if (this.omitted) {
      ctx.fillStyle = soft;
      ctx.fillText(`and ${fmt.count(this.omitted)} more, in \`varve report --section phases\``, 10, PAD + (this.rows.length + 0.5) * ROW);
    }
  }

  rowAt(y: number): PhaseBand | null {
    return this.rows[Math.floor((y - PAD) / ROW)]?? null;
  }
}

export function phaseTip(band: PhaseBand, span: [number, number] | null): HTMLElement {
  const left = band.open === 1 && band.times === 1 ? "not ended by the program" : band.open ? `${fmt.count(band.open)} not ended by the program` : null;
  return h("div", {},
    h("strong", {}, band.name),
    h("span", { class: "sub" }, band.is_event ? "event that the program names" : "phase that the program names"),
    rows(
      [band.is_event ? "at" : "this run", span && (span[0] === span[1] ? fmt.time(span[0], 1e3) : `${fmt.time(span[0], 1e3)} to ${fmt.time(span[1], 1e3)}`)],
      [band.is_event ? "happened" : "ran", `${fmt.count(band.times)} ${band.times === 1 ? "time" : "times"}`],
      ["in all", band.is_event ? null : fmt.duration(band.total_ns)],
      ["left open", left],
      ["touched meanwhile", band.is_event || fmt.value(band.touched_pages) === null ? null : fmt.known(band.touched_pages, n => `${fmt.pageBytes(n)} (${fmt.pages(n)})`)],
    ));
}
