import { Palette } from "./colors";
import { details } from "./details";
import { h } from "./dom";
import { Explorer } from "./explorer";
import * as fmt from "./format";
import { Filters } from "./filter";
import { findings, guide, header, subject } from "./header";
import type { Selection } from "./map";
import { Samples } from "./samples";
import { type Report, decode } from "./payload";
import { Sharing } from "./sharing";
import { ObjectTable } from "./table";

type Theme = "dark" | "light";
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function remembered(): Theme | null {
  try {
    const t = localStorage.getItem("varve-theme");
    return t === "dark" || t === "light" ? t : null;
  } catch { return null; } // storage is refused to some file: pages
}

function show(app: HTMLElement, report: Report): void {
  fmt.countsIn(report.trace.clock_unit);
  let chosen = remembered();
  let selection: Selection = { group: null, object: null, lane: null };
  const side = h("div", { class: "pane" });
  const toggle = h("button", { type: "button", class: "tool theme", onclick: () => {
    chosen = theme() === "dark" ? "light" : "dark";
    try { localStorage.setItem("varve-theme", chosen); } catch { /* not remembered, then */ }
    retheme(chosen);
  } });
  const theme = (): Theme => chosen ?? (dark.matches ? "dark" : "light");

  const select = (s: Selection, reveal = false): void => {
    selection = s;
    explorer.select(s, reveal);
    table.select(s.group, s.object);
    if (s.lane !== null || s.group !== null) openTab("object");
    drawDetails();
  };
  const open = (group: number, object: number | null = null) =>
    select({ group, object, lane: object === null ? report.groups[group].lane : report.objects[object].lane }, true);
  const explorer = new Explorer(report, s => select(s, false));
  const filters = new Filters(report, () => {
    explorer.only(filters);
    table.refresh();
    sharing?.refresh();
    sampled.refresh();
  });
  const table = new ObjectTable(report, filters, open);
  const sharing = report.sharing ? new Sharing(report, report.sharing, filters) : null;
  const sampled = new Samples(report, filters);

  const drawDetails = () => panels.object.replaceChildren(details(report, explorer.map.palette, selection));
  const panels = {
    findings: h("div", { role: "tabpanel", id: "p-findings", "aria-labelledby": "t-findings" }, findings(report, open)),
    object: h("div", { role: "tabpanel", id: "p-object", "aria-labelledby": "t-object" }),
    guide: h("div", { role: "tabpanel", id: "p-guide", "aria-labelledby": "t-guide" }, guide(report)),
  };
  type Tab = keyof typeof panels;
  const names: [Tab, string][] = [["findings", `Findings (${report.findings.length})`], ["object", "Object"], ["guide", "How to read this"]];
  const tabs = new Map(names.map(([id, text]) => [id, h("button", { type: "button", role: "tab", id: `t-${id}`, "aria-controls": `p-${id}`, onclick: () => openTab(id) }, text)]));
  const list = h("div", { class: "tabs", role: "tablist", "aria-label": "Side panel", onkeydown: (e: KeyboardEvent) => {
    const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const at = names.findIndex(([id]) => tabs.get(id) === document.activeElement);
    const [id] = names[(at + step + names.length) % names.length];
    openTab(id);
    tabs.get(id)!.focus();
  } }, ...tabs.values());
  const openTab = (id: Tab): void => {
    for (const [tab, button] of tabs) {
      button.setAttribute("aria-selected", String(tab === id));
      button.tabIndex = tab === id ? 0 : -1;
      panels[tab].classList.toggle("off", tab !== id);
    }
  };

  const retheme = (t: Theme): void => {
    document.documentElement.dataset.theme = t;
    toggle.textContent = t === "dark" ? "☀ Light" : "☾ Dark";
    toggle.setAttribute("aria-label", `Switch to the ${t === "dark" ? "light" : "dark"} theme`);
    explorer.map.palette = new Palette(t === "dark");
    explorer.refresh();
    sharing?.theme(explorer.map.palette);
    sampled.flame?.draw();
    drawDetails();
  };

  // Without touches there is no map to draw.
  const touches = fmt.value(report.footprint.touched_pages) !== null;
  side.append(list, ...Object.values(panels));
  app.replaceChildren(header(report, toggle), filters.element,
    h("main", { class: touches ? null : "flat" }, touches ? explorer.element : null, h("aside", { class: "card side", "aria-label": "Findings and details" }, side), touches ? table.element : null, ...(sharing?.elements ?? []), ...sampled.elements),
    h("footer", {}, `${report.generator} · this page holds all its data and loads nothing from a network`));
  app.removeAttribute("aria-busy");
  document.title = `${subject(report)} – Varve`;
  openTab(report.findings.length ? "findings" : "guide");
  retheme(theme());
  dark.addEventListener("change", () => { if (!chosen) retheme(theme()); });
  // Paper is white.
  window.addEventListener("beforeprint", () => { retheme("light"); explorer.paint(); });
  window.addEventListener("afterprint", () => retheme(theme()));
}

async function start(): Promise<void> {
  const app = document.getElementById("app")!;
  document.documentElement.dataset.theme = remembered() ?? (dark.matches ? "dark" : "light");
  try {
    if (typeof DecompressionStream === "undefined") throw new Error("this browser lacks DecompressionStream; Firefox 113, Chrome 80 or Safari 16.4 have it");
    const holder = document.getElementById("payload")!;
    const report = await decode(holder.textContent ?? "");
    holder.remove();
    show(app, report);
  } catch (e) {
    app.replaceChildren(h("p", { class: "fatal", role: "alert" }, `This report cannot be shown: ${e instanceof Error ? e.message : String(e)}`));
    app.removeAttribute("aria-busy");
    console.error(e);
  }
}

void start();
