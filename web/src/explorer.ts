import type { Mode } from "./colors";
import { Curve } from "./curve";
import { h } from "./dom";
import * as fmt from "./format";
import { legend } from "./legend";
import { HeatMap, type Selection } from "./map";
import type { Filters } from "./filter";
import type { LaneData, PhaseBand, Report } from "./payload";
import { Phases, phaseTip } from "./phases";
import { cellTip, intervalTip } from "./tip";
import { GUTTER, MARGIN, type Order, View, indexAt } from "./view";

const KEYS = "Arrow keys pan, plus and minus zoom, r resets, f fits all lanes, square brackets step through the objects.";

/** The curve, the phases and the map: one view, drawn at most once per frame, and all input to it. */
export class Explorer {
  readonly element: HTMLElement;
  readonly view: View;
  readonly map: HeatMap;
  private readonly curve: Curve;
  private readonly phases: Phases | null;
  private readonly tip = h("div", { class: "tip", role: "tooltip", hidden: true });
  private readonly cross = h("div", { class: "cross", hidden: true });
  private readonly live = h("div", { class: "sr", "aria-live": "polite" });
  private readonly legendBox = h("div", { class: "legend" });
  private readonly stage: HTMLElement;
  private frame = 0;

  constructor(readonly report: Report, readonly onSelect: (s: Selection) => void) {
    this.view = new View(report);
    const curveCanvas = h("canvas", { class: "curve", role: "img", "aria-label": "Working set over time: pages touched per interval. Drag across it to zoom into a span." });
    // Without objects there are no lanes: the curve is all there is to draw.
    const mapCanvas = h("canvas", { class: report.lanes.length ? "map" : "map none", tabindex: 0, role: "application", "aria-label": `Map of time by address, ${report.lanes.length} lanes. ${KEYS}` });
    this.curve = new Curve(curveCanvas, report, this.view);
    this.map = new HeatMap(mapCanvas, report, this.view);
    this.phases = report.phases.length ? new Phases(report, this.view) : null;
    this.stage = h("div", { class: "stage" }, curveCanvas, this.phases?.canvas, mapCanvas, this.cross);
    this.element = h("section", { class: "card explorer", "aria-label": "Map of time and address" },
      this.toolbar(), this.stage, this.tip, this.live);
    this.view.onChange(() => this.schedule());
    this.listenCurve(curveCanvas);
    this.listenMap(mapCanvas);
    if (this.phases) this.listenPhases(this.phases);
    new ResizeObserver(() => { this.resize(); this.paint(); }).observe(mapCanvas);
  }

  private toolbar(): HTMLElement {
    const modes: [Mode, string][] = [["heat", "Heat"], ["thread", "First thread"], ["first", "First touch time"]];
    const orders: [Order, string][] = [["heat", "Heat"], ["address", "Address"]];
    const choice = <T extends string>(name: string, label: string, items: [T, string][], current: T, set: (v: T) => void) =>
      h("fieldset", { class: "choice" }, h("legend", {}, label), ...items.map(([value, text]) =>
        h("label", {}, h("input", { type: "radio", name, value, checked: value === current, onchange: () => set(value) }), h("span", {}, text))));
    const button = (text: string, label: string, run: () => void) =>
      h("button", { type: "button", class: "tool", title: label, "aria-label": label, onclick: run }, text);
    const middle = () => (this.view.t0 + this.view.t1) / 2;
    return h("div", { class: "toolbar" },
      choice("mode", "Colour", modes, "heat", m => this.setMode(m)),
      choice("order", "Lanes by", orders, "heat", o => { this.view.arrange(o); this.view.reset(); this.say(`Lanes sorted by ${o}`); }),
      this.legendBox,
      h("div", { class: "tools" },
        button("−", "Zoom out (-)", () => this.view.zoomTime(1 / 1.6, middle())),
        button("+", "Zoom in (+)", () => this.view.zoomTime(1.6, middle())),
        button("Fit lanes", "Show all lanes at once (f)", () => this.view.fitLanes()),
        button("Reset", "Reset the view (r)", () => this.view.reset())));
  }

  setMode(mode: Mode): void {
    this.map.mode = mode;
    this.refresh();
  }

  /** After a change of theme or colour mode. */
  refresh(): void {
    this.legendBox.replaceChildren(legend(this.report, this.map.palette, this.map.mode));
    this.schedule();
  }

  select(s: Selection, reveal = true): void {
    this.map.selection = s;
    if (reveal && s.lane !== null) this.view.reveal(s.lane);
    this.schedule();
  }

