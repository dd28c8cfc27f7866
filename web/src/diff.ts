import { h } from "./dom";
import { DiffMap } from "./diff-map";
import * as fmt from "./format";
import type { DiffFigure, DiffList, DiffMeasure, DiffPage, DiffRow, DiffSide, DiffUnit, DiffValues, DiffVerdict, Unpacked } from "./payload";
import { Themes } from "./theme";

/** A figure as a person reads it. */
export function amount(value: number, unit: DiffUnit): string {
  switch (unit) {
    case "bytes": return fmt.bytes(value);
    case "ns": return fmt.duration(value);
    case "count": return fmt.count(value);
    case "share": return fmt.share(value);
  }
}

function values(of: DiffValues, unit: DiffUnit): string {
  if (of.median === null) return fmt.ABSENT;
  const middle = `${of.at_least ? "≥ " : ""}${amount(of.median, unit)}`;
  return of.min !== null && of.max !== null && of.min < of.max ? `${middle} (${amount(of.min, unit)} – ${amount(of.max, unit)})` : middle;
}

/** Between two shares. */
const points = (of: number) => `${of < 0.001 ? "< 0.1" : (of * 100).toFixed(1)} points`;

/** From A to B, in percent of A where that is something. */
export function change({ change, ratio, verdict, unit }: DiffFigure): string {
  if (change === null) return fmt.ABSENT;
  if (change === 0) return verdict === "same" ? "same" : "0";
  const sign = change < 0 ? "−" : "+";
  const by = `${sign}${unit === "share" ? points(Math.abs(change)) : amount(Math.abs(change), unit)}`;
  // Percent of percent say nothing.
  if (!ratio || unit === "share") return by;
  const percent = Math.abs(ratio - 1) * 100;
  return `${by} (${percent >= 1000 ? `× ${ratio.toFixed(0)}` : percent < 0.1 ? "< 0.1 %" : `${sign}${percent.toFixed(percent < 10 ? 1 : 0)} %`})`;
}

const VERDICTS: Record<DiffVerdict, [string, string]> = {
  same: ["", "the same in all runs"], noise_unknown: ["", "nobody knows how much chance there is in it"], more_than_noise: ["✱", "more than noise"],
  apart: ["|", "no run of a side lies among those of the other, which chance may do as well"], within_noise: ["~", "within noise"], not_known: ["", "not known of both sides"],
};

/** Cells of a figure: A, B, the change, and whether it is noise. */
function cells(figure: DiffFigure | undefined, noise: boolean): HTMLElement[] {
  if (!figure) return [...Array(noise ? 4 : 3)].map((_, i) => h("td", { class: i < 3 ? "num sub" : null }, i < 3 ? fmt.ABSENT : ""));
  const [mark, words] = VERDICTS[figure.verdict];
  const is = figure.change === null || figure.change === 0 ? "sub" : figure.change > 0 ? "more-in-b" : "more-in-a";
  const cell = (of: DiffValues) => h("td", { class: "num", title: of.why }, values(of, figure.unit));
  const p = figure.p === null ? "" : `; p = ${figure.p.toFixed(3)}${figure.q === null ? "" : `, q = ${figure.q.toFixed(3)}`}`;
  return [cell(figure.a), cell(figure.b), h("td", { class: `num ${is}` }, change(figure)), ...(noise ? [h("td", { title: words + p }, mark)] : [])];
}

const heads = (noise: boolean, ...before: string[]) => h("thead", {}, h("tr", {}, ...before.map(b => h("th", {}, b)),
  h("th", { class: "num side-a" }, "A"), h("th", { class: "num side-b" }, "B"), h("th", { class: "num" }, "Change"), ...(noise ? [h("th", { title: "✱ more than noise, | apart, ~ within noise" }, "")] : [])));

function program(page: DiffPage): HTMLElement {
  const known = page.program.filter(f => f.a.median !== null || f.b.median !== null);
  return h("section", { class: "card matrix", "aria-label": "The program" },
    h("div", { class: "toolbar" }, h("h2", {}, "The program")),
    h("div", { class: "scroll" }, h("table", {}, heads(page.noise_known, "Figure"),
      h("tbody", {}, ...known.map(f => h("tr", {}, h("td", {}, sentence(page.titles[f.measure])), ...cells(f, page.noise_known)))))));
}

const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);
const stopped = (text: string) => `${sentence(text)}${/[.!?]$/.test(text) ? "" : "."}`;

export function nameOf(row: DiffRow): string {
  return row.b ?? row.a ?? "";
}

function only(row: DiffRow): string {
  return row.a === null ? "only in B" : row.b === null ? "only in A" : "";
}

