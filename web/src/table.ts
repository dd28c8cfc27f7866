import { h } from "./dom";
import type { Filters } from "./filter";
import * as fmt from "./format";
import { PAGE_BYTES, type GroupRow, type Obj, type Report } from "./payload";
import { processName, processNames } from "./processes";
import { threadName } from "./tip";

/** What a cell shows of a group, and of one of its objects. */
interface ColumnSpec {
  key: string;
  title: string;
  hint: string;
  numeric: boolean;
  value(g: GroupRow): number | string | null;
  text(g: GroupRow): string;
  one(o: Obj): string;
  bar?(g: GroupRow): number;
}
const FIRST_ROWS = 25;

/** The sortable table of groups of objects, which open to their objects. Rows beyond the first ones are made when asked for. */
export class ObjectTable {
  readonly element: HTMLElement;
  private readonly body = h("tbody", {});
  private readonly note = h("span", { class: "note num", "aria-live": "polite" });
  private readonly more = h("button", { type: "button", class: "tool more", hidden: true, onclick: () => { this.limit *= 5; this.fill(); } }, "Show more");
  private readonly heads = new Map<string, HTMLElement>();
  private readonly columns: ColumnSpec[];
  private readonly open = new Set<number>();
  private sort = { key: "page_touches", down: true };
  private limit = FIRST_ROWS;
  private selected: { group: number | null; object: number | null } = { group: null, object: null };

