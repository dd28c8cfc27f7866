import { h } from "./dom";
import * as fmt from "./format";
import type { CountUse, Report, Sampled, SampleUse } from "./payload";

const ROWS = 15;

/** What a source does not tell is a dash, never a zero. */
const ABSENT = "–";

function grid(title: string, heads: string[], rows: string[][], all: number): HTMLElement | null {
  if (!rows.length) return null;
  const more = all - rows.length;
  return h("section", { class: "card objects sampled", "aria-label": title },
    h("h2", {}, title),
    h("table", {},
      h("thead", {}, h("tr", {}, ...heads.map((head, i) => h("th", { scope: "col", class: i ? "num" : "" }, head)))),
      h("tbody", {}, ...rows.map(row => h("tr", {}, ...row.map((cell, i) => h("td", { class: i ? "num" : "" }, cell)))))),
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

function ofSamples(s: SampleUse): (HTMLElement | null)[] {
  const timed = s.latency_cycles !== null;
  const heads = ["samples", "share", "reads", "writes", ...(timed ? ["median latency, cycles", "99 % within"] : [])];
  return [
    h("section", { class: "card objects sampled" },
      h("h2", {}, `${fmt.count(s.samples)} samples`),
      h("p", { class: "note" }, s.weight),
      h("p", { class: "note" }, `${fmt.share(s.with_address / s.samples)} have an address, ${fmt.share(s.with_object / s.samples)} lie in a known object.`)),
    grid("Levels of memory", ["answered by", "samples", "share", "median latency, cycles"], s.levels.map(l => [
      l.level.replaceAll("_", " "), fmt.count(l.samples), fmt.share(l.samples / s.samples),
      l.latency_cycles === null ? ABSENT : fmt.count(l.latency_cycles.median)]), s.levels.length),
    grid("Sampled objects", ["object", ...heads], s.objects.slice(0, ROWS).map(o => [o.name, ...cells(o, s.samples, timed)]), s.objects.length + s.omitted.objects),
    grid("Sampled code", ["place", ...heads], s.places.slice(0, ROWS).map(p => [p.place, ...cells(p, s.samples, timed)]), s.places.length + s.omitted.places),
    grid("Sampled threads", ["thread", ...heads], s.threads.slice(0, ROWS).map(t => [t.name ? `${t.name} (${t.tid})` : String(t.tid), ...cells(t, s.samples, timed)]), s.threads.length + s.omitted.threads),
  ];
}

function ofCounts(c: CountUse): (HTMLElement | null)[] {
  return [
    grid("Accesses by object", ["object", "reads", "writes", "threads"], c.objects.slice(0, ROWS).map(o => [o.name, fmt.count(o.reads), fmt.count(o.writes), String(o.threads.length)]), c.objects.length),
    grid("Accesses by thread", ["thread", "reads", "writes"], c.threads.slice(0, ROWS).map(t => [t.tid === null ? ABSENT : String(t.tid), fmt.count(t.reads), fmt.count(t.writes)]), c.threads.length),
  ];
}

/** Sections for what samples and counts say; none where the trace has neither. */
export function samples(report: Report): HTMLElement[] {
  const sections = [...(report.samples ? ofSamples(report.samples) : []), ...(report.counts ? ofCounts(report.counts) : [])];
  return sections.filter(s => s !== null);
}
