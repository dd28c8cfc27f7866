import { h } from "./dom";
import * as fmt from "./format";
import { type Cell, objectsOf, segmentsOf } from "./grid";
import { NEVER, NO_THREAD, type Report } from "./payload";
import { processName } from "./processes";

export function threadName(report: Report, thread: number | null): string {
  if (thread === null || thread === NO_THREAD) return "unknown";
  const t = report.threads[thread];
  if (!t) return "unknown";
  return t.name ? `${t.name} (${t.tid})` : String(t.tid);
}

export function rows(...pairs: [string, string | null][]): HTMLElement {
  const list = h("dl", {});
  for (const [key, value] of pairs) if (value !== null) list.append(h("dt", {}, key), h("dd", {}, value));
  return list;
}

export function cellTip(report: Report, cell: Cell): HTMLElement {
  const { lane } = cell;
  const inside = objectsOf(report, cell);
  const object = report.objects[inside[0] ?? -1];
  const group = report.groups[lane.group ?? object?.group ?? -1];
  const more = inside.length > 1 ? `${inside.length} objects of it here` : null;
  const per = report.bins.intervals_per_bin;
  const from = cell.t0 * per, to = Math.min(report.trace.intervals, cell.t1 * per);
  const start = report.edges[from], end = report.edges[to] ?? report.duration;
  const addressOf = (lanePage: number) => {
    const s = segmentsOf(lane, lanePage, lanePage + 1)[0];
    return s ? fmt.pageAddress(s.page + lanePage - s.lane_page) : "";
  };
  const from0 = addressOf(cell.page0);
  const range = cell.pages === 1 ? from0 : `${addressOf(cell.page0)} to ${addressOf(cell.page0 + cell.pages - 1)}`;
  const about = { exact: "", least: "at least ", about: "about " }[cell.touchedIs];
  const threads = new Map<number, number>();
  let firstTime = NEVER;
  for (let a = cell.a0; a < cell.a1; a++) {
    threads.set(lane.firstThread[a], (threads.get(lane.firstThread[a]) ?? 0) + 1);
    firstTime = Math.min(firstTime, lane.firstTime[a]);
  }
  const [thread] = [...threads].sort((a, b) => b[1] - a[1])[0];
  const several = threads.size > 1 ? ` and ${threads.size - 1} more` : "";
  return h("div", {},
    h("strong", {}, group?.name ?? lane.title),
    h("span", { class: "sub" }, [group?.kind, more, report.processes.length > 1 && object ? processName(report, object.pid) : null].filter(Boolean).join(" · ")),
    rows(
      [cell.pages === 1 ? "page" : "pages", range],
      ["time", `${fmt.time(start, 1e4)} to ${fmt.time(end, 1e4)} (${fmt.count(to - from)} ${to - from === 1 ? "interval" : "intervals"})`],
      ["touched", `${about}${fmt.count(cell.touched)} of ${fmt.pages(cell.pages)}`],
      ["heat", to - from > 1 ? `a page here was touched in ${fmt.share(cell.share)} of the intervals` : null],
      ["possibly others", cell.possibly > 0 ? `others may have touched a page here in ${fmt.share(cell.possibly)} of the ${to - from > 1 ? "intervals" : "pages"}` : null],
      ["first touch", firstTime === NEVER ? "never" : `${fmt.time(report.binEdges[firstTime], 1e4)}, thread ${threadName(report, thread)}${several}`],
    ));
}

export function intervalTip(report: Report, i: number): HTMLElement {
  const ws = report.workingSet[i] ?? 0;
  const resident = report.resident?.[i];
  return h("div", {},
    h("strong", {}, fmt.time(report.edges[i] ?? 0, 1e4)),
    h("span", { class: "sub" }, `interval ${fmt.count(i)}, ${fmt.time((report.edges[i + 1] ?? report.edges[i]) - report.edges[i], 1000)} long`),
    rows(
      ["working set", `${fmt.pageBytes(ws)} (${fmt.pages(ws)})`],
      ["resident", resident === undefined ? null : `${fmt.pageBytes(resident)} (${fmt.pages(resident)})`],
    ));
}
