import { h } from "./dom";
import * as fmt from "./format";
import type { GroupRow, Report } from "./payload";
import { processName } from "./processes";

/** What of the report is to be shown; what `varve report` takes as --object, --kind, --pid, --thread, --from and --to. */
export interface Filter {
  object: string;
  kind: string;
  pid: number | null;
  /** position among the threads of the report */
  thread: number | null;
  /** microseconds */
  from: number | null;
  to: number | null;
}

const ALL: Filter = { object: "", kind: "", pid: null, thread: null, from: null, to: null };

/** Whether a text is meant: by `*` and `?` all of it, or its beginning before a bracket; else every word is in it. */
function named(wanted: string, text: string): boolean {
  const [low, name] = [wanted.trim().toLowerCase(), text.toLowerCase()];
  if (!/[*?]/.test(low)) return low.split(/\s+/).every(word => name.includes(word));
  const pattern = new RegExp(`^${low.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".")}$`, "s");
  return pattern.test(name) || pattern.test(name.split(" (")[0]);
}

/** The filters above the report, and what passes them. */
export class Filters {
  readonly element: HTMLElement;
  filter: Filter = { ...ALL };
  private readonly note = h("span", { class: "note", "aria-live": "polite" });
  private readonly clear = h("button", { type: "button", class: "tool", onclick: () => this.reset() }, "Clear filters");
  private readonly fields: (HTMLInputElement | HTMLSelectElement)[] = [];

  constructor(readonly report: Report, readonly onChange: (filter: Filter) => void) {
    const kinds = [...new Set(report.groups.map(g => g.kind))].sort();
    const several = report.processes.length > 1;
    const threads = report.threads.length > 1;
    const choose = (label: string, none: string, options: [string, string][], set: (v: string) => void) => {
      const select = h("select", { "aria-label": label, onchange: () => { set(select.value); this.changed(); } }, h("option", { value: "" }, none), ...options.map(([value, text]) => h("option", { value }, text)));
      this.fields.push(select);
      return h("label", {}, h("span", {}, label), select);
    };
    const type = (label: string, hint: string, width: string, set: (v: string) => void) => {
      const input = h("input", { type: "search", placeholder: hint, "aria-label": label, style: `width:${width}`, oninput: () => { set(input.value); this.changed(); } });
      this.fields.push(input);
      return h("label", {}, h("span", {}, label), input);
    };
    const number = (v: string) => (v === "" ? null : Number(v));
    this.element = h("section", { class: "card filters", "aria-label": "Filters" }, h("div", { class: "toolbar" },
      type("Object", "name or site, * and ?", "15em", v => { this.filter.object = v; }),
      choose("Kind", "all", kinds.map(k => [k, k]), v => { this.filter.kind = v; }),
      several ? choose("Process", `all ${report.processes.length}`, report.processes.map(p => [String(p.pid), processName(report, p.pid)]), v => { this.filter.pid = number(v); }) : null,
      threads ? choose("Thread", `all ${report.threads.length}`, report.threads.map((t, i) => [String(i), t.name ? `${t.name} (${t.tid})` : String(t.tid)]), v => { this.filter.thread = number(v); }) : null,
      report.trace.clock_unit === "nanoseconds" ? type("From", "0 s", "6em", v => { this.filter.from = moment(v); }) : null,
      report.trace.clock_unit === "nanoseconds" ? type("To", fmt.time(report.duration, 1e5), "6em", v => { this.filter.to = moment(v); }) : null,
      this.clear, this.note));
    this.say();
  }

  get any(): boolean {
    return (Object.keys(ALL) as (keyof Filter)[]).some(key => this.filter[key] !== ALL[key]);
  }

  private reset(): void {
    this.filter = { ...ALL };
    for (const field of this.fields) field.value = "";
    this.changed();
  }

  private changed(): void {
    this.say();
    this.onChange(this.filter);
  }

  private say(): void {
    this.clear.hidden = !this.any;
    this.note.textContent = this.any ? "Shows a part; figures are of the whole recording. varve report takes the same filters and counts the part alone." : "";
  }

  /** Whether a group is to be shown. */
  group(g: GroupRow): boolean {
    const { pid, thread, from, to } = this.filter;
    if (!this.object(g.name, g.kind, g.site)) return false;
    if (pid !== null && !g.processes.some(p => p.pid === pid)) return false;
    if (thread !== null && !this.isUsedBy(g, thread)) return false;
    if (from === null && to === null) return true;
    const lane = g.lane === null ? undefined : this.report.lanes[g.lane];
    if (lane) return this.report.isTouched(lane, from ?? 0, to ?? Infinity);
    const at = (ns: number | null, absent: number) => (ns === null ? absent : (ns - this.report.trace.start_ns) / 1000);
    return at(g.first_touch_ns, Infinity) <= (to ?? Infinity) && at(g.last_touch_ns, -1) >= (from ?? 0);
  }

  /** Whether what has this name, kind and site is to be shown, whoever uses it. */
  object(name: string, kind: string | null, site: string | null = null): boolean {
    if (this.filter.kind && kind !== null && kind !== this.filter.kind) return false;
    return named(this.filter.object, name) || (site !== null && named(this.filter.object, `${name} ${site}`));
  }

  /** Whether what this process or thread does is to be shown. */
  thread(pid: number, tid: number): boolean {
    const only = this.filter.thread === null ? null : this.report.threads[this.filter.thread];
    return (this.filter.pid === null || pid === this.filter.pid) && (!only || (only.pid === pid && only.tid === tid));
  }

  private isUsedBy(g: GroupRow, thread: number): boolean {
    const { pid, tid } = this.report.threads[thread];
    const is = (t: { pid: number; tid: number }) => t.pid === pid && t.tid === tid;
    if (g.threads?.some(is)) return true;
    const { sharing } = this.report;
    return sharing !== null && sharing.objects.some(o => o.name === g.name && o.kind === g.kind && o.threads.some(p => is(sharing.threads[p.thread])));
  }
}

/** A time as a person writes it, in microseconds: seconds unless it says ms, us or min. */
export function moment(text: string): number | null {
  const found = /^\s*(\d+(?:[.,]\d+)?)\s*(ms|us|µs|s|min|)\s*$/.exec(text);
  if (!found) return null;
  const unit = { ms: 1e3, us: 1, "µs": 1, s: 1e6, min: 6e7, "": 1e6 }[found[2]]!;
  return Number(found[1].replace(",", ".")) * unit;
}
