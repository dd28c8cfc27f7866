import type { Palette } from "./colors";
import { h } from "./dom";
import * as fmt from "./format";
import { processNames } from "./processes";
import type { Filters } from "./filter";
import { Lanes } from "./lanes";
import type { ObjectSharing, Report, SharedBlock, SharingThread, SharingUse } from "./payload";

const ROWS = 20, COLUMNS = 12, BLOCKS = 12;
const CLASS = { private: "private", read_only: "read only", one_writer: "one writes", many_writers: "several write", shared: "shared", too_few: "too few samples" };
const ABSENT = "–";

export function threadLabel(t: SharingThread): string {
  return t.name ? `${t.name} (${t.tid})` : String(t.tid);
}

/** A name without the place where it was allocated. */
export function shortName(name: string): string {
  const at = name.lastIndexOf(" (");
  return fmt.name(at > 0 && name.endsWith(")") ? name.slice(0, at) : name);
}

/** What tells objects of one name apart: ` #2`; nothing where a name is used once. */
export function marks(sharing: SharingUse): string[] {
  const all = new Map<string, number>(), seen = new Map<string, number>();
  for (const o of sharing.objects) all.set(o.name, (all.get(o.name) ?? 0) + 1);
  return sharing.objects.map(o => {
    if (all.get(o.name) === 1) return "";
    const n = (seen.get(o.name) ?? 0) + 1;
    seen.set(o.name, n);
    return ` #${n}`;
  });
}

/** A weight in its unit. */
export function amount(sharing: SharingUse, weight: number): string {
  if (sharing.unit === "nanoseconds") return `${fmt.time(weight / 1000, 1000)} at accesses`;
  const words = { accesses: "accesses", samples: "samples", first_accesses: "first accesses", pages: "pages touched first" };
  return `${fmt.count(weight)} ${words[sharing.unit]}`;
}

/** The colours of threads: those that the map uses for them. */
export class Hues {
  palette: Palette | null = null;
  private readonly index: number[];

  constructor(report: Report, sharing: SharingUse) {
    const known = new Map(report.threads.map((t, i) => [`${t.pid}/${t.tid}`, i]));
    let next = report.threads.length;
    this.index = sharing.threads.map(t => known.get(`${t.pid}/${t.tid}`) ?? next++);
  }

  thread(position: number): string { return this.palette!.threadCss(this.index[position]); }
}

/** Who uses what: the matrix of threads and objects, the parts of objects, flows, and lines that threads meet in. */
export class Sharing {
  readonly elements: HTMLElement[] = [];
  private readonly hues: Hues;
  private readonly lanes: Lanes | null = null;
  private readonly body = h("tbody", {});
  private readonly head = h("tr", {});
  private readonly most: number;
  private readonly marks: string[];

  constructor(readonly report: Report, readonly sharing: SharingUse, readonly filters: Filters) {
    this.hues = new Hues(report, sharing);
    this.marks = marks(sharing);
    this.most = Math.max(1, ...sharing.objects.flatMap(o => o.threads.map(t => t.weight)));
    const more = Math.max(0, sharing.objects.length - ROWS) + sharing.omitted_objects;
    const columns = sharing.threads.length > COLUMNS ? ` The ${COLUMNS} busiest of ${fmt.count(sharing.threads.length)} threads have a column.` : "";
    this.elements.push(h("section", { class: "card wide matrix", "aria-label": "Who uses what" },
      h("div", { class: "toolbar" }, h("h2", {}, "Who uses what"), h("span", { class: "note" }, from(sharing))),
      sharing.enough && h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Matrix of objects and threads" }, h("table", {}, h("thead", {}, this.head), this.body)),
      h("p", { class: "note pad" }, !sharing.enough ? "These are too few to say which threads use what: record longer, or with more --samples." : `${reading(sharing)} ${sharing.weight}${columns}${more ? ` ${fmt.count(more)} more objects have less use.` : ""}`)));
    if (sharing.axis && sharing.source !== "faults" && sharing.enough) {
      this.lanes = new Lanes(sharing, this.hues, filters, o => this.passes(o));
      this.elements.push(this.lanes.element);
    }
    const blocks = [...sharing.lines, ...sharing.pages.filter(b => b.kind === "false_sharing")];
    if (blocks.length) this.elements.push(contention(sharing, blocks));
  }

