import { h } from "./dom";
import * as fmt from "./format";
import type { Known, Report, Slowdown } from "./payload";

export function tile(label: string, value: string, sub: string, why = sub): HTMLElement {
  return h("div", { class: "tile", title: why }, h("dt", {}, label), h("dd", {}, h("b", { class: "num" }, value), h("span", { class: "sub" }, sub)));
}

/** Which tool's record this was made of; null where varve recorded. */
function imported({ trace }: Report): string | null {
  return trace.imported_from;
}

/** What the report is about, in a word. */
export function subject(report: Report): string {
  const from = imported(report);
  return report.trace.command || (from ? `a record of ${from}` : "");
}

function completeness(report: Report): HTMLElement {
  const { trace } = report;
  if (trace.complete) {
    return h("span", { class: "badge good", title: trace.statement || null }, "✓ complete");
  }
  const losses = Object.entries(trace.losses).filter(([, count]) => count! > 0) as [string, number][];
  if (imported(report) && !losses.length) return h("span", { class: "badge note", title: trace.statement || null }, "imported");
  return h("details", { class: "badge bad" },
    h("summary", {}, `⚠ incomplete${losses.length ? `: ${losses.map(([kind, count]) => `${kind} ${fmt.count(count)}`).slice(0, 2).join(", ")}${losses.length > 2 ? ", …" : ""}` : ""}`),
    losses.length
      ? h("ul", {}, trace.statement, ...losses.map(([kind, count]) => h("li", {}, h("b", {}, kind), ` ${fmt.count(count)}`)))
      : h("p", {}, trace.statement || "The recording has not said that it is complete."));
}

/** What the cost is made of, in the words of the terminal. */
function costTitle(s: Slowdown): string {
  const parts = [["held", s.held], ["first accesses", s.first_accesses], ["samples", s.samples], ["objects", s.objects], ["reports", s.reports], ["recorder's CPU", s.contention]] as const;
  const measured = parts.map(([what, share]) => `${what} ${fmt.share(share)}`).join(", ");
  return s.beginnings ? `${measured}; not in it: most of the beginnings and ends of ${fmt.count(s.beginnings)} processes` : measured;
}

export function header(report: Report, themeButton: HTMLElement): HTMLElement {
  return h("header", {},
    h("div", { class: "title" },
      h("span", { class: "mark", "aria-hidden": "true" }, h("i", {}), h("i", {}), h("i", {})),
      h("h1", {}, "Varve"),
      h("code", { class: "command", title: subject(report) }, subject(report)),
      completeness(report),
      themeButton),
    report.trace.selected === null ? null : h("p", { class: "selected" }, `only ${report.trace.selected}`));
}

/** The figures of the whole trace. */
export function tiles(report: Report): HTMLElement {
  const { trace, overhead, footprint } = report;
  const duration = trace.duration_ns / 1e9;
  const sorted = Float64Array.from(report.workingSet).sort();
  const median = sorted.length ? sorted[sorted.length >> 1] : 0;
  const several = report.processes.length > 1;
  const emulated = trace.is_emulated;
  const clock = trace.clock_unit;
  const ofTime = (ns: number) => fmt.share(trace.duration_ns ? ns / trace.duration_ns : 0);
  // The number alone fills the tile.
  const length = clock === "ticks" ? fmt.count(trace.duration_ns) : clock === "nanoseconds" && duration < 60 ? `${duration.toFixed(2)} s` : fmt.time(duration * 1e6, 1e5);
  const touches = fmt.value(footprint.touched_pages) !== null;
  /** A tile of a figure, or a dash with the reason why there is none. */
  const figure = <T>(label: string, known: Known<T>, show: (value: T) => string, sub: (value: T) => string) => {
    const value = fmt.value(known);
    return tile(label, fmt.known(known, show), value === null ? "not recorded" : sub(value), fmt.why(known) ?? undefined);
  };
  return h("dl", { class: "tiles" },
    tile("Duration", length, clock === "ticks" ? "ticks of its own clock" : trace.started ?? ""),
    tile("Intervals", touches ? fmt.count(trace.intervals) : "none", imported(report) ? `imported from ${imported(report)}` : trace.lengths ?? "not recorded", `backend ${trace.backend}`),
    figure("Touched", footprint.touched_pages, fmt.pageBytes, pages => (several ? `${fmt.known(footprint.touched_pages_per_process, fmt.pageBytes)} summed over processes` : fmt.pages(pages))),
    figure("Working set, peak", footprint.peak_working_set_pages, fmt.pageBytes, () => `median ${fmt.pageBytes(median)}`),
    !several && "exact" in footprint.peak_process_bytes
      ? figure("Resident, peak", footprint.peak_process_bytes, fmt.bytes, () => "as the kernel counts it")
      : figure("Resident, peak", footprint.peak_resident_pages, fmt.pageBytes, pages => (several ? `summed; one ${fmt.known(footprint.peak_process_bytes, fmt.bytes)}` : fmt.pages(pages))),
    overhead.slowdown
      ? tile("Cost", fmt.share(overhead.slowdown.measured), overhead.slowdown.asked === null ? "measured" : `measured; asked ${fmt.share(overhead.slowdown.asked)}`, costTitle(overhead.slowdown))
      : figure("Target held", overhead.held_share, share => (emulated ? "never" : fmt.share(share)), () => (emulated ? "it ran in an emulator" : "of the time")),
    figure("Recorder", overhead.recorder_cpu_ns, ns => fmt.time(ns / 1e3), ns => `of CPU, ${ofTime(ns)} of one CPU`),
    figure("Machine", trace.machine, text => text, () => fmt.known(trace.kernel, text => text)));
}