/** A table of rows by one of their figures, with a search among names. */
function table(page: DiffPage, title: string, list: DiffList, measures: DiffMeasure[], columns: "objects" | "code"): HTMLElement | null {
  if (!list.rows.length) return null;
  const known = measures.filter(m => list.rows.some(r => r.figures.some(f => f.measure === m)));
  let measure = known[0], search = "", all = false;
  const body = h("tbody", {});
  const note = h("span", { class: "note" });
  const draw = () => {
    const figure = (r: DiffRow) => r.figures.find(f => f.measure === measure);
    const differs = (r: DiffRow) => { const f = figure(r); return f !== undefined && f.verdict !== "same" && f.verdict !== "not_known"; };
    const rows = list.rows.filter(r => (all || differs(r)) && `${r.a ?? ""} ${r.b ?? ""}`.toLowerCase().includes(search));
    const size = (r: DiffRow) => Math.abs(figure(r)?.change ?? 0);
    rows.sort((x, y) => size(y) - size(x));
    body.replaceChildren(...rows.map(r => h("tr", {},
      h("td", { class: "c-name", title: r.a && r.b && r.a !== r.b ? `A: ${r.a}\nB: ${r.b}` : nameOf(r) }, nameOf(r)),
      ...(columns === "objects" ? [h("td", { class: "sub" }, r.kind ?? "")] : []),
      h("td", { class: "sub", title: r.how }, only(r) || (r.match && r.match !== "exact" ? `by ${WORDS[r.match]}` : "")), ...cells(figure(r), page.noise_known))));
    if (!rows.length) body.append(h("tr", { class: "empty" }, h("td", { colspan: 7 }, search ? "None has such a name." : "None of these differs in that.")));
    note.textContent = `${fmt.count(rows.length)} of ${fmt.count(list.rows.length + list.omitted)}${list.omitted ? `; ${fmt.count(list.omitted)} that changed least are left out` : ""}`;
  };
  const choose = known.length > 1 && h("label", { class: "named-field" }, "by", h("select", { class: "field", onchange: (e: Event) => { measure = (e.target as HTMLSelectElement).value as DiffMeasure; draw(); } },
    ...known.map(m => h("option", { value: m }, page.titles[m]))));
  draw();
  return h("section", { class: "card sampled wide of-sides", "aria-label": title },
    h("div", { class: "toolbar" }, h("h2", {}, title), choose,
      h("input", { class: "field", type: "search", placeholder: "Name…", "aria-label": `Search ${title.toLowerCase()}`, oninput: (e: Event) => { search = (e.target as HTMLInputElement).value.toLowerCase(); draw(); } }),
      h("label", {}, h("input", { type: "checkbox", onchange: (e: Event) => { all = (e.target as HTMLInputElement).checked; draw(); } }), " also what is the same"), note),
    h("div", { class: "scroll rows" }, h("table", {}, heads(page.noise_known, ...(columns === "objects" ? ["Object", "Kind", ""] : ["Place", ""])), body)));
}

const WORDS = { exact: "line", moved: "its place in the function", order: "its order in the function", remaining: "what was left", name: "its name alone" };
const FATES = { came: ["bad", "came"], went: ["good", "went"], stayed: ["note", "stayed"], wavers: ["note", "in some runs"] } as const;

function findings(page: DiffPage): HTMLElement | null {
  if (!page.findings.length) return null;
  const order = ["came", "went", "wavers", "stayed"];
  const sorted = [...page.findings].sort((a, b) => order.indexOf(a.fate) - order.indexOf(b.fate));
  return h("section", { class: "card diagnoses", "aria-label": "Findings" }, h("h2", {}, "Findings"),
    h("ul", { class: "findings" }, ...sorted.map(f => h("li", {}, h("h3", {}, h("span", { class: `badge ${FATES[f.fate][0]}` }, FATES[f.fate][1]), ` ${f.b ?? f.a ?? ""}`),
      f.a && f.b && f.a !== f.b && h("p", { class: "sub" }, `before: ${f.a}`)))));
}

function side(letter: "a" | "b", of: DiffSide): HTMLElement {
  return h("p", { class: "of-side" }, h("b", { class: `side-${letter}` }, letter.toUpperCase()), h("span", { class: "grow", title: of.command }, `${of.traces}: ${of.command}`),
    h("span", { class: "sub" }, fmt.duration(of.duration_ns)), h("span", { class: `badge ${of.complete ? "good" : "bad"}` }, of.complete ? "✓ complete" : "⚠ incomplete"));
}

/** The page of `varve diff --html`. */
export function showDiff(app: HTMLElement, page: DiffPage, data: Unpacked): void {
  const map = page.map.lanes.length ? new DiffMap(page, data) : null;
  const themes = new Themes(theme => map?.theme(theme), () => map?.draw());
  const objects: DiffMeasure[] = ["touched_bytes", "page_touches", "access_ns", "bytes", "peak_bytes", "objects", "died", "median_life_ns"];
  const answer = page.differences ? `${fmt.count(page.differences)} ${page.differences === 1 ? "figure or finding differs" : "figures and findings differ"}` : "A and B differ in nothing";
  app.replaceChildren(
    h("header", {}, h("div", { class: "title" }, h("span", { class: "mark", "aria-hidden": true }, h("i"), h("i"), h("i")), h("h1", {}, "varve diff"), h("span", { class: "command" }, answer), themes.button)),
    h("section", { class: "card sides", "aria-label": "The two sides" }, side("a", page.a), side("b", page.b), ...page.notes.map(n => h("p", { class: "unlike" }, stopped(n))), h("p", { class: "sub" }, stopped(page.noise))),
    h("div", { class: "tables of-diff" }, program(page), findings(page)),
    ...(map ? [map.element] : []),
    h("main", { class: "alloc" }, table(page, "Objects", page.objects, objects, "objects"),
      table(page, "Functions by the time of their accesses", page.functions, ["access_ns"], "code"),
      table(page, "Lines by the time of their accesses", page.lines, ["access_ns"], "code")),
    h("footer", {}, `${page.generator} · this page holds all its data and loads nothing from a network`));
  app.removeAttribute("aria-busy");
  document.title = "Difference – Varve";
  themes.start();
}
