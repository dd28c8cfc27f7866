import { blank, cssVar, ellipsis, font, h } from "./dom";
import { Floating } from "./floating";
import * as fmt from "./format";
import { type Chain, type Node, has, siblings, tree } from "./flame-tree";

const ROW = 19;
const FONT = font(11.5);
/** Narrower boxes are drawn, but not one by one. */
const MIN_WIDTH = 0.7;
/** Rows in which no box is wider are not shown until somebody zooms in. */
const ROW_WIDTH = 12;

/** One thing that a flame graph can show. */
export interface FlameKind {
  id: string;
  /** its name among others */
  name: string;
  title: string;
  /** the name of the whole */
  root: string;
  chains: Chain[];
  /** a weight as a person reads it, and exactly; the same text where there is no difference */
  show(value: number): string;
  exact(value: number): string;
  note: string;
}

interface Box { node: Node; x: number; y: number; w: number }

function hash(text: string): number {
  let n = 2166136261;
  for (let i = 0; i < text.length; i++) n = Math.imul(n ^ text.charCodeAt(i), 16777619);
  return n >>> 0;
}

const KEYS = "Arrow keys go from box to box, Enter zooms in, Escape shows all.";

/** A flame graph, the callers above: the width of a box is its weight with all that it calls. */
export class Flame {
  readonly element: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  private readonly rows = h("div", { class: "flame-rows" });
  private readonly tip = new Floating();
  private readonly heading = h("h2", {});
  private readonly path = h("span", { class: "note grow" });
  private readonly found = h("span", { class: "note num", "aria-live": "polite" });
  private readonly note = h("p", { class: "note pad" });
  private readonly said = h("span", { class: "sr", "aria-live": "polite" });
  private readonly back = h("button", { type: "button", class: "tool", onclick: () => this.zoom(this.root) }, "Show all");
  private kind: FlameKind;
  private root!: Node;
  private shown!: Node;
  private focus: Node | null = null;
  private sought = "";
  private boxes: Box[] = [];