  constructor(readonly report: Report, readonly filters: Filters, readonly onSelect: (group: number, object: number | null) => void) {
    this.columns = columns(report, filters);
    const head = h("tr", {}, ...this.columns.map(c => {
      const th = h("th", { scope: "col", class: `c-${c.key}${c.numeric ? " num" : ""}` },
        h("button", { type: "button", title: c.hint, onclick: () => this.sortBy(c) }, c.title));
      this.heads.set(c.key, th);
      return th;
    }));
    this.element = h("section", { class: "card objects", "aria-label": "Objects" },
      h("div", { class: "toolbar" }, h("h2", {}, "Objects by allocation site"), this.note),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of objects" },
        h("table", {}, h("thead", {}, head), this.body)),
      this.more);
    this.fill();
  }

  /** Shows what passes the filters now. */
  refresh(): void {
    this.limit = FIRST_ROWS;
    this.fill();
  }

  select(group: number | null, object: number | null): void {
    this.selected = { group, object };
    if (group !== null && object !== null && this.report.groups[group].objects > 1 && !this.open.has(group)) {
      this.open.add(group);
      this.fill();
    }
    for (const row of this.body.rows) this.mark(row);
  }

  private mark(row: HTMLTableRowElement): void {
    const { group, object } = this.selected;
    const sole = object === null || (group !== null && this.report.groups[group].objects === 1);
    const on = group !== null && (row.dataset.object !== undefined ? row.dataset.object === String(object) : sole && row.dataset.group === String(group));
    row.classList.toggle("selected", on);
    row.setAttribute("aria-selected", String(on));
  }

  private sortBy(c: ColumnSpec): void {
    this.sort = { key: c.key, down: this.sort.key === c.key ? !this.sort.down : c.numeric };
    this.fill();
  }

  private rows(): number[] {
    const c = this.columns.find(x => x.key === this.sort.key)!;
    const sign = this.sort.down ? -1 : 1;
    const kept = [...this.report.groups.keys()].filter(i => this.filters.group(this.report.groups[i]));
    const values = new Map(kept.map(i => [i, c.value(this.report.groups[i])]));
    return kept.sort((a, b) => {
      const x = values.get(a)!, y = values.get(b)!;
      // Unknown goes last, whichever way the column is sorted.
      if (x === null || y === null) return Number(x === null) - Number(y === null) || a - b;
      return sign * (typeof x === "number" ? x - (y as number) : String(x).localeCompare(String(y))) || a - b;
    });
  }

  private fill(): void {
    const rows = this.rows();
    for (const c of this.columns) {
      const th = this.heads.get(c.key)!;
      const on = c.key === this.sort.key;
      th.setAttribute("aria-sort", on ? (this.sort.down ? "descending" : "ascending") : "none");
    }
    this.body.replaceChildren(...rows.slice(0, this.limit).flatMap(i => [this.row(i), ...(this.open.has(i) ? this.members(i) : [])]));
    if (!rows.length) this.body.append(h("tr", { class: "empty" }, h("td", { colspan: this.columns.length }, "No object matches.")));
    const all = this.report.groups.length + this.report.omitted_groups;
    const count = rows.reduce((sum, i) => sum + this.report.groups[i].objects, 0);
    const left = this.report.omitted_groups ? `; ${fmt.count(this.report.omitted_groups)} colder ones are not listed` : "";
    this.note.textContent = `${rows.length === all ? fmt.count(all) : `${fmt.count(rows.length)} of ${fmt.count(all)}`} sites, ${fmt.count(count)} objects${left}`;
    this.more.hidden = rows.length <= this.limit;
    this.more.textContent = `Show more (${fmt.count(rows.length - this.limit)} left)`;
  }

  private row(i: number): HTMLTableRowElement {
    const g = this.report.groups[i];
    const several = g.objects > 1 && this.report.members[i].length > 0;
    const toggle = () => {
      if (this.open.has(i)) this.open.delete(i); else this.open.add(i);
      this.fill();
    };
    const tr = this.tr({ "data-group": i }, () => this.onSelect(i, g.objects === 1 ? this.report.members[i][0] ?? null : null), c => {
      const text = c.text(g);
      const td = h("td", { class: `c-${c.key}${c.numeric ? " num" : ""}`, title: c.numeric ? null : text }, text);
      if (c.key === "name") td.prepend(several
        ? h("button", { type: "button", class: "twist", "aria-expanded": String(this.open.has(i)), "aria-label": `Objects of ${g.name}`, onclick: (e: Event) => { e.stopPropagation(); toggle(); } }, this.open.has(i) ? "▾" : "▸")
        : h("span", { class: "twist" }));
      const bar = c.bar?.(g);
      if (bar !== undefined && bar > 0) td.append(h("i", { class: "cellbar", style: `width:${(Math.min(1, bar) * 100).toFixed(1)}%` }));
      return td;
    });
    this.mark(tr);
    return tr;
  }

  private members(group: number): HTMLTableRowElement[] {
    const all = this.report.groups[group].objects;
    const listed = this.report.members[group].filter(i => this.filters.filter.pid === null || this.report.objects[i].pid === this.filters.filter.pid);
    const rows = listed.map(i => {
      const o = this.report.objects[i];
      const tr = this.tr({ "data-object": i, class: "member" }, () => this.onSelect(group, i),
        c => h("td", { class: `c-${c.key}${c.numeric ? " num" : ""}` }, c.one(o)));
      this.mark(tr);
      return tr;
    });
    const rest = all - this.report.members[group].length;
    if (rest > 0) rows.push(h("tr", { class: "member sub" }, h("td", { colspan: this.columns.length }, `and ${fmt.count(rest)} more objects with fewer page touches`)));
    return rows;
  }

  private tr(attributes: Record<string, string | number>, select: () => void, cell: (c: ColumnSpec) => HTMLElement): HTMLTableRowElement {
    return h("tr", { ...attributes, tabindex: 0, onclick: select, onkeydown: (e: KeyboardEvent) => {
      if (e.target !== e.currentTarget) return;
      if (e.key === "Enter" || e.key === " ") { e.preventDefault(); select(); }
      const step = e.key === "ArrowDown" ? "nextElementSibling" : e.key === "ArrowUp" ? "previousElementSibling" : null;
      if (step) { e.preventDefault(); ((e.currentTarget as HTMLElement)[step] as HTMLElement | null)?.focus(); }
    } }, ...this.columns.map(cell));
  }
}

