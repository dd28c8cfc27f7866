import type { Palette } from "./colors";
import { blank, cssVar, ellipsis, font, h } from "./dom";
import { Floating } from "./floating";
import * as fmt from "./format";
import type { Filters } from "./filter";
import type { ObjectSharing, SharingUse } from "./payload";
import { type Hues, amount, marks, shortName, threadLabel } from "./sharing";

const ROW = 30, TOP = 6, AXIS = 24, RIGHT = 10, MAX_ROWS = 16;
const FONT = font(12);

interface Cell { key: number; weight: number }
interface Row { label: string; mark: string; weight: number; bins: Cell[][]; most: number }
type By = "objects" | "threads";

/** Event flows: over time, who uses an object, or what a thread uses. Each lane is scaled to its own largest bin. */
export class Lanes {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { class: "lanes", role: "img", "aria-label": "Event flow over time" });
  private readonly key = h("div", { class: "threads pad" });
  private readonly tip = new Floating();
  private by: By = "objects";
  private rows: Row[] = [];
  private palette: Palette | null = null;
  private gutter = 200;
  private readonly marks: string[];

  constructor(readonly sharing: SharingUse, readonly hues: Hues, readonly filters: Filters, readonly passes: (o: ObjectSharing) => boolean) {
    this.marks = marks(sharing);
    const choice = (value: By, text: string) => h("label", {}, h("input", { type: "radio", name: "flow", value, checked: value === this.by, onchange: () => { this.by = value; this.arrange(); this.draw(); } }), h("span", {}, text));
    this.element = h("section", { class: "card wide", "aria-label": "Event flow" },
      h("div", { class: "toolbar" }, h("h2", {}, "Event flow"),
        h("fieldset", { class: "choice" }, h("legend", {}, "A lane is"), choice("objects", "an object"), choice("threads", "a thread"))),
      this.key, this.canvas,
      h("p", { class: "note pad" }, `Height is the weight in a bin of ${fmt.time(sharing.axis!.bin_ns / 1000, 1000)}, each lane against its own largest. ${sharing.weight}`),
      this.tip.element);
    this.canvas.addEventListener("pointermove", e => this.hover(e));
    this.canvas.addEventListener("pointerleave", () => this.tip.hide());
    this.arrange();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** Shows what passes the filters now. */
  refresh(): void {
    this.arrange();
    this.draw();
  }

  private arrange(): void {
    const { objects, threads, axis } = this.sharing;
    const empty = (): Cell[][] => Array.from({ length: axis!.bins }, () => []);
    if (this.by === "objects") {
      this.rows = objects.map((o, i) => ({ o, i })).filter(({ o }) => this.passes(o)).slice(0, MAX_ROWS).map(({ o, i }) => {
        const bins = empty();
        for (const c of o.flow) bins[c.bin]?.push({ key: c.thread, weight: c.weight });
        return { label: shortName(o.name), mark: this.marks[i], weight: o.weight, bins, most: 0 };
      });
    } else {
      const all = threads.map(t => ({ label: threadLabel(t), mark: "", weight: t.weight, bins: empty(), most: 0 }));
      objects.forEach((o, i) => {
        if (this.passes(o)) for (const c of o.flow) all[c.thread]?.bins[c.bin]?.push({ key: i, weight: c.weight });
      });
      this.rows = all.filter((_, i) => this.filters.thread(threads[i].pid, threads[i].tid)).slice(0, MAX_ROWS);
    }
    for (const row of this.rows) {
      for (const bin of row.bins) {
        bin.sort((a, b) => a.key - b.key);
        row.most = Math.max(row.most, bin.reduce((sum, c) => sum + c.weight, 0));
      }
    }
    this.canvas.style.height = `${TOP + this.rows.length * ROW + AXIS}px`;
  }

  private name(key: number): string {
    return this.by === "objects" ? threadLabel(this.sharing.threads[key]) : shortName(this.sharing.objects[key].name) + this.marks[key];
  }

  private colour(key: number): string {
    return this.by === "objects" ? this.hues.thread(key) : this.palette!.threadCss(key);
  }

  theme(palette: Palette): void {
    this.palette = palette;
    this.draw();
  }

  draw(): void {
    if (!this.palette) return;
    const keys = this.by === "objects" ? this.sharing.threads.length : this.sharing.objects.length;
    const chips = Array.from({ length: Math.min(keys, 12) }, (_, i) => h("span", { class: "chip" }, h("i", { style: `background:${this.colour(i)}` }), this.name(i)));
    this.key.replaceChildren(...chips, ...(keys > 12 ? [h("span", { class: "sub" }, `and ${keys - 12} more, in the same colours again`)] : []));
    const { ctx, width } = blank(this.canvas);
    this.gutter = Math.min(208, Math.max(110, width * 0.22));
    ctx.font = FONT;
    const axis = this.sharing.axis!, w = Math.max(1, width - this.gutter - RIGHT), step = w / axis.bins;
    this.rows.forEach((row, i) => {
      const top = TOP + i * ROW, base = top + ROW - 5;
      ctx.fillStyle = cssVar("--page");
      ctx.fillRect(this.gutter, top, w, ROW - 5);
      ctx.textAlign = "left";
      ctx.textBaseline = "middle";
      ctx.fillStyle = cssVar("--ink");
      const room = this.gutter - 62 - (row.mark ? ctx.measureText(row.mark).width : 0);
      ctx.fillText(ellipsis(ctx, row.label, room) + row.mark, 10, top + ROW / 2 - 2);
      ctx.textAlign = "right";
      ctx.fillStyle = cssVar("--ink-2");
      ctx.fillText(fmt.share(row.weight / Math.max(1, this.sharing.total)), this.gutter - 8, top + ROW / 2 - 2);
      row.bins.forEach((bin, b) => {
        let y = base;
        const x = this.gutter + b * step;
        for (const cell of bin) {
          const hgt = (cell.weight / Math.max(1, row.most)) * (ROW - 6);
          y -= hgt;
          ctx.fillStyle = this.colour(cell.key);
          ctx.fillRect(x, y, Math.max(0.8, step - (step > 4 ? 0.6 : 0)), hgt);
        }
      });
    });
    this.drawAxis(ctx, w, TOP + this.rows.length * ROW);
  }

  private drawAxis(ctx: CanvasRenderingContext2D, w: number, y: number): void {
    const axis = this.sharing.axis!, span = axis.bins * axis.bin_ns / 1000, tick = fmt.timeStep(span, w / 110);
    ctx.fillStyle = cssVar("--ink-2");
    ctx.strokeStyle = cssVar("--line-2");
    ctx.textAlign = "center";
    for (let t = 0; t <= span; t += tick) {
      const x = this.gutter + (t / span) * w;
      ctx.beginPath(); ctx.moveTo(Math.round(x) + 0.5, y - 2); ctx.lineTo(Math.round(x) + 0.5, y + 3); ctx.stroke();
      const label = fmt.time(t, tick), half = ctx.measureText(label).width / 2;
      ctx.fillText(label, Math.max(this.gutter + half, Math.min(x, this.gutter + w - half)), y + 13);
    }
  }

  private hover(e: PointerEvent): void {
    const box = this.canvas.getBoundingClientRect(), axis = this.sharing.axis!;
    const x = e.clientX - box.left - this.gutter, w = box.width - this.gutter - RIGHT;
    const row = this.rows[Math.floor((e.clientY - box.top - TOP) / ROW)];
    const b = Math.floor((x / w) * axis.bins);
    if (!row || x < 0 || b >= axis.bins) { this.tip.hide(); return; }
    const at = (bin: number) => fmt.time(bin * axis.bin_ns / 1000, 1e4);
    const cells = [...row.bins[b]].sort((p, q) => q.weight - p.weight).slice(0, 6);
    const all = row.bins[b].reduce((sum, c) => sum + c.weight, 0);
    this.tip.show(e, row.label + row.mark, ["time", `${at(b)} to ${at(b + 1)}`], ["use", all ? amount(this.sharing, all) : "none seen"],
      ...cells.map((c): [string, string] => [this.name(c.key), fmt.share(c.weight / all)]));
  }
}