  constructor(readonly label: string, readonly kinds: FlameKind[], first = kinds[0]) {
    this.kind = first;
    this.canvas = h("canvas", { class: "flame", tabindex: 0, role: "application", "aria-roledescription": "flame graph" });
    const choice = kinds.length > 1 && h("fieldset", { class: "choice" }, h("legend", {}, "Width"), ...kinds.map(kind =>
      h("label", {}, h("input", { type: "radio", name: `flame-${label}`, value: kind.id, checked: kind === first, onchange: () => this.choose(kind) }), h("span", {}, kind.name))));
    const search = h("input", { type: "search", class: "field", placeholder: "function or file", "aria-label": `Search in: ${label}`, oninput: () => { this.sought = search.value.trim().toLowerCase(); this.draw(); } });
    this.element = h("section", { class: "card wide flames", "aria-label": label },
      h("div", { class: "toolbar" }, this.heading, choice, h("label", { class: "named-field" }, "Search", search), this.found, h("div", { class: "tools" }, this.back)),
      h("div", { class: "trail" }, this.path), this.rows, this.note, this.said, this.tip.element);
    this.rows.append(this.canvas);
    this.canvas.addEventListener("pointermove", e => this.hover(e));
    this.canvas.addEventListener("pointerleave", () => this.tip.hide());
    this.canvas.addEventListener("click", e => { const hit = this.at(e); if (hit) { this.focus = hit; this.zoom(hit); } });
    this.canvas.addEventListener("keydown", e => this.key(e));
    this.canvas.addEventListener("blur", () => { this.focus = null; this.tip.hide(); this.draw(); });
    this.choose(first);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  private choose(kind: FlameKind): void {
    this.kind = kind;
    this.root = tree(kind.root, kind.chains);
    this.heading.textContent = kind.title;
    this.note.textContent = `${kind.note} Callers stand above. Click a box to zoom in. ${KEYS}`;
    this.canvas.setAttribute("aria-label", `${kind.title}: ${fmt.count(kind.chains.length)} call stacks, ${kind.show(this.root.value)} in all. ${KEYS}`);
    this.focus = null;
    this.zoom(this.root);
  }

  private zoom(node: Node): void {
    this.shown = node;
    this.tip.hide();
    this.back.disabled = node === this.root;
    const whole = this.root.value ? `${this.kind.show(this.root.value)} in all` : "Nothing of this was seen.";
    this.path.textContent = node === this.root ? whole : `${node.name}: ${this.kind.show(node.value)}, ${fmt.share(node.value / this.root.value)}`;
    this.path.title = node === this.root ? "" : node.name;
    this.draw();
  }

  private depth(node: Node): number {
    // Of the card: the canvas is narrower where its rows are scrolled, on which their number must not depend.
    const least = this.shown.value / Math.max(1, this.element.clientWidth) * ROW_WIDTH;
    return node.children.reduce((most, c) => (c.value < least ? most : Math.max(most, 1 + this.depth(c))), 0);
  }

  draw(): void {
    const above: Node[] = [];
    for (let n = this.shown.parent; n; n = n.parent) above.unshift(n);
    const rows = above.length + 1 + this.depth(this.shown);
    this.canvas.style.height = `${rows * ROW + 2}px`;
    const { ctx, width } = blank(this.canvas);
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    this.boxes = [];
    this.search();
    above.forEach((node, i) => this.box(ctx, { node, x: 0, y: i * ROW, w: width }, true));
    const scale = width / Math.max(1, this.shown.value);
    const walk = (node: Node, row: number): void => {
      const w = node.value * scale;
      if (w < MIN_WIDTH || row >= rows) return;
      this.box(ctx, { node, x: (node.start - this.shown.start) * scale, y: row * ROW, w }, false);
      for (const child of node.children) walk(child, row + 1);
    };
    if (this.root.value) walk(this.shown, above.length);
  }

  private search(): void {
    if (!this.sought) { this.found.textContent = ""; return; }
    let count = 0;
    // A box within one that is found counts in that.
    const sum = (node: Node, counted: boolean): number => {
      const hit = has(node, this.sought);
      count += Number(hit);
      return (hit && !counted ? node.value : 0) + node.children.reduce((all, c) => all + sum(c, counted || hit), 0);
    };
    const value = sum(this.root, false);
    this.found.textContent = count ? `${fmt.count(count)} ${count === 1 ? "box" : "boxes"}: ${this.kind.show(value)}, ${fmt.share(value / Math.max(1, this.root.value))}` : "not found";
  }

  private box(ctx: CanvasRenderingContext2D, box: Box, faint: boolean): void {
    const { node, x, y, w } = box;
    const dark = document.documentElement.dataset.theme === "dark";
    const n = hash(node.name), hue = 12 + n % 44, spread = (n >> 8) % 10;
    const plain = node === this.root || node.rest;
    const hit = this.sought !== "" && has(node, this.sought);
    const pale = faint || (this.sought !== "" && !hit && node !== this.root);
    ctx.globalAlpha = pale ? 0.45 : 1;
    ctx.fillStyle = hit ? cssVar("--found") : plain ? cssVar("--line-2") : dark ? `hsl(${hue} 62% ${32 + spread}%)` : `hsl(${hue} 82% ${72 + spread}%)`;
    ctx.fillRect(x, y, Math.max(MIN_WIDTH, w - 1), ROW - 1);
    if (w > 26) {
      ctx.globalAlpha = pale ? 0.8 : 1;
      ctx.fillStyle = hit ? cssVar("--found-ink") : plain ? cssVar("--ink") : dark ? "#fff4e6" : "#2a1a08";
      ctx.textAlign = "left";
      ctx.fillText(ellipsis(ctx, node.name, w - 9), x + 4, y + ROW / 2);
    }
    ctx.globalAlpha = 1;
    if (node === this.focus) {
      ctx.strokeStyle = cssVar("--accent");
      ctx.lineWidth = 2;
      ctx.strokeRect(x + 1, y + 1, Math.max(2, w - 3), ROW - 3);
    }
    this.boxes.push(box);
  }

  private at(e: MouseEvent): Node | null {
    const box = this.canvas.getBoundingClientRect();
    const x = e.clientX - box.left, y = e.clientY - box.top;
    return this.boxes.find(b => x >= b.x && x < b.x + b.w && y >= b.y && y < b.y + ROW)?.node ?? null;
  }

  private key(e: KeyboardEvent): void {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const now = this.focus ?? this.shown;
    const drawn = (nodes: Node[]) => nodes.filter(n => this.boxes.some(b => b.node === n));
    const beside = (step: number): Node => { const all = drawn(siblings(now)); return all[Math.max(0, Math.min(all.length - 1, all.indexOf(now) + step))] ?? now; };
    const actions: Record<string, () => Node> = {
      ArrowUp: () => now.parent ?? now,
      ArrowDown: () => (this.focus ? drawn(now.children)[0] ?? now : now),
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
      Home: () => this.shown,
      Enter: () => { this.zoom(now); return now; },
      " ": () => { this.zoom(now); return now; },
      Escape: () => { this.zoom(this.root); return this.root; },
    };
    const action = actions[e.key];
    if (!action) return;
    e.preventDefault();
    this.focus = action();
    this.draw();
    const box = this.boxes.find(b => b.node === this.focus);
    if (!box) return;
    this.rows.scrollTop = Math.max(box.y + 2 * ROW - this.rows.clientHeight, Math.min(this.rows.scrollTop, box.y - ROW), 0);
    const frame = this.canvas.getBoundingClientRect();
    this.show({ clientX: frame.left + box.x + Math.min(box.w / 2, 200), clientY: frame.top + box.y + ROW / 2 }, box.node);
    this.said.textContent = `${box.node.name}, ${this.inAll(box.node)}`;
  }

  private hover(e: PointerEvent): void {
    const node = this.at(e);
    this.canvas.style.cursor = node ? "pointer" : "default";
    if (node) this.show(e, node); else this.tip.hide();
  }

  private inAll(node: Node): string {
    return `${this.kind.show(node.value)}, ${fmt.share(node.value / Math.max(1, this.root.value))}`;
  }

  private show(at: { clientX: number; clientY: number }, node: Node): void {
    const { show, exact } = this.kind;
    const figure = (value: number) => `${show(value)}, ${fmt.share(value / Math.max(1, this.root.value))}`;
    const pairs: [string, string][] = [["in all", figure(node.value)]];
    if (node.error !== null) pairs.push(["error", `± ${show(node.error)} with 95 % confidence`]);
    if (exact(node.value) !== show(node.value)) pairs.push(["exactly", `${exact(node.value)}${node.error === null ? "" : ` ± ${exact(node.error)}`}`]);
    pairs.push(["itself", figure(node.self)]);
    this.tip.show(at, node.name, ...pairs);
  }
}
