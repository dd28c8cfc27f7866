import { h } from "./dom";
import * as fmt from "./format";
import type { Obj, Report } from "./payload";
import { threadName } from "./tip";

interface ColumnSpec {
  key: string;
  title: string;
  hint: string;
  numeric: boolean;
  value(o: Obj): number | string | null;
  text(o: Obj): string;
  bar?(o: Obj): number;
}
const FIRST_ROWS = 100;

/** The sortable, filterable table of objects. Rows beyond the first hundred are made when asked for. */
export class ObjectTable {
  readonly element: HTMLElement;
  private readonly body = h("tbody", {});
  private readonly note = h("span", { class: "note num", "aria-live": "polite" });
  private readonly more = h("button", { type: "button", class: "tool more", hidden: true, onclick: () => { this.limit *= 5; this.fill(); } }, "Show more");
  private readonly heads = new Map<string, HTMLElement>();
  private readonly columns: ColumnSpec[];
  private sort = { key: "page_touches", down: true };
  private text = "";
  private kind = "";
  private limit = FIRST_ROWS;
  private selected: number | null = null;

  constructor(readonly report: Report, readonly onSelect: (object: number) => void) {
    this.columns = columns(report);
    const kinds = [...new Set(report.objects.map(o => o.kind))].sort();
    const head = h("tr", {}, ...this.columns.map(c => {
      const th = h("th", { scope: "col", class: `c-${c.key}${c.numeric ? " num" : ""}` },
        h("button", { type: "button", title: c.hint, onclick: () => this.sortBy(c) }, c.title));
      this.heads.set(c.key, th);
      return th;
    }));
    this.element = h("section", { class: "card objects", "aria-label": "Objects" },
      h("div", { class: "toolbar" },
        h("h2", {}, "Objects"),
        h("input", { type: "search", placeholder: "Filter by name, site or kind", "aria-label": "Filter objects", oninput: (e: Event) => { this.text = (e.target as HTMLInputElement).value.toLowerCase(); this.limit = FIRST_ROWS; this.fill(); } }),
        h("select", { "aria-label": "Kind of object", onchange: (e: Event) => { this.kind = (e.target as HTMLSelectElement).value; this.limit = FIRST_ROWS; this.fill(); } },
          h("option", { value: "" }, "all kinds"), ...kinds.map(k => h("option", { value: k }, k))),
        this.note),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of objects" },
        h("table", {}, h("thead", {}, head), this.body)),
      this.more);
    this.fill();
  }

  select(object: number | null): void {
    this.selected = object;
    for (const row of this.body.rows) this.mark(row);
    const row = object === null ? null : this.body.querySelector<HTMLElement>(`tr[data-object="${object}"]`);
    const pane = this.body.closest<HTMLElement>(".scroll");
    if (row && pane) {
      const top = row.offsetTop - 34;
      if (top < pane.scrollTop || row.offsetTop + row.offsetHeight > pane.scrollTop + pane.clientHeight) pane.scrollTop = Math.max(0, top - 60);
    }
  }

  private mark(row: HTMLTableRowElement): void {
    const on = row.dataset.object === String(this.selected);
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
    const words = this.text.split(/\s+/).filter(Boolean);
    const kept: number[] = [];
    this.report.objects.forEach((o, i) => {
      if (this.kind && o.kind !== this.kind) return;
      const hay = `${o.name} ${o.site ?? ""} ${o.kind}`.toLowerCase();
      if (words.every(w => hay.includes(w))) kept.push(i);
    });
    const values = this.report.objects.map(o => c.value(o));
    return kept.sort((a, b) => {
      const x = values[a], y = values[b];
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
    this.body.replaceChildren(...rows.slice(0, this.limit).map(i => this.row(i)));
    if (!rows.length) this.body.append(h("tr", { class: "empty" }, h("td", { colspan: this.columns.length }, "No object matches.")));
    const all = this.report.objects.length, { omitted } = this.report;
    const left = omitted.objects ? `; ${fmt.count(omitted.objects)} smaller ones (${fmt.bytes(omitted.bytes)}, ${fmt.count(omitted.page_touches)} page touches) are in the map only` : "";
    this.note.textContent = (rows.length === all ? `${fmt.count(all)} objects` : `${fmt.count(rows.length)} of ${fmt.count(all)} objects`) + left;
    this.more.hidden = rows.length <= this.limit;
    this.more.textContent = `Show more (${fmt.count(rows.length - this.limit)} left)`;
  }

  private row(i: number): HTMLTableRowElement {
    const o = this.report.objects[i];
    const tr = h("tr", { "data-object": i, tabindex: 0, onclick: () => this.onSelect(i), onkeydown: (e: KeyboardEvent) => {
      if (e.key === "Enter" || e.key === " ") { e.preventDefault(); this.onSelect(i); }
      const step = e.key === "ArrowDown" ? "nextElementSibling" : e.key === "ArrowUp" ? "previousElementSibling" : null;
      if (step) { e.preventDefault(); (tr[step] as HTMLElement | null)?.focus(); }
    } }, ...this.columns.map(c => {
      const text = c.text(o);
      const td = h("td", { class: `c-${c.key}${c.numeric ? " num" : ""}`, title: c.numeric ? null : text }, text);
      const bar = c.bar?.(o);
      if (bar !== undefined && bar > 0) td.append(h("i", { class: "cellbar", style: `width:${(bar * 100).toFixed(1)}%` }));
      return td;
    }));
    this.mark(tr);
    return tr;
  }
}

function columns(report: Report): ColumnSpec[] {
  const when = (ns: number | null, absent: string) => (ns === null ? absent : fmt.time(ns / 1000, 1e5));
  const hottest = Math.max(1, ...report.objects.map(o => o.page_touches));
  return [
    { key: "name", title: "Object", hint: "Name", numeric: false, value: o => o.name.toLowerCase(), text: o => (o.site && o.name.endsWith(` (${o.site})`) ? o.name.slice(0, -o.site.length - 3) : o.name) },
    { key: "kind", title: "Kind", hint: "static, heap, stack, mapping or file", numeric: false, value: o => o.kind, text: o => o.kind },
    { key: "site", title: "Site", hint: "Where it was allocated", numeric: false, value: o => o.site?.toLowerCase() ?? null, text: o => o.site ?? "–" },
    { key: "bytes", title: "Size", hint: "Bytes", numeric: true, value: o => o.bytes, text: o => fmt.bytes(o.bytes) },
    { key: "touched", title: "Touched", hint: "Memory of its pages that were touched at least once", numeric: true, value: o => o.touched_pages, text: o => fmt.bytes(Math.min(o.touched_pages * 4096, o.bytes || Infinity)) },
    { key: "share", title: "Part touched", hint: "Share of its pages that were touched", numeric: true, value: o => o.touched_pages / Math.max(1, o.pages), text: o => fmt.share(Math.min(1, o.touched_pages / Math.max(1, o.pages))), bar: o => Math.min(1, o.touched_pages / Math.max(1, o.pages)) },
    { key: "page_touches", title: "Page touches", hint: "Sum over intervals of the pages touched: the heat", numeric: true, value: o => o.page_touches, text: o => fmt.count(o.page_touches), bar: o => o.page_touches / hottest },
    { key: "first", title: "First touch by", hint: "The thread that touched most of its pages first", numeric: false, value: o => (o.first_touch_thread === null ? null : threadName(report, o.first_touch_thread)), text: o => firstBy(report, o) },
    { key: "threads", title: "Threads", hint: "Threads that touched any of its pages first", numeric: true, value: o => (o.first_touches.length || null), text: o => (o.first_touches.length ? String(o.first_touches.length) : "–") },
    { key: "born", title: "Born", hint: "When it came to be", numeric: true, value: o => o.born_ns, text: o => when(o.born_ns, "before") },
    { key: "died", title: "Died", hint: "When it went", numeric: true, value: o => o.died_ns, text: o => when(o.died_ns, "–") },
  ];
}

/** The thread that touched most pages first, and its share where it was not alone. */
function firstBy(report: Report, o: Obj): string {
  const name = threadName(report, o.first_touch_thread);
  if (o.first_touches.length < 2) return name;
  const all = o.first_touches.reduce((sum, [, pages]) => sum + pages, 0);
  const most = o.first_touches.find(([t]) => t === o.first_touch_thread)?.[1] ?? 0;
  return `${name}, ${fmt.share(most / all)}`;
}
