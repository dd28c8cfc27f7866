import { h } from "./dom";
import * as fmt from "./format";
import { Flame, type FlameKind } from "./flame";
import type { Filters } from "./filter";
import type { CountUse, LineTime, Report, SampleUse } from "./payload";
import { shortName } from "./sharing";

type Sampled = Pick<SampleUse, "samples" | "reads" | "writes" | "latency_cycles">;
const ROWS = 15;

/** What a source does not say is a dash, never a zero. */
const ABSENT = "–";

function grid(title: string, heads: string[], rows: string[][], all: number): HTMLElement | null {
  if (!rows.length) return null;
  const more = all - rows.length;
  return h("section", { class: "card sampled", "aria-label": title },
    h("h2", {}, title),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${title}` }, h("table", {},
      h("thead", {}, h("tr", {}, ...heads.map((head, i) => h("th", { scope: "col", class: i ? "num" : "" }, head)))),
      h("tbody", {}, ...rows.map(row => h("tr", {}, ...row.map((cell, i) => h("td", { class: i ? "num" : "c-name", title: i ? null : cell }, cell))))))),
    more > 0 ? h("p", { class: "note" }, `and ${fmt.count(more)} more`) : null);
}

function cells(s: Sampled, whole: number, timed: boolean): string[] {
  const latency = s.latency_cycles;
  return [
    fmt.count(s.samples),
    fmt.share(s.samples / whole),
    s.reads === null ? ABSENT : fmt.count(s.reads),
    s.writes === null ? ABSENT : fmt.count(s.writes),
    ...(timed ? [latency === null ? ABSENT : fmt.count(latency.median), latency === null ? ABSENT : fmt.count(latency.p99)] : []),
  ];
}

function ofSamples(s: SampleUse, filters: Filters): (HTMLElement | null)[] {
  const timed = s.latency_cycles !== null;
  // Samples of several events have no sum, unless all of them are accesses.
  const areAccesses = s.events.every(e => e.with_address > 0);
  const heads = ["samples", "share", "reads", "writes", ...(timed ? ["median latency, cycles", "99 % within"] : [])];
  return [
    h("section", { class: "card sampled" },
      h("h2", {}, `${fmt.count(s.samples)} samples`),
      h("p", { class: "note" }, s.weight),
      s.with_address ? h("p", { class: "note" }, `${fmt.share(s.with_address / s.samples)} have an address, ${fmt.share(s.with_object / s.samples)} lie in a known object.`) : null),
    ...(areAccesses && s.events.length < 2 ? [] : s.events).map(e => grid(`${e.event}: ${fmt.count(e.samples)} samples${e.periods === null ? "" : `, ${fmt.count(e.periods)} of the event`}`, ["place", "samples", "share"],
      e.places.slice(0, ROWS).map(p => [p.place, fmt.count(p.samples), fmt.share(p.share)]), e.places.length + e.omitted_places)),
    grid("Levels of memory", ["answered by", "samples", "share", "median latency, cycles"], s.levels.map(l => [
      l.level.replaceAll("_", " "), fmt.count(l.samples), fmt.share(l.samples / s.samples),
      l.latency_cycles === null ? ABSENT : fmt.count(l.latency_cycles.median)]), s.levels.length),
    grid("Sampled objects", ["object", ...heads], objectsOf(filters, s.objects).slice(0, ROWS).map(o => [counted(o.name, o.objects), ...cells(o, s.samples, timed)]), s.objects.length + s.omitted.objects),
    !areAccesses ? null : grid("Sampled code", ["place", ...heads], s.places.slice(0, ROWS).map(p => [p.place, ...cells(p, s.samples, timed)]), s.places.length + s.omitted.places),
    !areAccesses && s.events.length > 1 ? null : grid("Sampled threads", ["thread", ...heads], s.threads.filter(t => filters.thread(t.pid, t.tid)).slice(0, ROWS).map(t => [t.name ? `${t.name} (${t.tid})` : String(t.tid), ...cells(t, s.samples, timed)]), s.threads.length + s.omitted.threads),
  ];
}

function ofCounts(c: CountUse, filters: Filters): (HTMLElement | null)[] {
  return [
    grid("Accesses by object", ["object", "reads", "writes", "threads"], objectsOf(filters, c.objects).slice(0, ROWS).map(o => [o.name, fmt.count(o.reads), fmt.count(o.writes), String(o.threads.length)]), c.objects.length),
    grid("Accesses by thread", ["thread", "reads", "writes"], c.threads.slice(0, ROWS).map(t => [t.tid === null ? ABSENT : String(t.tid), fmt.count(t.reads), fmt.count(t.writes)]), c.threads.length),
  ];
}

function place(l: LineTime): string {
  const inKernel = (l.kernel_ns ?? 0) > (l.time_ns ?? 0) / 2;
  const marks = [l.called, inKernel && "in the kernel"].filter(Boolean);
  return marks.length ? `${lineOfCode(l)} (${marks.join(", ")})` : lineOfCode(l);
}

function lineOfCode(l: LineTime): string {
  const file = l.file?.split("/").pop();
  if (file) return `${file}${l.line === null ? "" : `:${l.line}`}${l.function ? `, in ${l.function}` : ""}`;
  return [l.function, l.module && `(${l.module.split("/").pop()})`].filter(Boolean).join(" ") || "unknown";
}

/** The time at accesses, whether their address is known or gone. */
function atAccesses(of: { access_ns: number | null, overwritten_ns: number | null }): number | null {
  return of.access_ns === null ? null : of.access_ns + (of.overwritten_ns ?? 0);
}

/** What samples with a weight in time say: where the time goes. */
function ofTime(s: SampleUse, filters: Filters): (HTMLElement | null)[] {
  const part = (of: number | null, whole: number | null) => (of === null || !whole ? ABSENT : fmt.share(of / whole));
  const n = s.note;
  const gone = s.overwritten_ns ?? 0;
  const accesses = atAccesses(s);
  const lost = [[n?.overwritten, "at addresses that are gone"], [n?.gathers, "gathers"]] as const;
  const why = lost.filter(([count]) => count).map(([count, what]) => `${fmt.count(count!)} ${what}`).join(", ");
  const resolved = n && n.behind + n.at + n.ahead + n.hardware;
  return [
    h("section", { class: "card sampled wide", "aria-label": "Time at accesses" },
      h("h2", {}, "Time at accesses"),
      h("p", { class: "note" }, s.weight),
      n && h("p", { class: "note" }, `${fmt.count(n.taken)} samples at ${s.rate}: ${fmt.count(resolved!)} resolved, ${fmt.count(n.undecoded)} not decoded${why && ` (${why})`}, ${fmt.count(n.in_calls)} in system calls, ${fmt.count(n.in_traps)} in faults and interrupts; ${fmt.count(n.dropped)} dropped.`)),
    grid("Objects by time", ["object", "time", "of it writes", "steps", "upward"], objectsOf(filters, s.objects).slice(0, ROWS).map(o => [
      counted(o.name, o.objects), part(o.time_ns, accesses), part(o.write_ns, o.time_ns),
      o.steps === null ? ABSENT : `of ${fmt.count(o.steps.stride_bytes)} B`, o.steps === null ? ABSENT : fmt.share(o.steps.upward)]).concat(gone ? [["(address gone: the instruction replaced the register that held it)", part(gone, accesses), ABSENT, ABSENT, ABSENT]] : []), s.objects.length + s.omitted.objects),
    grid("Lines of code by time", ["line", "time", "at accesses", "of it writes"], s.lines.slice(0, ROWS).map(l => [
      place(l), part(l.time_ns, s.time_ns), part(atAccesses(l), s.time_ns), part(l.write_ns, l.access_ns)]), s.lines.length + s.omitted.lines),
    grid("Threads by time", ["thread", "time", "at accesses", "in system calls"], s.threads.filter(t => filters.thread(t.pid, t.tid)).slice(0, ROWS).map(t => [
      t.name ? `${t.name} (${t.tid})` : String(t.tid), part(t.time_ns, s.time_ns), part(atAccesses(t), s.time_ns), part(t.call_ns, s.time_ns)]), s.threads.length + s.omitted.threads),
  ];
}

/** Sections for what samples and counts say, and the flame graph; none where the trace has neither. */
export class Samples {
  readonly elements: HTMLElement[];
  readonly flame: Flame | null;
  private readonly tables = h("div", { class: "wide tables" });

  constructor(readonly report: Report, readonly filters: Filters) {
    const { samples } = report;
    this.flame = samples && samples.flame.length ? new Flame("Flame graph", [flameOf(samples)]) : null;
    this.refresh();
    this.elements = [this.flame?.element, this.tables.childElementCount ? this.tables : null].filter(e => e != null);
  }

  /** Shows what passes the filters now. */
  refresh(): void {
    const { samples: s, counts } = this.report;
    this.tables.replaceChildren(...[...(s ? (s.time_ns === null ? ofSamples(s, this.filters) : ofTime(s, this.filters)) : []), ...(counts ? ofCounts(counts, this.filters) : [])].filter(e => e !== null));
  }
}

/** The call chains of samples. */
function flameOf(s: SampleUse): FlameKind {
  const timed = s.time_ns !== null;
  const show = (v: number) => (timed ? fmt.time(v / 1000, 1000) : `${fmt.count(v)} samples`);
  return {
    id: "samples", name: "samples", root: "all accesses", show, exact: show,
    title: timed ? "Flame graph of the time at accesses" : "Flame graph of samples",
    chains: s.flame.map(c => ({ stack: c.stack.split(";"), value: timed ? c.time_ns ?? 0 : c.samples, error: null })),
    note: timed ? "Width is time at the instruction, not a number of accesses." : s.weight,
  };
}

/** The objects of a list that pass the filters. */
function objectsOf<T extends { name: string; kind: string; pid?: number; threads: { pid?: number; tid: number | null }[] }>(filters: Filters, all: T[]): T[] {
  const { pid, thread } = filters.filter;
  const uses = (o: T) => (thread === null ? pid === null || o.pid === undefined || o.pid === pid || o.threads.some(t => t.pid === pid)
    : o.threads.some(t => t.tid !== null && filters.thread(t.pid ?? filters.report.threads[thread].pid, t.tid)));
  return all.filter(o => filters.object(o.name, o.kind) && uses(o));
}

/** A name with the number of objects that it stands for. */
function counted(name: string, objects: number): string {
  return objects > 1 ? `${shortName(name)} ×${fmt.count(objects)}` : shortName(name);
}
