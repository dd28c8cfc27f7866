import { cssVar, ellipsis, fit, font, h } from "./dom";
import { change, nameOf } from "./diff";
import { Floating } from "./floating";
import * as fmt from "./format";
import { PAGE_BYTES, type DiffCells, type DiffLane, type DiffPage, type Unpacked } from "./payload";
import type { Theme } from "./theme";

/** Names take so much of the width, at most. */
const GUTTER = 320, GUTTER_SHARE = 0.34, MARGIN = 12, LANE = 40, GAP = 6, TOP = 24;
/** Rows that are shown at first. */
const FEW = 16;
const gutterOf = (width: number) => Math.min(GUTTER, Math.round(width * GUTTER_SHARE));
type Shown = "both" | "a" | "b";
type Rgb = readonly [number, number, number];
/** A alone, both alike, B alone: told apart by any eye, and by their lightness from the ground. */
const COLOURS: Record<Theme, { ground: Rgb; a: Rgb; both: Rgb; b: Rgb }> = {
  dark: { ground: [26, 32, 39], a: [77, 163, 255], both: [214, 205, 222], b: [255, 150, 60] },
  light: { ground: [237, 240, 244], a: [15, 98, 201], both: [74, 66, 84], b: [214, 92, 8] },
};
const mix = (x: Rgb, y: Rgb, f: number): Rgb => [0, 1, 2].map(i => Math.round(x[i] + (y[i] - x[i]) * f)) as unknown as Rgb;

const SIDES = ["a", "b"] as const;
const SHADES = 65;

/** The colour of how much A and B touched, in steps of 4 of 255, and that of where nothing is. */
function table(theme: Theme): Uint32Array {
  const { ground, a, both, b } = COLOURS[theme];
  const pack = ([r, g, bl]: Rgb) => ((255 << 24) | (bl << 16) | (g << 8) | r) >>> 0;
  const colours = new Uint32Array(SHADES * SHADES + 1);
  for (let va = 0; va < SHADES; va++) {
    for (let vb = 0; vb < SHADES; vb++) {
      const most = Math.max(va, vb) / (SHADES - 1);
      // How much of it is B's: what both touch alike is neither's colour.
      const t = most ? vb / (va + vb) : 0;
      const hue = t < 0.5 ? mix(a, both, t * 2) : mix(both, b, t * 2 - 1);
      colours[va * SHADES + vb] = pack(most ? mix(ground, hue, 0.35 + 0.65 * most) : ground);
    }
  }
  colours[SHADES * SHADES] = pack(mix(ground, theme === "dark" ? [0, 0, 0] : [255, 255, 255], 0.45));
  return colours;
}

