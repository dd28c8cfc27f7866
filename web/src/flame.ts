import { cssVar, ellipsis, fit, h } from "./dom";
import { Floating } from "./floating";
import * as fmt from "./format";
import type { SampleUse } from "./payload";

const ROW = 19;
const FONT = "11.5px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
/** Narrower boxes are drawn, but not one by one. */
const MIN_WIDTH = 0.7;
/** Rows in which no box is wider are not shown until somebody zooms in. */
const ROW_WIDTH = 12;

interface Node { name: string; value: number; self: number; depth: number; start: number; children: Node[]; parent: Node | null }

function tree(chains: SampleUse["flame"], weight: (c: SampleUse["flame"][number]) => number): Node {
  const make = (name: string, parent: Node | null): Node => ({ name, value: 0, self: 0, depth: parent ? parent.depth + 1 : 0, start: 0, children: [], parent });
  const root = make("all accesses", null);
  const index = new Map<Node, Map<string, Node>>();
  for (const chain of chains) {
    const value = weight(chain);
    let node = root;
    root.value += value;
    for (const name of chain.stack.split(";")) {
      let below = index.get(node);
      if (!below) index.set(node, below = new Map());
      let next = below.get(name);
      if (!next) { below.set(name, next = make(name, node)); node.children.push(next); }
      next.value += value;
      node = next;
    }
    node.self += value;
  }
  const place = (node: Node): void => {
    node.children.sort((a, b) => b.value - a.value);
    let at = node.start;
    for (const child of node.children) { child.start = at; at += child.value; place(child); }
  };
  place(root);
  return root;
}

function hash(text: string): number {
  let n = 2166136261;
  for (let i = 0; i < text.length; i++) n = Math.imul(n ^ text.charCodeAt(i), 16777619);
  return n >>> 0;
}

/** A flame graph, the callers above: the width of a box is the time of the accesses in it and below. */
export class Flame {
  readonly element: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  private readonly tip = new Floating();
  private readonly path = h("span", { class: "note grow" });
  private readonly back = h("button", { type: "button", class: "tool", disabled: true, onclick: () => this.zoom(this.root) }, "Show all");
  private readonly root: Node;
  private readonly timed: boolean;
  private shown: Node;
  private boxes: { node: Node; x: number; y: number; w: number }[] = [];

  constructor(samples: SampleUse) {
    this.timed = samples.time_ns !== null;
    this.root = tree(samples.flame, c => (this.timed ? c.time_ns ?? 0 : c.samples));
    this.shown = this.root;
    this.canvas = h("canvas", {
      class: "flame", tabindex: 0, role: "img",
      "aria-label": `Flame graph of ${samples.flame.length} call chains. Click a function to see it alone; Escape shows all. The table of lines below has the same figures.`,
    });
    this.element = h("section", { class: "card wide", "aria-label": "Flame graph" },
      h("div", { class: "toolbar" }, h("h2", {}, this.timed ? "Flame graph of the time at accesses" : "Flame graph of samples"), this.path, this.back),
      this.canvas, h("p", { class: "note pad" }, this.timed ? "Width is time at the instruction, not a number of accesses. Callers stand above. Click to zoom in." : samples.weight), this.tip.element);
    this.canvas.addEventListener("pointermove", e => this.hover(e));
    this.canvas.addEventListener("pointerleave", () => this.tip.hide());
    this.canvas.addEventListener("click", e => { const hit = this.at(e); if (hit) this.zoom(hit); });
    this.canvas.addEventListener("keydown", e => { if (e.key === "Escape") this.zoom(this.root); });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  private zoom(node: Node): void {
    this.shown = node;
    this.tip.hide();
    (this.back as HTMLButtonElement).disabled = node === this.root;
    this.path.textContent = node === this.root ? "" : `${node.name}: ${fmt.share(node.value / this.root.value)}`;
    this.draw();
  }

  private depth(node: Node): number {
    const least = this.shown.value / Math.max(1, this.canvas.clientWidth) * ROW_WIDTH;
    return node.children.reduce((most, c) => (c.value < least ? most : Math.max(most, 1 + this.depth(c))), 0);
  }

  draw(): void {
    const above: Node[] = [];
    for (let n = this.shown.parent; n; n = n.parent) above.unshift(n);
    const rows = above.length + 1 + this.depth(this.shown);
    this.canvas.style.height = `${rows * ROW + 2}px`;
    const { width, height, ratio } = fit(this.canvas);
    const ctx = this.canvas.getContext("2d", { alpha: false })!;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = cssVar("--ground");
    ctx.fillRect(0, 0, width, height);
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    this.boxes = [];
    const dark = document.documentElement.dataset.theme === "dark";
    above.forEach((node, i) => this.box(ctx, node, 0, i * ROW, width, dark, true));
    const scale = width / Math.max(1, this.shown.value);
    const walk = (node: Node, row: number): void => {
      const w = node.value * scale;
      if (w < MIN_WIDTH || row >= rows) return;
      this.box(ctx, node, (node.start - this.shown.start) * scale, row * ROW, w, dark, false);
      for (const child of node.children) walk(child, row + 1);
    };
    walk(this.shown, above.length);
  }

  private box(ctx: CanvasRenderingContext2D, node: Node, x: number, y: number, w: number, dark: boolean, faint: boolean): void {
    const n = hash(node.name), hue = 12 + n % 44, spread = (n >> 8) % 10;
    const root = node === this.root;
    ctx.globalAlpha = faint ? 0.5 : 1;
    ctx.fillStyle = root ? cssVar("--line-2") : dark ? `hsl(${hue} 62% ${32 + spread}%)` : `hsl(${hue} 82% ${72 + spread}%)`;
    ctx.fillRect(x, y, Math.max(MIN_WIDTH, w - 1), ROW - 1);
    if (w > 26) {
      ctx.fillStyle = root ? cssVar("--ink") : dark ? "#fff4e6" : "#2a1a08";
      ctx.textAlign = "left";
      ctx.fillText(ellipsis(ctx, node.name, w - 9), x + 4, y + ROW / 2);
    }
    ctx.globalAlpha = 1;
    this.boxes.push({ node, x, y, w });
  }

  private at(e: MouseEvent): Node | null {
    const box = this.canvas.getBoundingClientRect();
    const x = e.clientX - box.left, y = e.clientY - box.top;
    return this.boxes.find(b => x >= b.x && x < b.x + b.w && y >= b.y && y < b.y + ROW)?.node ?? null;
  }

  private hover(e: PointerEvent): void {
    const node = this.at(e);
    this.canvas.style.cursor = node ? "pointer" : "default";
    if (!node) { this.tip.hide(); return; }
    const value = (v: number) => (this.timed ? fmt.time(v / 1000, 1000) : `${fmt.count(v)} samples`);
    this.tip.show(e, node.name,
      ["in all", `${value(node.value)}, ${fmt.share(node.value / this.root.value)}`],
      ["itself", `${value(node.self)}, ${fmt.share(node.self / this.root.value)}`]);
  }
}