function columns(report: Report, filters: Filters): ColumnSpec[] {
  const hottest = Math.max(1, ...report.groups.map(g => g.page_touches ?? 0));
  const names = new Map(report.groups.map((g, i) => [g, report.groupNames[i]]));
  const thread = (pid: number, tid: number) => report.threads.findIndex(t => t.pid === pid && t.tid === tid);
  const firstBy = (g: GroupRow) => {
    const first = g.threads?.[0];
    if (!g.threads || !first) return "–";
    const all = g.threads.reduce((sum, t) => sum + t.pages, 0);
    const name = threadName(report, thread(first.pid, first.tid));
    return g.threads.length > 1 ? `${name}, ${fmt.share(first.pages / all)}` : name;
  };
  // Of a chosen process its part is shown.
  const part = (g: GroupRow) => (filters.filter.pid === null || g.processes.length < 2 ? undefined : g.processes.find(p => p.pid === filters.filter.pid));
  const touches = (g: GroupRow) => part(g)?.page_touches ?? g.page_touches;
  const share = (g: GroupRow) => {
    const own = part(g)?.page_touches ?? null;
    if (g.touch_share === null || own === null) return g.touch_share;
    return g.touch_share * own / Math.max(1, g.processes.reduce((sum, p) => sum + (p.page_touches ?? 0), 0));
  };
  const touched = (g: GroupRow) => {
    const own = part(g)?.touched_pages_over_lives ?? null;
    return own !== null && g.touched_pages !== null ? Math.min(own, g.touched_pages) * PAGE_BYTES : g.touched_bytes;
  };
  const size = (g: GroupRow) => (g.bytes === null || g.peak_bytes === null ? g.bytes : Math.min(g.bytes, g.peak_bytes));
  const ofObject = (o: Obj) => fmt.bound(o, fmt.maybe(o.touched_pages, pages => fmt.bytes(Math.min(pages * PAGE_BYTES, o.bytes || Infinity))));
  const heat = (of: { page_touches: number | null; touched_pages: number | null }) => (of.page_touches !== null && of.touched_pages ? of.page_touches / of.touched_pages : null);
  const all: (ColumnSpec | null)[] = [
    { key: "name", title: "Object", hint: "Name", numeric: false, value: g => g.name.toLowerCase(), text: g => names.get(g)!, one: o => `at ${fmt.maybe(o.address, fmt.hex)}` },
    { key: "objects", title: "Objects", hint: "How many objects of this name come from this site", numeric: true, value: g => part(g)?.objects ?? g.objects, text: g => fmt.count(part(g)?.objects ?? g.objects), one: () => "" },
    { key: "kind", title: "Kind", hint: "static, heap, stack, mapping or file", numeric: false, value: g => g.kind, text: g => g.kind, one: () => "" },
    { key: "site", title: "Site", hint: "Where they were allocated", numeric: false, value: g => g.site?.toLowerCase() ?? null, text: g => g.site ?? "–", one: o => life(o) },
    report.processes.length > 1 ? { key: "process", title: "Process", hint: "Whose they are, or who touched them", numeric: false, value: g => processNames(report, g.processes.map(p => p.pid)).toLowerCase(), text: g => processNames(report, g.processes.map(p => p.pid)), one: o => (o.processes.length > 1 ? `${o.processes.length} processes` : processName(report, o.pid)) } : null,
    { key: "bytes", title: "Size", hint: "Of all that there were at one time, at most", numeric: true, value: size, text: g => fmt.maybe(size(g), fmt.bytes), one: o => fmt.maybe(o.bytes, fmt.bytes) },
    { key: "touched", title: "Touched", hint: "Memory touched at least once, each page counted once; ≥: of some pages only a flag is known that other processes set too", numeric: true, value: touched, text: g => fmt.bound(g, fmt.maybe(touched(g), fmt.bytes)), one: ofObject },
    { key: "page_touches", title: "Page touches", hint: "Pages touched, summed over the intervals", numeric: true, value: touches, text: g => fmt.bound(g, fmt.maybe(touches(g), fmt.count)), one: o => fmt.bound(o, fmt.maybe(o.page_touches, fmt.count)), bar: g => (touches(g) ?? 0) / hottest },
    { key: "share", title: "Of all", hint: "Share of all page touches; a page that several objects lie on is divided among them", numeric: true, value: share, text: g => fmt.maybe(share(g), fmt.share), one: () => "" },
    { key: "heat", title: "Intervals", hint: "In how many intervals a touched page was touched, on average", numeric: true, value: heat, text: g => fmt.maybe(heat(g), n => n.toFixed(1)), one: o => fmt.maybe(heat(o), n => n.toFixed(1)) },
    { key: "first", title: "First touch by", hint: "The thread that touched most of their pages first", numeric: false, value: g => (g.threads?.length ? firstBy(g).toLowerCase() : null), text: firstBy, one: o => (o.first_touches.length ? threadName(report, o.first_touches[0][0]) : "–") },
  ];
  return all.filter(c => c !== null);
}

/** When an object lived, in a few words. */
export function life(o: Obj): string {
  const at = (ns: number) => fmt.time(ns / 1000, 1e4);
  if (o.born_ns === null && o.died_ns === null) return "all the time";
  return `${o.born_ns === null ? "from before" : `from ${at(o.born_ns)}`}${o.died_ns === null ? "" : ` to ${at(o.died_ns)}`}`;
}