  /** Shows what passes the filters, and of time that span. */
  only(filters: Filters): void {
    const { from, to } = filters.filter;
    const group = (l: LaneData) => this.report.groups[l.group ?? -1];
    this.view.only(l => (group(l) ? filters.group(group(l)) : !filters.any));
    if (from !== null || to !== null) this.view.showTime(from ?? 0, to ?? this.report.duration);
    else this.view.reset();
  }

  private resize(): void {
    this.view.resize(this.map.canvas.getBoundingClientRect().height);
  }

  private schedule(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => this.paint());
  }

  paint(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.curve.draw();
    this.phases?.draw();
    this.map.draw();
  }

  private say(text: string): void { this.live.textContent = text; }

  private wheel(e: WheelEvent, canvas: HTMLCanvasElement, lanes: boolean): void {
    e.preventDefault();
    const box = canvas.getBoundingClientRect();
    const x = e.clientX - box.left, y = e.clientY - box.top;
    const unit = e.deltaMode === 1 ? 16 : 1;
    // With shift, browsers turn a vertical wheel into a horizontal one.
    const turn = (e.deltaY || (e.shiftKey || e.altKey ? e.deltaX : 0)) * unit;
    const factor = Math.exp(-turn * 0.0016);
    if (lanes && x < GUTTER) { this.view.pan(0, turn); return; }
    if (e.deltaX && !e.shiftKey && Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
      this.view.pan((e.deltaX * unit / this.map.plotWidth) * (this.view.t1 - this.view.t0), 0);
      return;
    }
    if (!e.altKey) this.view.zoomTime(factor, this.map.timeAt(Math.max(GUTTER, x)));
    if (lanes && !e.shiftKey) this.view.zoomLanes(factor, y);
    this.hover(e, canvas);
  }

  private listenMap(canvas: HTMLCanvasElement): void {
    let from: { x: number; y: number; moved: boolean } | null = null;
    canvas.addEventListener("wheel", e => this.wheel(e, canvas, true), { passive: false });
    canvas.addEventListener("pointerdown", e => {
      if (e.button !== 0) return;
      canvas.setPointerCapture(e.pointerId);
      from = { x: e.clientX, y: e.clientY, moved: false };
    });
    canvas.addEventListener("pointermove", e => {
      if (!from) { this.hover(e, canvas); return; }
      const dx = e.clientX - from.x, dy = e.clientY - from.y;
      if (!from.moved && Math.hypot(dx, dy) < 4) return;
      from.x = e.clientX; from.y = e.clientY;
      from.moved = true;
      canvas.classList.add("panning");
      this.leave();
      this.view.pan((-dx / this.map.plotWidth) * (this.view.t1 - this.view.t0), -dy);
    });
    const end = (e: PointerEvent) => {
      canvas.classList.remove("panning");
      if (from && !from.moved && e.type === "pointerup") {
        const box = canvas.getBoundingClientRect();
        this.onSelect(this.map.objectAt(e.clientX - box.left, e.clientY - box.top));
      }
      from = null;
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => { if (!from) this.leave(); });
    canvas.addEventListener("dblclick", () => this.view.reset());
    canvas.addEventListener("keydown", e => this.key(e));
  }

  private listenCurve(canvas: HTMLCanvasElement): void {
    let from: number | null = null;
    const at = (e: MouseEvent) => this.map.timeAt(Math.max(GUTTER, e.clientX - canvas.getBoundingClientRect().left));
    canvas.addEventListener("wheel", e => this.wheel(e, canvas, false), { passive: false });
    canvas.addEventListener("pointerdown", e => { if (e.button === 0) { canvas.setPointerCapture(e.pointerId); from = at(e); } });
    canvas.addEventListener("pointermove", e => {
      this.hover(e, canvas);
      if (from !== null) { this.curve.brush = [from, at(e)]; this.schedule(); }
    });
    canvas.addEventListener("pointerup", e => {
      const brush = this.curve.brush;
      this.curve.brush = null;
      if (from !== null && brush && Math.abs(brush[1] - brush[0]) > (this.view.t1 - this.view.t0) * 0.004) this.view.showTime(from, at(e));
      else this.schedule();
      from = null;
    });
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", () => this.view.reset());
  }

  private listenPhases(phases: Phases): void {
    const { canvas } = phases;
    // The run under the cursor; under a name from its first run to its last.
    const target = (e: MouseEvent): { band: PhaseBand; span: [number, number] } | null => {
      const box = canvas.getBoundingClientRect();
      const x = e.clientX - box.left, band = phases.rowAt(e.clientY - box.top);
      if (!band) return null;
      const span = x < GUTTER ? [band.spans[0][0], band.spans[band.spans.length - 1][1]] as [number, number] : this.spanAt(band, x);
      return span && { band, span };
    };
    canvas.addEventListener("wheel", e => this.wheel(e, canvas, false), { passive: false });
    canvas.addEventListener("pointermove", e => {
      this.hover(e, canvas);
      canvas.style.cursor = target(e) ? "pointer" : "";
    });
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("click", e => {
      const found = target(e);
      if (!found) return;
      const [from, to] = found.span, margin = (to - from) * 0.05;
      this.view.showTime(from - margin, to + margin);
      this.say(`Showing ${found.band.name}`);
    });
    canvas.addEventListener("dblclick", () => this.view.reset());
  }

  private key(e: KeyboardEvent): void {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const span = this.view.t1 - this.view.t0, middle = (this.view.t0 + this.view.t1) / 2;
    const actions: Record<string, () => void> = {
      ArrowLeft: () => this.view.pan(-span * 0.15, 0),
      ArrowRight: () => this.view.pan(span * 0.15, 0),
      ArrowUp: () => this.view.pan(0, -60),
      ArrowDown: () => this.view.pan(0, 60),
      "+": () => this.view.zoomTime(1.5, middle),
      "=": () => this.view.zoomTime(1.5, middle),
      "-": () => this.view.zoomTime(1 / 1.5, middle),
      r: () => this.view.reset(),
      f: () => this.view.fitLanes(),
      "]": () => this.step(1),
      "[": () => this.step(-1),
      Escape: () => { this.leave(); this.onSelect({ group: null, object: null, lane: null }); },
    };
    const action = actions[e.key];
    if (!action) return;
    e.preventDefault();
    this.leave();
    action();
    if (!"[]".includes(e.key)) this.say(`Showing ${fmt.time(this.view.t0, span / 1000)} to ${fmt.time(this.view.t1, span / 1000)}`);
  }

  private step(by: number): void {
    const { placed } = this.view;
    const now = placed.findIndex(p => p.lane.index === this.map.selection.lane);
    const next = placed[now < 0 ? (by > 0 ? 0 : placed.length - 1) : Math.max(0, Math.min(placed.length - 1, now + by))];
    if (!next) return;
    const { group, objects } = next.lane;
    this.onSelect({ group, lane: next.lane.index, object: group !== null && objects === 1 ? this.report.members[group]?.[0] ?? null : null });
    this.say(next.lane.title);
  }

  private hover(e: MouseEvent, canvas: HTMLCanvasElement): void {
    const box = canvas.getBoundingClientRect();
    const x = e.clientX - box.left, y = e.clientY - box.top;
    const isOnTime = x >= GUTTER && x <= box.width - MARGIN;
    this.cross.hidden = !isOnTime;
    if (isOnTime) this.cross.style.transform = `translateX(${x}px)`;
    const tip = this.tipAt(canvas, x, y, isOnTime);
    this.tip.hidden = !tip;
    if (tip) this.place(e, tip);
  }

  private tipAt(canvas: HTMLCanvasElement, x: number, y: number, isOnTime: boolean): HTMLElement | null {
    if (canvas === this.phases?.canvas) {
      const band = this.phases.rowAt(y);
      return band && phaseTip(band, isOnTime ? this.spanAt(band, x) : null);
    }
    const isMap = canvas === this.map.canvas;
    if (!isOnTime) {
      const hit = isMap ? this.view.laneAt(y) : null;
      return hit && h("div", {}, h("strong", {}, hit.lane.title), h("span", { class: "sub" }, hit.lane.objects > 1 ? `${fmt.count(hit.lane.objects)} objects` : ""));
    }
    const cell = isMap ? this.map.cellAt(x, y) : null;
    const interval = Math.max(0, Math.min(this.report.workingSet.length - 1, indexAt(this.report.edges, this.map.timeAt(x))));
    return cell ? cellTip(this.report, cell) : intervalTip(this.report, interval);
  }

  /** The run of a phase under a CSS x, or within a few pixels of it. */
  private spanAt(band: PhaseBand, x: number): [number, number] | null {
    const from = this.map.timeAt(x - 4), to = this.map.timeAt(x + 4);
    return band.spans.find(span => span[0] <= to && from <= span[1]) ?? null;
  }

  private place(e: MouseEvent, content: HTMLElement): void {
    this.tip.replaceChildren(content);
    this.tip.hidden = false;
    const w = this.tip.offsetWidth, hgt = this.tip.offsetHeight;
    const x = e.clientX + 16 + w > window.innerWidth - 8 ? e.clientX - w - 14 : e.clientX + 16;
    const y = e.clientY + 18 + hgt > window.innerHeight - 8 ? e.clientY - hgt - 12 : e.clientY + 18;
    this.tip.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  }

  private leave(): void {
    this.tip.hidden = true;
    this.cross.hidden = true;
  }
}