  theme(palette: Palette): void {
    this.hues.palette = palette;
    this.refresh();
    this.lanes?.theme(palette);
  }

  /** Whether an object passes the filters. */
  private passes(o: ObjectSharing): boolean {
    const { threads } = this.sharing;
    const { filter } = this.filters;
    if (!this.filters.object(o.name, o.kind)) return false;
    return (filter.pid === null && filter.thread === null) || o.threads.some(p => this.filters.thread(threads[p.thread].pid, threads[p.thread].tid));
  }

  /** Shows what passes the filters now. */
  refresh(): void {
    if (!this.hues.palette) return;
    const threads = this.sharing.threads.slice(0, COLUMNS);
    this.head.replaceChildren(
      ...["Object", "Objects", "Size", this.sharing.source === "traps" ? "Firsts" : "Use", "Writes", "Sharing", "First by", "Never by"].map((text, i) => h("th", { scope: "col", class: i && i < 5 ? "num" : "" }, text)),
      ...(this.report.processes.length > 1 ? [h("th", { scope: "col" }, "Process")] : []),
      h("th", { scope: "col" }, "Parts"),
      ...threads.map((t, i) => h("th", { scope: "col", class: "num thread", title: threadLabel(t) }, h("i", { style: `background:${this.hues.thread(i)}` }), String(t.tid))));
    const shown = this.sharing.objects.map((o, i) => ({ o, mark: this.marks[i] })).filter(({ o }) => this.passes(o)).slice(0, ROWS);
    const several = this.report.processes.length > 1;
    this.body.replaceChildren(...shown.map(({ o, mark }) => this.row(o, mark, threads.length, several)));
    this.lanes?.refresh();
  }

  private row(o: ObjectSharing, mark: string, columns: number, several: boolean): HTMLElement {
    const { total } = this.sharing;
    const never = o.never_touched_by;
    const cells = Array.from({ length: columns }, (_, i) => {
      const part = o.threads.find(t => t.thread === i);
      if (!part) return h("td", { class: "num heat" }, "");
      const share = part.weight / Math.max(1, o.weight), heat = Math.sqrt(part.weight / this.most);
      const title = `${threadLabel(this.sharing.threads[i])} in ${o.name}: ${amount(this.sharing, part.weight)}, ${o.writes === null ? "writes not known" : `${fmt.share(part.writes / Math.max(1, part.weight))} of it writes`}${part.first_pages === null ? "" : `, ${fmt.pages(part.first_pages)} touched first`}`;
      return h("td", { class: "num heat", title, style: `--heat:${(heat * 100).toFixed(1)}%` }, percent(share));
    });
    return h("tr", {},
      h("td", { class: "c-name", title: o.name }, h("span", { class: "named" }, shortName(o.name)), mark ? h("span", { class: "sub" }, mark) : null),
      h("td", { class: "num" }, fmt.count(o.objects)),
      h("td", { class: "num" }, fmt.bytes(o.bytes)),
      h("td", { class: "num" }, fmt.share(o.weight / Math.max(1, total))),
      h("td", { class: "num" }, o.writes === null ? ABSENT : percent(o.writes / Math.max(1, o.weight))),
      h("td", {}, o.class === null ? ABSENT : CLASS[o.class]),
      h("td", {}, o.first_tid === null ? ABSENT : String(o.first_tid)),
      h("td", { title: never?.join(", ") ?? null }, never === null ? ABSENT : never.length > 2 ? `${never.length} threads` : never.join(", ")),
      several ? h("td", {}, processNames(this.report, [...new Set(o.threads.map(p => this.sharing.threads[p.thread].pid))])) : null,
      h("td", {}, this.parts(o)),
      ...cells);
  }

