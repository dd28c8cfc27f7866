import type { Mode, Palette } from "./colors";
import { h } from "./dom";
import * as fmt from "./format";
import { NO_THREAD, type Report } from "./payload";
import { threadName } from "./tip";

const SHOWN = 5;

export function legend(report: Report, palette: Palette, mode: Mode): HTMLElement {
  const colours = scaleOf(report, palette, mode);
  if (!report.lanes.some(lane => lane.possibly)) return colours;
  const title = "These are known only by a page flag that other processes set too; they count in no figure";
  return h("div", { class: "legends" }, colours, h("span", { class: "chip", title },
    h("i", { class: "hatch", style: `background:${palette.possiblyCss()}` }), "possibly by others"));
}

function scaleOf(report: Report, palette: Palette, mode: Mode): HTMLElement {
  if (mode === "heat") {
    const ticks = [0.01, 0.1, 0.25, 0.5, 1];
    return scale("share of intervals a page was touched in", palette.heatGradient(),
      ticks.map(t => [Math.sqrt(t), t === 1 ? "100 %" : `${t * 100} %`]));
  }
  if (mode === "first") {
    return scale("when a page was first touched", palette.firstGradient(),
      [0, 0.5, 1].map(f => [f, fmt.time(f * report.duration, report.duration / 100)]));
  }
  const share = new Map<number, number>();
  for (const lane of report.lanes) {
    for (const t of lane.firstThread) if (t !== NO_THREAD) share.set(t, (share.get(t) ?? 0) + lane.pages_per_bin);
  }
  const order = [...share].sort((a, b) => b[1] - a[1]).map(([t]) => t);
  const chips = order.slice(0, SHOWN).map(t => h("span", { class: "chip" },
    h("i", { style: `background:${palette.threadCss(t)}` }), threadName(report, t)));
  if (order.length > SHOWN) chips.push(h("span", { class: "chip", title: order.slice(SHOWN).map(t => threadName(report, t)).join(", ") }, `+ ${order.length - SHOWN} more`));
  chips.push(h("span", { class: "chip" }, h("i", { style: `background:${palette.threadCss(NO_THREAD)}` }), "unknown"));
  return h("div", { class: "threads", role: "img", "aria-label": "Legend: colour is the thread that touched a page first" }, ...chips);
}

function scale(label: string, gradient: string, ticks: [number, string][]): HTMLElement {
  return h("div", { class: "scale", role: "img", "aria-label": `Legend: ${label}, from ${ticks[0][1]} to ${ticks[ticks.length - 1][1]}` },
    h("span", { class: "what" }, label),
    h("div", { class: "bar", style: `background:${gradient}` }),
    h("div", { class: "ticks" }, ...ticks.map(([at, text]) =>
      h("span", { style: `left:${(at * 100).toFixed(1)}%${at > 0.95 ? ";transform:translateX(-100%)" : at < 0.05 ? ";transform:none" : ""}` }, text))));
}
