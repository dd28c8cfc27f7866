import type { Palette } from "./colors";
import { h } from "./dom";
import * as fmt from "./format";
import type { Selection } from "./map";
import type { Frame, Report } from "./payload";
import { threadName } from "./tip";

function fact(key: string, value: string | HTMLElement): HTMLElement[] {
  return [h("dt", {}, key), h("dd", {}, value)];
}

function frame(f: Frame): HTMLElement {
  const where = f.file ? `${f.file}${f.line === null ? "" : `:${f.line}`}` : f.module ? `${f.module} (no line information)` : "no line information";
  return h("li", {}, h("code", {}, f.function ?? fmt.hex(f.address)), h("span", { class: "sub", title: where }, where));
}

/** A bar of parts that sum to all pages; the numbers stand beside it, so colour is not the only carrier. */
function parts(items: { label: string; pages: number; colour: string }[]): HTMLElement {
  const all = Math.max(1, items.reduce((s, i) => s + i.pages, 0));
  return h("div", { class: "parts" },
    h("div", { class: "stack", "aria-hidden": "true" }, ...items.filter(i => i.pages).map(i => h("i", { style: `flex:${i.pages};background:${i.colour}`, title: i.label }))),
    h("ul", {}, ...items.map(i => h("li", {},
      h("i", { style: `background:${i.colour}` }), h("span", { class: "grow" }, i.label),
      h("span", { class: "num", title: fmt.pages(i.pages) }, `${fmt.share(i.pages / all)}`), h("span", { class: "num sub" }, fmt.count(i.pages))))));
}

function processName(report: Report, pid: number): string {
  const name = report.threads.find(t => t.pid === pid && t.name)?.name;
  return name ? `${name} (${pid})` : String(pid);
}

export function details(report: Report, palette: Palette, s: Selection): HTMLElement {
  if (s.object === null || !report.objects[s.object]) {
    const lane = s.lane === null ? null : report.lanes[s.lane];
    if (!lane) return h("p", { class: "hint" }, "Click an object in the map, in the table or in a finding to see its call stack, its reuse and who touched it first.");
    return h("div", { class: "details" }, h("h3", {}, lane.title),
      h("p", { class: "hint" }, `A lane of ${fmt.count(lane.segments.length)} small pieces of memory, ${fmt.pageBytes(lane.pages)} together. Zoom in and click one of them.`));
  }
  const o = report.objects[s.object];
  const at = (ns: number | null, absent: string) => (ns === null ? absent : fmt.time(ns / 1000, 1e4));
  const out = h("div", { class: "details" },
    h("h3", {}, o.name),
    h("dl", {},
      ...fact("kind", o.kind),
      ...(o.site ? fact("site", o.site) : []),
      ...fact("address", `${fmt.hex(o.address)} to ${fmt.hex(o.address + o.bytes)}`),
      ...(report.trace.processes > 1 ? fact("process", o.processes.length > 1 ? `${fmt.count(o.processes.length)}, mapped first by ${processName(report, o.pid)}` : processName(report, o.pid)) : []),
      ...fact("size", `${fmt.bytes(o.bytes)} (${fmt.pages(o.pages)})`),
      ...fact("touched", `${fmt.pages(o.touched_pages)}, ${fmt.share(Math.min(1, o.touched_pages / Math.max(1, o.pages)))} of it`),
      ...fact("page touches", fmt.count(o.page_touches)),
      ...(o.possibly_others_page_touches ? fact("possibly by others", `${fmt.count(o.possibly_others_page_touches)} page touches`) : []),
      ...fact("written", o.written_pages === null ? "unknown (null)" : fmt.pages(o.written_pages)),
      ...fact("born", at(o.born_ns, "before the recording")),
      ...fact("died", at(o.died_ns, "alive at the end"))));
  if (o.processes.length > 1) {
    const shown = o.processes.slice(0, 12);
    const wrote = (w: number | null) => (w === null ? "" : `, wrote ${fmt.pageBytes(w)}`);
    out.append(h("h4", {}, `Used by ${fmt.count(o.processes.length)} processes`), h("ul", { class: "users" },
      ...shown.map(([pid, touched, written]) => h("li", {}, h("span", { class: "grow" }, processName(report, pid)), h("span", { class: "num sub" }, `touched ${fmt.pageBytes(touched)}${wrote(written)}`))),
      o.processes.length > shown.length ? h("li", { class: "sub" }, `and ${fmt.count(o.processes.length - shown.length)} more`) : null));
  }
  if (o.reuse) {
    out.append(h("h4", {}, "Pages by how many intervals touched them"), parts([
      { label: "never", pages: o.reuse[0], colour: "var(--line-2)" },
      { label: "1 interval", pages: o.reuse[1], colour: palette.heatCss(0.03) },
      { label: "2 intervals", pages: o.reuse[2], colour: palette.heatCss(0.2) },
      { label: "3 or more", pages: o.reuse[3], colour: palette.heatCss(0.55) }]));
  }
  if (o.first_touches.length) {
    const top = [...o.first_touches].sort((a, b) => b[1] - a[1]);
    const rest = top.slice(8).reduce((sum, [, p]) => sum + p, 0);
    const items = top.slice(0, 8).map(([t, pages]) => ({ label: threadName(report, t), pages, colour: palette.threadCss(t) }));
    if (rest) items.push({ label: `${top.length - 8} more threads`, pages: rest, colour: palette.threadCss(0xffff) });
    out.append(h("h4", {}, "First touch by thread"), parts(items));
  }
  if (o.stack.length) out.append(h("h4", {}, "Allocated at"), h("ol", { class: "frames" }, ...o.stack.map(frame)));
  return out;
}