/** How it is known that a page of a cell was touched. */
function marks({ trace }: Report): string {
  if (trace.is_emulated) return "In every interval each access of the program is counted for its page.";
  if (trace.imported_from !== null) return "The record says which pages were touched in every interval.";
  return "In every interval the processor marks each page it accesses; Varve reads and clears those marks.";
}

export function guide(report: Report): HTMLElement {
  const per = report.bins.intervals_per_bin;
  const { trace } = report;
  const from = imported(report);
  const mapped = fmt.value(report.footprint.touched_pages) !== null && report.lanes.length > 0;
  const possibly = fmt.value(report.footprint.possibly_others_pages);
  const faults = !trace.is_emulated && report.groups.some(g => g.threads?.length);
  return h("div", { class: "guide" },
    mapped && h("p", {}, h("b", {}, "The map. "), "Time runs to the right. Each lane is the objects of one allocation site, hottest first; from top to bottom it holds their pages in the order of addresses, each page once. Address space that no object holds is left out, the coldest sites share a lane, and so do all objects without touches."),
    mapped && h("p", {}, h("b", {}, "A cell "), `is some pages over ${per === 1 ? "one interval" : `${per} intervals`} (more when zoomed out). ${marks(report)} Heat is the share of intervals in which a page of the cell was touched, averaged over its pages. An interval says that a page was touched, not how often.`),
    report.phases.length ? h("p", {}, h("b", {}, "Phases "), "are what the program itself says of where in its work it is (docs/marks.md). A bar is a time when some thread was in the phase; click it to zoom to it. All pages of an interval that overlaps with a phase count to it.") : null,
    from ? h("p", {}, h("b", {}, "Imported. "), trace.statement.replace(/^Imported: /, "What is here: ")) : trace.is_emulated ? h("p", {}, h("b", {}, "Counted. "), trace.statement) : h("p", {}, h("b", {}, "Complete, not sampled. "), trace.complete
      ? "Every interval was read, and every loss counter is zero: an empty cell was not touched."
      : trace.pages_complete
        ? "Every interval was read, and what was lost concerns no page: an empty cell was not touched. The badge above lists what was lost."
        : "Every interval was read, but some loss counters are not zero: an empty cell may have been touched. The badge above lists what was lost."),
    possibly ? h("p", {}, h("b", {}, "Hatched cells "), `were possibly touched by others: ${fmt.pages(possibly)} (${fmt.pageBytes(possibly)}) of files and shared memory, in ${fmt.known(report.footprint.possibly_others_page_touches, fmt.count)} page touches, are known only by a flag that other processes set too. They count in no other figure.`) : null,
    faults && h("p", {}, h("b", {}, "Threads "), "of the map are known for the first touch of a page, from its page fault. Later touches carry no thread. "
      + (trace.written_known ? "" : "This kernel cannot distinguish writes from reads: whether a page was written is not known.")),
    report.sharing ? h("p", {}, h("b", {}, "Who uses what, "), `below, says which threads use which objects, which parts of them, and when. ${report.sharing.weight}`) : null,
    report.unknown.length ? h("div", {}, h("b", {}, "Unknown in this trace"), h("ul", {}, ...report.unknown.map(u => h("li", {}, u)))) : null,
    mapped && h("table", { class: "keys" }, ...[
      ["Wheel", "zoom at the cursor; with Shift time only, with Alt lanes only"],
      ["Drag", "pan; across the curve: zoom into that span"],
      ["Wheel on the names", "scroll the lanes"],
      ["Click", "select the object, or its site"],
      ["Double click, r", "reset"],
      ["Arrows, + and −", "pan, zoom in time"],
      ["f", "fit all lanes"],
      ["[ and ]", "previous, next lane"],
    ].map(([k, v]) => h("tr", {}, h("th", { scope: "row" }, k), h("td", {}, v)))));
}

export function findings(report: Report, open: (group: number) => void): HTMLElement {
  if (!report.findings.length) return h("p", { class: "hint" }, "No findings: nothing in this trace crossed a threshold.");
  return h("ol", { class: "findings" }, ...report.findings.map(f => h("li", { class: f.is_note ? "note" : null },
    h("h3", {}, f.is_note ? `Note: ${f.title}` : f.title),
    h("p", {}, f.evidence),
    h("p", { class: "advice" }, f.advice),
    f.groups.length ? h("div", { class: "links" }, ...f.groups.slice(0, 6).map(i =>
      h("button", { type: "button", class: "link", onclick: () => open(i) }, report.groups[i].name)),
      f.groups.length > 6 ? h("span", { class: "sub" }, `and ${f.groups.length - 6} more sites`) : null) : null)));
}