  /** The distribution of an object's pages over threads. */
  private parts(o: ObjectSharing): HTMLElement | string {
    const { count, cells } = o.ranges;
    if (count < 2) return "";
    const weights = Array.from({ length: count }, () => new Map<number, number>());
    for (const c of cells) weights[c.range].set(c.thread, c.weight);
    const stops: string[] = [], words = new Map<string, number>();
    weights.forEach((of, i) => {
      const all = [...of.values()].reduce((a, b) => a + b, 0);
      const [thread, most] = [...of].sort((a, b) => b[1] - a[1])[0] ?? [null, 0];
      const colour = thread === null ? "transparent" : `color-mix(in srgb, ${this.hues.thread(thread)} ${(25 + 75 * Math.max(0, (most / Math.max(1, all)) * 2 - 1)).toFixed(0)}%, var(--page))`;
      stops.push(`${colour} ${((i / count) * 100).toFixed(2)}% ${(((i + 1) / count) * 100).toFixed(2)}%`);
      const who = thread === null ? "nobody" : threadLabel(this.sharing.threads[thread]);
      words.set(who, (words.get(who) ?? 0) + 1);
    });
    const title = `Of ${count} parts of ${fmt.pages(o.ranges.pages)} each: ${[...words].map(([who, n]) => `${n} most by ${who}`).join(", ")}`;
    return h("div", { class: "strip", role: "img", "aria-label": title, title, style: `background:linear-gradient(to right, ${stops.join(",")})` });
  }
}

function percent(share: number): string {
  if (share === 0) return "0 %";
  return share < 0.005 ? "< 1 %" : `${(share * 100).toFixed(0)} %`;
}

/** How the matrix is to be read. */
function reading(sharing: SharingUse): string {
  const parts = "Parts: the object from its first page to its last, in the colour of the thread that";
  if (sharing.source === "traps") return `A cell is the thread's share of the first accesses to pages of the object; its colour is stronger the more of all of them it is. ${parts} was first most often, paler where others were too.`;
  return `A cell is the thread's share of the use of the object; its colour is stronger the more of all use it is. ${parts} uses each part most, paler where others do too.`;
}

function from(sharing: SharingUse): string {
  if (sharing.source === "traps") return `trapped accesses: ${fmt.count(sharing.events)} times the first to a page in an interval`;
  if (sharing.source === "counts") return `every access counted: ${fmt.count(sharing.total)}`;
  if (sharing.source === "faults") return `first touches only: ${fmt.count(sharing.events)} page faults`;
  return sharing.unit === "nanoseconds" ? `${fmt.count(sharing.events)} samples of accesses, weighted by time` : `${fmt.count(sharing.events)} samples of accesses`;
}

function contention(sharing: SharingUse, blocks: SharedBlock[]): HTMLElement {
  const firsts = sharing.source === "traps";
  const rows = blocks.slice(0, BLOCKS).map(b => h("tr", {},
    h("td", { class: "c-name", title: b.name }, shortName(b.name) || "no known object"),
    h("td", {}, h("code", {}, fmt.hex(b.address))),
    h("td", {}, b.bytes > 64 ? "page" : "line"),
    h("td", {}, b.kind === "false_sharing" ? "different bytes" : "the same bytes"),
    h("td", { class: "num" }, firsts ? fmt.share(b.share) : `${fmt.share(b.share)} ± ${fmt.share(b.share_error)}`),
    h("td", { class: "num" }, fmt.count(b.turns)),
    ...b.threads.map(t => h("td", { class: "wrap" }, `${threadLabel(sharing.threads[t.thread])}: ${t.bytes.slice(0, 3).map(([f, e]) => `${f}–${e - 1}`).join(", ")}${t.bytes.length > 3 ? ", …" : ""}; ${fmt.count(t.writes)} of ${fmt.count(t.events)} write`))));
  const more = blocks.length - rows.length;
  return h("section", { class: "card wide matrix", "aria-label": "Lines that threads meet in" },
    h("div", { class: "toolbar" }, h("h2", {}, "Cache lines and pages that threads meet in"), h("span", { class: "note" }, "one of the two busiest threads writes")),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of cache lines and pages" }, h("table", {},
      h("thead", {}, h("tr", {}, ...["Object", "Address", "What", firsts ? "First at" : "They use", firsts ? "Of all firsts" : "Of all use", "Turns", "Busiest thread: bytes", "Second"].map((text, i) => h("th", { scope: "col", class: i === 4 || i === 5 ? "num" : "" }, text)))),
      h("tbody", {}, ...rows))),
    h("p", { class: "note pad" }, `${firsts ? "Different bytes may be false sharing: what the threads use later in an interval is not known, nor how many bytes an access has." : "Different bytes are false sharing: padding mends it. The same bytes are true sharing. ± is one standard error."} ${sharing.weight}${more > 0 ? ` ${fmt.count(more)} more.` : ""}`));
}
