import { blocks, choice, lines, pages, tables, withError } from "./alloc-tables";
import { h } from "./dom";
import { Flame, type FlameKind } from "./flame";
import * as fmt from "./format";
import { tile } from "./header";
import { MemoryChart } from "./memory-chart";
import type { AllocPage, Answer, FlameGraph, Judged, Judgement, Measure, Share, Uncounted } from "./payload";

const ANSWERS: Record<Answer, [string, string]> = {
  no: ["good", "It is not the allocator"], busy: ["note", "It works much"], yes: ["bad", "It is the allocator"], unknown: ["note", "Not known"],
};

function share(of: Share | null): string {
  return of ? `${fmt.share(of.share)} ± ${fmt.share(of.error)}` : "not known";
}

/** How long operations took, as far as that is known. */
function inOperations({ operations_ns: ns, operations_error: error, operations_least_ns: least }: Judgement["time"]): string {
  if (ns !== null) return withError(ns, error ?? 0);
  return least ? `at least ${fmt.duration(least)}` : "not known how long";
}

/** Nothing could be counted: there are no figures. */
function isUncounted(of: Judged): of is Uncounted {
  return of.operations === null;
}

/** Figures beside the verdict, and how they are known. */
function figures(of: Judgement): (HTMLElement | false)[] {
  const { trace, time, memory, operations, syscalls, faults } = of;
  const count = Object.values(operations).reduce((all, o) => all + o!.count, 0);
  const calls = syscalls.reduce((all, c) => all + c.count, 0);
  const waits = [time.waited_ns ? `${fmt.duration(time.waited_ns)} of it waiting for others` : "", time.queued_ns >= 1e6 ? `${fmt.duration(time.queued_ns)} of it without a CPU` : "", time.spinning?.share ? `${fmt.share(time.spinning.share)} of the CPU time in loops that wait` : ""].filter(Boolean);
  const resident = memory.peak_heap_resident_bytes;
  return [
    h("dl", { class: "tiles figures" },
      tile("Share of CPU time", fmt.maybe(of.verdict.time_share, fmt.share), of.verdict.time_share_error === null ? "clocks: not known" : `± ${fmt.share(of.verdict.time_share_error).replace(" ", "\u00a0")}`, `by clocks of CPUs: ${share(time.sampled)}; by timing one operation in ${fmt.count(trace.time_every)}: ${share(time.timed)}`),
      tile("Memory nobody asked for", fmt.maybe(of.verdict.memory_share, fmt.share), memory.unknown ? "not known" : "of its most resident memory", memory.unknown ?? undefined),
      tile("Asked for, peak", fmt.maybe(memory.peak_requested_bytes, fmt.bytes), memory.peak_ns === null ? "not known" : `after ${fmt.duration(memory.peak_ns)}`, memory.uncounted ?? (memory.peak_usable_bytes === null ? undefined : `in blocks of ${fmt.bytes(memory.peak_usable_bytes)}`)),
      tile("Resident, most seen", fmt.maybe(resident, fmt.bytes), memory.unknown ? "not known" : memory.blowup === null ? "of the allocator" : `${memory.blowup.toFixed(2)} × what was asked for`, memory.unknown ?? `of what the allocator has mapped, at the look that found most, ${fmt.duration(memory.peak_heap_resident_before_end_ns ?? 0)} before the end; between looks it may have been more`),
      tile("At the end", fmt.maybe(memory.end_requested_bytes, fmt.bytes), memory.end_blocks === null ? "not known" : `in ${fmt.count(memory.end_blocks)} ${memory.end_blocks === 1 ? "block" : "blocks"}`, memory.uncounted ?? undefined),
      tile("Operations", fmt.count(count), `${inOperations(time)} in all`),
      tile("System calls in them", fmt.count(calls), `${fmt.count(faults.inside)} page faults`),
      tile("Allocator", trace.allocator || "unknown", trace.allocator_file)),
    h("p", { class: "note" }, `By the clocks of CPUs operations took ${share(time.sampled)} of the CPU time; by timing one in ${fmt.count(trace.time_every)}, ${share(time.timed)}. `
      + `In operations ${inOperations(time)}${waits.map(w => `, ${w}`).join("")}; ${fmt.duration(time.cpu_ns)} of CPU time in ${fmt.duration(trace.duration_ns)}; counting took ${fmt.duration(time.counting_ns)} besides. `
      + `A system call of any program took ${fmt.duration(trace.call_ns)} meanwhile, ${fmt.duration(trace.plain_call_ns)} before.`
      + (trace.probe_ns === null ? "" : ` Probes counted the operations, and made each ${fmt.duration(trace.probe_ns)} longer.`)
      + (trace.attached ? " The process ran before: blocks that it had then are not known." : "")),
    time.differ && h("p", { class: "warning" }, "The two shares differ by more than their errors: reading the clock twice makes an operation of a few nanoseconds longer, and timed operations that wait for a CPU seem long."),
  ];
}

