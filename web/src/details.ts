import type { Palette } from "./colors";
import { h } from "./dom";
import * as fmt from "./format";
import type { Selection } from "./map";
import { PAGE_BYTES, type Frame, type GroupRow, type Obj, type Report, type Stack } from "./payload";
import { processName } from "./processes";
import { threadName } from "./tip";

function fact(key: string, value: string | HTMLElement, why: string | null = null): HTMLElement[] {
  return [h("dt", {}, key), h("dd", { title: why }, value)];
}

function frame(f: Frame): HTMLElement {
  const unnamed = f.module !== null && f.offset !== null ? `${f.module.split("/").pop()}+${fmt.hex(f.offset)}` : fmt.hex(f.address);
  const where = f.file ? `${f.file}${f.line === null ? "" : `:${f.line}`}` : f.module ? `${f.module} (no line information)` : "no line information";
  return h("li", {}, h("code", {}, f.function ?? unnamed), h("span", { class: "sub", title: where }, where));
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

function reuse(palette: Palette, never: number | null, once: number, twice: number, more: number): HTMLElement[] {
  return [h("h4", {}, "Pages by how many intervals touched them"), parts([
    ...(never === null ? [] : [{ label: "never", pages: never, colour: "var(--line-2)" }]),
    { label: "1 interval", pages: once, colour: palette.heatCss(0.03) },
    { label: "2 intervals", pages: twice, colour: palette.heatCss(0.2) },
    { label: "3 or more", pages: more, colour: palette.heatCss(0.55) }])];
}

function firsts(report: Report, palette: Palette, by: { thread: number; pages: number }[]): HTMLElement[] {
  if (!by.length) return [];
  const rest = by.slice(8).reduce((sum, t) => sum + t.pages, 0);
  const items = by.slice(0, 8).map(t => ({ label: threadName(report, t.thread), pages: t.pages, colour: palette.threadCss(t.thread) }));
  if (rest) items.push({ label: `${by.length - 8} more threads`, pages: rest, colour: palette.threadCss(0xffff) });
  return [h("h4", {}, "First touch by thread, pages"), parts(items)];
}

function stacks(list: Stack[]): HTMLElement[] {
  return list.flatMap(s => [
    h("h4", {}, list.length > 1 ? `Allocated at (${fmt.count(s.objects)} ${s.objects === 1 ? "object" : "objects"})` : "Allocated at"),
    h("ol", { class: "frames" }, ...s.frames.map(frame))]);
}

/** Whether pages were written, and why that is not known where it is not. */
function written(report: Report, pages: number | null): HTMLElement[] {
  const why = report.unknown.find(u => /write/.test(u)) ?? "the trace does not say";
  return pages === null ? fact("written", "–", why) : fact("written", fmt.pages(pages));
}

function ofGroup(report: Report, palette: Palette, g: GroupRow): HTMLElement {
  const shown = g.processes.slice(0, 12);
  const index = (pid: number, tid: number) => report.threads.findIndex(t => t.pid === pid && t.tid === tid);
  return h("div", { class: "details" },
    h("h3", {}, g.name),
    h("dl", {},
      ...fact("kind", g.kind),
      ...(g.site ? fact("site", g.site) : []),
      ...fact("objects", `${fmt.count(g.objects)}${g.untouched_objects ? `, ${fmt.count(g.untouched_objects)} never touched` : ""}`),
      ...(report.processes.length > 1 && g.processes.length === 1 ? fact("process", processName(report, g.processes[0].pid)) : []),
      ...fact("size", `${fmt.maybe(g.bytes, fmt.bytes)}${g.peak_bytes === null ? "" : `, at most ${fmt.bytes(g.peak_bytes)} at once`}`),
      ...fact("touched", fmt.bound(g, fmt.maybe(g.touched_pages, pages => `${fmt.pages(pages)} (${fmt.maybe(g.touched_bytes, fmt.bytes)})`))),
      ...(g.touched_pages_over_lives !== null && g.touched_pages_over_lives > (g.touched_pages ?? Infinity) ? fact("over lives", `${fmt.pages(g.touched_pages_over_lives)}: memory is used again for other objects`) : []),
      ...fact("page touches", fmt.bound(g, fmt.maybe(g.page_touches, fmt.count))),
      ...(g.possibly_others_page_touches ? fact("possibly by others", `${fmt.count(g.possibly_others_page_touches)} page touches`) : []),
      ...written(report, g.written_pages),
      ...(g.died ? fact("ended", `${fmt.count(g.died)}${g.median_life_ns === null ? "" : `, after ${fmt.time(g.median_life_ns / 1000, 1000)} in the median`}`) : [])),
    ...(g.processes.length > 1 ? [h("h4", {}, `Used by ${fmt.count(g.processes.length)} processes`), h("ul", { class: "users" },
      ...shown.map(p => h("li", {}, h("span", { class: "grow" }, processName(report, p.pid)), h("span", { class: "num sub" }, `${fmt.maybe(p.page_touches, fmt.count)} page touches`))),
      g.processes.length > shown.length ? h("li", { class: "sub" }, `and ${fmt.count(g.processes.length - shown.length)} more`) : null)] : []),
    ...(g.reuse ? reuse(palette, null, g.reuse.once, g.reuse.twice, g.reuse.more) : []),
    ...firsts(report, palette, (g.threads ?? []).map(t => ({ thread: index(t.pid, t.tid), pages: t.pages }))),
    ...stacks(g.stacks));
}

function ofObject(report: Report, palette: Palette, o: Obj): HTMLElement {
  const g = report.groups[o.group];
  const at = (ns: number | null, absent: string) => (ns === null ? absent : fmt.time(ns / 1000, 1e4));
  const shown = o.processes.slice(0, 12);
  const wrote = (w: number | null) => (w === null ? "" : `, wrote ${fmt.pageBytes(w)}`);
  const { address, bytes, pages } = o;
  return h("div", { class: "details" },
    h("h3", {}, g.name),
    h("dl", {},
      ...fact("kind", g.kind),
      ...(g.site ? fact("site", g.site) : []),
      ...(g.objects > 1 ? fact("one of", `${fmt.count(g.objects)} objects of this site`) : []),
      ...fact("address", address === null || bytes === null ? fmt.maybe(address, fmt.hex) : `${fmt.hex(address)} to ${fmt.hex(address + bytes)}`),
      ...(report.processes.length > 1 ? fact("process", o.processes.length > 1 ? `${fmt.count(o.processes.length)}, mapped first by ${processName(report, o.pid)}` : processName(report, o.pid)) : []),
      ...fact("size", fmt.maybe(bytes, size => `${fmt.bytes(size)} (${fmt.maybe(pages, fmt.pages)})`)),
      ...fact("touched", fmt.bound(o, fmt.maybe(o.touched_pages, touched => `${fmt.pages(touched)}${pages === null ? "" : `, ${fmt.share(Math.min(1, touched / Math.max(1, pages)))} of it`}`))),
      ...fact("page touches", fmt.bound(o, fmt.maybe(o.page_touches, fmt.count))),
      ...(o.possibly_others_page_touches ? fact("possibly by others", `${fmt.count(o.possibly_others_page_touches)} page touches`) : []),
      ...written(report, o.written_pages),
      ...fact("born", at(o.born_ns, "before the recording")),
      ...fact("died", at(o.died_ns, "alive at the end"))),
    ...(o.processes.length > 1 ? [h("h4", {}, `Used by ${fmt.count(o.processes.length)} processes`), h("ul", { class: "users" },
      ...shown.map(([pid, touched, written]) => h("li", {}, h("span", { class: "grow" }, processName(report, pid)), h("span", { class: "num sub" }, `touched ${fmt.maybe(touched, fmt.pageBytes)}${wrote(written)}`))),
      o.processes.length > shown.length ? h("li", { class: "sub" }, `and ${fmt.count(o.processes.length - shown.length)} more`) : null)] : []),
    ...(o.reuse ? reuse(palette, ...o.reuse) : []),
    ...firsts(report, palette, o.first_touches.map(([thread, pages]) => ({ thread, pages }))),
    ...stacks(g.stacks));
}

export function details(report: Report, palette: Palette, s: Selection): HTMLElement {
  const object = report.objects[s.object ?? -1], group = report.groups[s.group ?? -1];
  if (object) return ofObject(report, palette, object);
  if (group) return ofGroup(report, palette, group);
  const lane = report.lanes[s.lane ?? -1];
  if (!lane) return h("p", { class: "hint" }, "Click an object in the map, in the table or in a finding to see its call stack, its reuse and who touched it first.");
  return h("div", { class: "details" }, h("h3", {}, lane.title),
    h("p", { class: "hint" }, `${fmt.count(lane.objects)} objects on ${fmt.bytes(lane.pages * PAGE_BYTES)} of memory. ${lane.kind === null ? "The table lists them last." : "Zoom in and click one of them, or find them in the table."}`));
}