/** The maps of both sides over one another: time to the right, a row for the objects of each site. */
export class DiffMap {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { class: "diff-map", tabindex: 0, role: "img", "aria-label": "Maps of both sides over one another" });
  private readonly tip = new Floating();
  private readonly key = h("span", { class: "keys-of" });
  private readonly heat: { a: Uint8Array | null; b: Uint8Array | null }[];
  private shown: Shown = "both";
  /** Whether both recordings take the whole width. */
  private stretched = false;
  private now: Theme = "dark";
  private lanes: DiffLane[];

  constructor(private readonly page: DiffPage, data: Unpacked) {
    this.heat = page.map.lanes.map(l => ({ a: l.a && data.u8(l.a.heat), b: l.b && data.u8(l.b.heat) }));
    const all = page.map.lanes;
    this.lanes = all.slice(0, all.length > FEW + 4 ? FEW : all.length);
    this.size();
    const more = all.length > this.lanes.length && h("button", { type: "button", class: "field more-rows", onclick: () => {
      this.lanes = this.lanes.length < all.length ? all : all.slice(0, FEW);
      if (more) more.textContent = this.lanes.length < all.length ? `Show all ${all.length} rows` : `Show the first ${FEW} rows`;
      this.size();
      this.draw();
    } }, `Show all ${all.length} rows`);
    const radio = (name: string, legend: string, options: [string, string][], chosen: string, choose: (value: string) => void) =>
      h("fieldset", { class: "choice" }, h("legend", {}, legend), ...options.map(([value, label]) =>
        h("label", {}, h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) }), h("span", {}, label))));
    this.element = h("section", { class: "card wide", "aria-label": "The maps" },
      h("div", { class: "toolbar" }, h("h2", {}, "The maps over one another"),
        radio("diff-shown", "Show", [["both", "Both"], ["a", "A"], ["b", "B"]], this.shown, v => { this.shown = v as Shown; this.draw(); }),
        radio("diff-time", "Time", [["as-is", "As recorded"], ["stretched", "Each from its beginning to its end"]], "as-is", v => { this.stretched = v === "stretched"; this.draw(); }),
        this.key),
      h("div", { class: "scroll" }, this.canvas), more, this.tip.element);
    this.canvas.addEventListener("pointermove", e => this.hover(e));
    this.canvas.addEventListener("pointerleave", () => this.tip.hide());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  private size(): void {
    this.canvas.style.height = `${TOP + this.lanes.length * (LANE + GAP)}px`;
  }

  theme(theme: Theme): void {
    this.now = theme;
    const { a, both, b } = COLOURS[theme];
    const chip = (colour: Rgb, label: string) => h("span", { class: "chip" }, h("i", { style: `background: rgb(${colour.join(" ")})` }), label);
    this.key.replaceChildren(chip(a, "touched in A"), chip(both, "in both"), chip(b, "in B"));
    this.draw();
  }

  private duration(side: "a" | "b"): number {
    return side === "a" ? this.page.map.a_duration_ns : this.page.map.b_duration_ns;
  }
  private get longest(): number { return Math.max(1, this.duration("a"), this.duration("b")); }

  /** The column of a side at a share of the width; -1 behind its end. */
  private column(side: "a" | "b", share: number): number {
    const at = this.stretched ? share : (share * this.longest) / Math.max(1, this.duration(side));
    return at < 1 ? Math.floor(at * this.page.map.columns) : -1;
  }

  /** The part of a side's pages at a share of a row's height; -1 behind the last. Rows of both have one scale. */
  private bin(lane: DiffLane, cells: DiffCells, share: number): number {
    const most = Math.max(lane.a?.pages ?? 0, lane.b?.pages ?? 0, 1);
    const at = (share * most) / Math.max(1, cells.pages);
    return at < 1 ? Math.floor(at * cells.address_bins) : -1;
  }

  /** The square root of the share touched, 0 to 255; null where the side has nothing there. */
  private value(at: number, side: "a" | "b", x: number, y: number): number | null {
    const lane = this.page.map.lanes[at], cells = lane[side], heat = this.heat[at][side];
    if (!cells || !heat) return null;
    const column = this.column(side, x), bin = this.bin(lane, cells, y);
    return column < 0 || bin < 0 ? null : heat[bin * this.page.map.columns + column];
  }

  draw(): void {
    const { width, ratio } = fit(this.canvas), gutter = gutterOf(width);
    const ctx = this.canvas.getContext("2d", { alpha: false })!;
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.fillStyle = cssVar("--ground");
    ctx.fillRect(0, 0, this.canvas.width, this.canvas.height);
    const plot = Math.max(1, width - gutter - MARGIN), w = Math.max(1, Math.round(plot * ratio)), hgt = Math.round(LANE * ratio);
    const image = new ImageData(w, hgt);
    const pixels = new Uint32Array(image.data.buffer);
    const columns = { a: new Int32Array(w), b: new Int32Array(w) };
    for (let x = 0; x < w; x++) for (const s of SIDES) columns[s][x] = this.shown === "both" || this.shown === s ? this.column(s, (x + 0.5) / w) : -1;
    const colours = table(this.now);
    this.lanes.forEach((_, at) => {
      this.paint(at, pixels, columns, w, hgt, colours);
      ctx.putImageData(image, Math.round(gutter * ratio), Math.round((TOP + at * (LANE + GAP)) * ratio));
    });
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.labels(ctx, gutter, plot);
  }

  private paint(at: number, pixels: Uint32Array, columns: { a: Int32Array; b: Int32Array }, w: number, hgt: number, colours: Uint32Array): void {
    const lane = this.page.map.lanes[at], { a, b } = this.heat[at], wide = this.page.map.columns;
    for (let y = 0; y < hgt; y++) {
      const share = (y + 0.5) / hgt;
      const rowA = lane.a ? this.bin(lane, lane.a, share) : -1, rowB = lane.b ? this.bin(lane, lane.b, share) : -1;
      for (let x = 0; x < w; x++) {
        const inA = rowA >= 0 && columns.a[x] >= 0, inB = rowB >= 0 && columns.b[x] >= 0;
        const va = inA ? a![rowA * wide + columns.a[x]] : 0, vb = inB ? b![rowB * wide + columns.b[x]] : 0;
        pixels[y * w + x] = inA || inB ? colours[((va + 3) >> 2) * SHADES + ((vb + 3) >> 2)] : colours[SHADES * SHADES];
      }
    }
  }

  private labels(ctx: CanvasRenderingContext2D, gutter: number, plot: number): void {
    this.lanes.forEach((lane, at) => {
      const row = this.page.objects.rows[lane.row], y = TOP + at * (LANE + GAP);
      const touched = row.figures.find(f => f.measure === "touched_bytes");
      ctx.textAlign = "left";
      ctx.textBaseline = "middle";
      ctx.fillStyle = cssVar("--ink");
      ctx.font = font(12);
      ctx.fillText(ellipsis(ctx, fmt.name(nameOf(row)), gutter - 22), 10, y + 12);
      ctx.fillStyle = cssVar("--ink-2");
      ctx.font = font(11);
      const is = row.a === null ? touched?.b : row.b === null ? touched?.a : null;
      const sizes = is ? [is, is].map(v => (v.median === null ? fmt.ABSENT : fmt.bytes(v.median))) : touched && [touched.a, touched.b].map(v => (v.median === null ? fmt.ABSENT : fmt.bytes(v.median)));
      const what = row.a === null ? "only in B" : row.b === null ? "only in A" : touched?.change === 0 ? "" : touched ? change(touched).replace(/^[^(]*\((.*)\)$/, "$1") : "";
      ctx.fillText(ellipsis(ctx, [sizes && (sizes[0] === sizes[1] ? `touched ${sizes[0]}` : `touched ${sizes[0]} → ${sizes[1]}`), what].filter(Boolean).join(", "), gutter - 22), 10, y + 28);
    });
    this.axis(ctx, gutter, plot);
  }

  private axis(ctx: CanvasRenderingContext2D, gutter: number, plot: number): void {
    ctx.fillStyle = cssVar("--ink-2");
    ctx.font = font(11);
    ctx.textAlign = "center";
    if (this.stretched) {
      for (const share of [0, 0.25, 0.5, 0.75, 1]) ctx.fillText(`${share * 100} %`, Math.min(gutter + share * plot, gutter + plot - 14), TOP / 2);
      return;
    }
    const span = this.longest / 1000, step = fmt.timeStep(span, plot / 110);
    for (let t = 0; t <= span; t += step) ctx.fillText(fmt.time(t, step), Math.min(gutter + (t / span) * plot, gutter + plot - 14), TOP / 2);
  }

  private hover(e: PointerEvent): void {
    const box = this.canvas.getBoundingClientRect();
    const gutter = gutterOf(box.width), plot = Math.max(1, box.width - gutter - MARGIN);
    const x = (e.clientX - box.left - gutter) / plot, down = e.clientY - box.top - TOP, at = Math.floor(down / (LANE + GAP)), y = (down - at * (LANE + GAP)) / LANE;
    const lane = this.lanes[at];
    if (!lane || x >= 1 || y >= 1) { this.tip.hide(); return; }
    const row = this.page.objects.rows[lane.row];
    const figures = row.figures.filter(f => ["touched_bytes", "page_touches", "access_ns", "bytes", "objects"].includes(f.measure));
    const here = (side: "a" | "b"): string => {
      const value = this.value(at, side, x, y);
      return value === null ? "nothing is there" : value === 0 ? "not touched here" : `a page here was touched in ${fmt.share((value / 255) ** 2)} of the intervals`;
    };
    const most = Math.max(lane.a?.pages ?? 0, lane.b?.pages ?? 0);
    const when = this.stretched ? fmt.share(x) : fmt.time((x * this.longest) / 1000, 1e4);
    const pairs: [string, string][] = x >= 0
      ? [["time", when], ["place", `${fmt.bytes(Math.floor(y * most) * PAGE_BYTES)} of ${fmt.bytes(most * PAGE_BYTES)}`], ["A", here("a")], ["B", here("b")]]
      : figures.map(f => [this.page.titles[f.measure], change(f)]);
    this.tip.show(e, nameOf(row), ...(row.how ? [["matched", row.how] as [string, string]] : []), ...pairs);
  }
}