function verdict(of: Judged): HTMLElement {
  const { trace } = of;
  const [tone, word] = ANSWERS[of.verdict.answer];
  return h("section", { class: `card wide verdict ${tone}`, "aria-label": "Verdict" },
    trace.cut && h("p", { class: "warning" }, trace.cut),
    trace.limited && h("p", { class: "warning" }, trace.limited),
    trace.uncounted && h("p", { class: "warning" }, trace.uncounted),
    h("p", { class: "sentence" }, h("span", { class: `badge ${tone}` }, word), of.verdict.sentence),
    ...trace.notes.map(note => h("p", { class: "warning" }, note)),
    trace.lost > 0 && h("p", { class: "warning" }, `${fmt.count(trace.lost)} operations were not counted, or what the kernel did within them.`),
    ...(isUncounted(of) ? [] : figures(of)));
}

function diagnoses({ diagnoses, undecided, memory }: Judgement): HTMLElement {
  const none = memory.uncounted ? `None is known: ${memory.uncounted}.` : undecided.length ? "None is known." : "None: no disease that is known of allocators was seen.";
  return h("section", { class: "card wide diagnoses", "aria-label": "Diagnoses" },
    h("h2", {}, diagnoses.length ? `Diagnoses (${diagnoses.length})` : "Diagnoses"),
    diagnoses.length
      ? h("ol", { class: "findings" }, ...diagnoses.map(d => h("li", {},
        h("h3", {}, d.title[0].toUpperCase() + d.title.slice(1), h("span", { class: "sub" }, ` ${d.id}, costs ${fmt.share(d.share)} of ${d.share_of}${d.by_program ? "; the program's own doing" : ""}`)),
        h("p", {}, d.evidence),
        h("p", { class: "advice" }, d.advice))))
      : h("p", { class: "hint" }, none),
    ...undecided.map(d => h("p", { class: "warning" }, `Perhaps ${d.title} (${d.id}): that is not known, as the run is too short. ${d.evidence} Record a longer run.`)));
}

const BYTES = { show: fmt.bytes, exact: (n: number) => `${fmt.count(n)} bytes` };
const SAMPLED = "Sampled blocks stand for all; each figure has its error.";
const MEASURES: Record<Measure, Omit<FlameKind, "id" | "chains">> = {
  "allocated": { name: "Allocated", title: "Bytes allocated", root: "all that was allocated", note: SAMPLED, ...BYTES },
  "peak": { name: "At the peak", title: "Bytes at the peak", root: "what lived when most did", note: SAMPLED, ...BYTES },
  "never-freed": { name: "Never freed", title: "Bytes never freed", root: "what was never freed", note: SAMPLED, ...BYTES },
  "count": { name: "Blocks", title: "Number of blocks", root: "all blocks", note: SAMPLED, show: n => `${fmt.count(n)} ${Math.round(n) === 1 ? "block" : "blocks"}`, exact: n => `${fmt.count(n)} ${Math.round(n) === 1 ? "block" : "blocks"}` },
  "time": { name: "Time", title: "Time of operations, by caller", root: "all operations", note: "One frame deep: of an operation only the function that it returns to is known. Times are made of those that were timed.", show: fmt.duration, exact: n => `${fmt.count(n)} ns` },
  "idle": { name: "Idle", title: "Bytes that lie idle", root: "what lies idle", note: "", ...BYTES },
};

function kind(graph: FlameGraph, of: Judgement): FlameKind {
  const measure = MEASURES[graph.measure];
  const isTime = graph.measure === "time";
  const stack = (row: number | null): string[] => {
    if (isTime) return [row === null ? "(other callers)" : of.sites[row].label];
    const frames = row === null ? ["(other call stacks)"] : of.blocks.sites[row].stack;
    return frames.length ? [...frames].reverse() : ["(unknown caller)"];
  };
  const idle = graph.idle_for_ns === null ? "" : `Never freed, and not touched in the last ${fmt.duration(graph.idle_for_ns)} of the process, or never. A page counts as touched for all blocks on it. How far off the figures are is not known.`;
  return { ...measure, id: graph.measure, note: measure.note || idle, chains: graph.stacks.map(s => ({ stack: stack(s.row), value: s.weight, error: s.error, rest: s.row === null })) };
}

/** What the page says of the allocator, the verdict first. */
export class Allocator {
  readonly elements: HTMLElement[];
  private readonly flame: Flame | null;

  constructor(alloc: AllocPage) {
    const of = alloc.judgement;
    if (isUncounted(of)) {
      this.flame = null;
      this.elements = [verdict(of)];
      return;
    }
    const [first] = of.processes;
    const had = of.processes.every(p => p.peak_requested_bytes !== null) ? "had" : "may have had";
    const whose = of.processes.length > 1 && first ? ` of process ${first.pid} (${first.exe.split("/").pop()}), which of ${fmt.count(of.processes.length)} ${had} the highest peak` : "";
    const kinds = alloc.flames.map(graph => kind(graph, of));
    this.flame = kinds.length ? new Flame("Flame graphs of the allocator", kinds, kinds.find(k => k.id === "peak") ?? kinds[0]) : null;
    const memory = new MemoryChart(of.memory, `Memory over time${whose}`);
    this.elements = [verdict(of), diagnoses(of), memory.element, this.flame?.element, pages(of), lines(of), choice(of), blocks(of), tables({ ...alloc, judgement: of })].filter(e => e != null);
  }

  /** Draws again what the theme changes. */
  theme(): void {
    this.flame?.draw();
  }
}
