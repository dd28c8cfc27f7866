import { h } from "./dom";
import { Floating } from "./floating";
import * as fmt from "./format";
import type { Memory, Moment } from "./payload";

const LEFT = 66, RIGHT = 14, TOP = 12, BOTTOM = 26, HEIGHT = 230;
/** The browser knows its name: the page itself names no host. */
const SVG = (() => {
  const template = document.createElement("template");
  template.innerHTML = "<svg></svg>";
  return template.content.firstElementChild!.namespaceURI;
})();

interface Series { key: string; name: string; why: string; of(m: Moment): number | null }
const SERIES: Series[] = [
  { key: "process", name: "resident, process", why: "all anonymous memory of the process, its stacks and what it maps itself with it", of: m => m.resident_bytes },
  { key: "resident", name: "resident, allocator", why: "resident memory of what the allocator has mapped", of: m => m.heap_resident_bytes },
  { key: "usable", name: "usable", why: "what the blocks have room for", of: m => m.usable_bytes },
  { key: "requested", name: "asked for", why: "what the program had asked for and not freed", of: m => m.requested_bytes },
];

function svg(tag: string, attributes: Record<string, string | number>, ...children: (Node | string)[]): SVGElement {
  const element = document.createElementNS(SVG, tag) as SVGElement;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

/** Memory over time: lines for what was asked for and what it takes, with a cursor that reads them. */
export class MemoryChart {
  readonly element: HTMLElement;
  private readonly picture = svg("svg", { class: "chart", tabindex: 0, role: "application", "aria-roledescription": "time line" });
  private readonly tip = new Floating();
  private readonly said = h("span", { class: "sr", "aria-live": "polite" });
  private readonly moments: Moment[];
  private readonly series: Series[];
  private readonly start: number;
  private readonly end: number;
  private readonly most: number;
  private cursor: SVGElement | null = null;
  private at = 0;
  private width = 0;

  constructor(memory: Memory, title: string) {
    this.moments = memory.over_time;
    this.series = SERIES.filter(s => this.moments.some(m => s.of(m) !== null));
    this.start = this.moments[0]?.time_ns ?? 0;
    this.end = Math.max(this.start + 1, this.moments.at(-1)?.time_ns ?? 0);
    this.most = Math.max(1, ...this.moments.flatMap(m => this.series.map(s => s.of(m) ?? 0)));
    this.picture.setAttribute("aria-label", `${title}: ${this.moments.length} moments in ${fmt.duration(this.end - this.start)}, at most ${fmt.bytes(this.most)}. Arrow keys read them.`);
    const legend = h("div", { class: "keys-of" }, ...[...this.series].reverse().map(s => h("span", { class: "chip", title: s.why }, h("i", { class: `line s-${s.key}` }), s.name)));
    const enough = this.moments.length > 1;
    this.element = h("section", { class: "card wide", "aria-label": title },
      h("div", { class: "toolbar" }, h("h2", {}, title), enough && legend),
      enough ? (this.picture as unknown as HTMLElement) : h("p", { class: "note pad" }, "The run was too short for a time line."),
      this.said, this.tip.element);
    this.picture.addEventListener("pointermove", e => this.hover(e as PointerEvent));
    this.picture.addEventListener("pointerleave", () => this.leave());
    this.picture.addEventListener("blur", () => this.leave());
    this.picture.addEventListener("keydown", e => this.key(e as KeyboardEvent));
    if (enough) new ResizeObserver(() => this.draw()).observe(this.picture);
  }

  private x(ns: number): number {
    return LEFT + ((ns - this.start) / (this.end - this.start)) * Math.max(1, this.width - LEFT - RIGHT);
  }

  private y(bytes: number): number {
    return HEIGHT - BOTTOM - (bytes / this.most) * (HEIGHT - BOTTOM - TOP);
  }

  private draw(): void {
    const width = this.picture.getBoundingClientRect().width;
    if (width < 1 || width === this.width) return;
    this.width = width;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.picture.replaceChildren(...this.axes(), ...this.series.flatMap(s => this.line(s)));
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, x1: 0, x2: 0, visibility: "hidden" });
    this.picture.append(this.cursor);
  }

  private axes(): SVGElement[] {
    const parts: SVGElement[] = [];
    // Steps in powers of two: MiB stay whole numbers.
    const step = 2 ** Math.ceil(Math.log2(Math.max(1, this.most / 4)));
    for (let bytes = 0; bytes <= this.most; bytes += step) {
      const y = Math.round(this.y(bytes)) + 0.5;
      parts.push(svg("line", { class: "rule", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }));
      parts.push(svg("text", { x: LEFT - 8, y: y + 3.5, "text-anchor": "end" }, fmt.bytes(bytes)));
    }
    const tick = fmt.timeStep((this.end - this.start) / 1e3, (this.width - LEFT) / 100) * 1e3;
    for (let ns = Math.ceil(this.start / tick) * tick; ns <= this.end; ns += tick) {
      const x = Math.round(this.x(ns)) + 0.5;
      parts.push(svg("line", { class: "rule", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM + 4 }));
      parts.push(svg("text", { x: Math.min(x, this.width - RIGHT - 8), y: HEIGHT - 8, "text-anchor": "middle" }, fmt.time(ns / 1e3, tick / 1e3)));
    }
    return parts;
  }

  private line(s: Series): SVGElement[] {
    const known = this.moments.map(m => [m.time_ns, s.of(m)] as const).filter((p): p is readonly [number, number] => p[1] !== null);
    if (!known.length) return [];
    // Figures stay until the next ones.
    const path = known.map(([ns, bytes], i) => `${i ? `H${this.x(ns).toFixed(1)}V` : `M${this.x(ns).toFixed(1)} `}${this.y(bytes).toFixed(1)}`).join("");
    const line = svg("path", { class: `series s-${s.key}`, d: path });
    if (s.key !== "requested") return [line];
    const base = this.y(0).toFixed(1);
    return [svg("path", { class: "area", d: `${path}V${base}H${this.x(known[0][0]).toFixed(1)}Z` }), line];
  }

  private hover(e: PointerEvent): void {
    const ns = this.start + ((e.clientX - this.picture.getBoundingClientRect().left - LEFT) / Math.max(1, this.width - LEFT - RIGHT)) * (this.end - this.start);
    // The last moment that is no later.
    const after = this.moments.findIndex(m => m.time_ns > ns);
    this.read(Math.max(0, after < 0 ? this.moments.length - 1 : after - 1), e);
  }

  private key(e: KeyboardEvent): void {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[e.key];
    if (e.key === "Escape") this.leave();
    if (step === undefined) return;
    e.preventDefault();
    this.at = Math.max(0, Math.min(this.moments.length - 1, this.at + step));
    const frame = this.picture.getBoundingClientRect();
    const m = this.moments[this.at];
    this.read(this.at, { clientX: frame.left + this.x(m.time_ns), clientY: frame.top + this.y(m.requested_bytes ?? 0) });
    this.said.textContent = `${fmt.duration(m.time_ns)}: ${this.figures(m).map(([name, text]) => `${name} ${text}`).join(", ")}`;
  }

  private figures(m: Moment): [string, string][] {
    return [...this.series].reverse().map(s => [s.name, fmt.maybe(s.of(m), fmt.bytes)]);
  }

  private read(i: number, at: { clientX: number; clientY: number }): void {
    const m = this.moments[i];
    if (!m) return;
    this.at = i;
    this.cursor?.setAttribute("visibility", "visible");
    for (const end of ["x1", "x2"]) this.cursor?.setAttribute(end, this.x(m.time_ns).toFixed(1));
    this.tip.show(at, `after ${fmt.duration(m.time_ns)}`, ...this.figures(m));
  }

  private leave(): void {
    this.tip.hide();
    this.cursor?.setAttribute("visibility", "hidden");
  }
}
