import { Allocator } from "./alloc";
import { Palette } from "./colors";
import { details } from "./details";
import { showDiff } from "./diff";
import { h } from "./dom";
import { Explorer } from "./explorer";
import * as fmt from "./format";
import { Filters } from "./filter";
import { findings, guide, header, subject, tiles } from "./header";
import type { Selection } from "./map";
import { Samples } from "./samples";
import { type Report, decode, unpack } from "./payload";
import { Sharing } from "./sharing";
import { ObjectTable } from "./table";
import { Tabs } from "./tabs";
import { Themes, begin } from "./theme";

function show(app: HTMLElement, report: Report): void {
  fmt.countsIn(report.trace.clock_unit);
  let selection: Selection = { group: null, object: null, lane: null };
  const side = h("div", { class: "pane" });
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
  const allocator = report.alloc && new Allocator(report.alloc);

  const drawDetails = () => panels.object.replaceChildren(details(report, explorer.map.palette, selection));
  const panels = {
    findings: h("div", {}, findings(report, open)),
    object: h("div", {}),
    guide: h("div", {}, guide(report)),
  };
  const tabs = new Tabs("Side panel", [["findings", `Findings (${report.findings.filter(f => !f.is_note).length})`], ["object", "Object"], ["guide", "How to read this"]], panels);
  const openTab = (id: keyof typeof panels): void => tabs.open(id);

  const themes = new Themes(theme => {
    explorer.map.palette = new Palette(theme === "dark");
    explorer.refresh();
    sharing?.theme(explorer.map.palette);
    sampled.flame?.draw();
    allocator?.theme();
    drawDetails();
  }, () => explorer.paint());

  // Without touches there is no map to draw.
  const touches = fmt.value(report.footprint.touched_pages) !== null;
  side.append(tabs.element, ...Object.values(panels));
  const pages = h("div", {}, tiles(report), filters.element,
    h("main", { class: touches ? null : "flat" }, touches ? explorer.element : null, h("aside", { class: "card side", "aria-label": "Findings and details" }, side), touches ? table.element : null, ...(sharing?.elements ?? []), ...sampled.elements));
  app.replaceChildren(header(report, themes.button), ...views(report, pages, allocator, touches || sampled.elements.length > 0 || sharing !== null),
    h("footer", {}, `${report.generator} · this page holds all its data and loads nothing from a network`));
  app.removeAttribute("aria-busy");
  document.title = `${subject(report)} – Varve`;
  openTab(report.findings.length ? "findings" : "guide");
  themes.start();
}

/** The parts of the page: of a trace with pages and operations two, of which one is shown. */
function views(report: Report, pages: HTMLElement, allocator: Allocator | null, hasPages: boolean): HTMLElement[] {
  if (!allocator) return [pages];
  const own = h("div", {}, h("main", { class: "alloc" }, ...allocator.elements));
  if (!hasPages) return [own];
  const panels = { pages, allocator: own };
  const tabs = new Tabs("Parts of the report", [["pages", "Memory map"], ["allocator", "Allocator"]], panels, "views");
  tabs.open(report.opens);
  return [tabs.element, pages, own];
}

async function start(): Promise<void> {
  const app = document.getElementById("app")!;
  begin();
  try {
    if (typeof DecompressionStream === "undefined") throw new Error("this browser lacks DecompressionStream; Firefox 113, Chrome 80 or Safari 16.4 have it");
    const holder = document.getElementById("payload")!;
    const data = await unpack(holder.textContent ?? "");
    holder.remove();
    if ("differences" in data.json) showDiff(app, data.json, data);
    else show(app, decode(data.json, data));
  } catch (e) {
    app.replaceChildren(h("p", { class: "fatal", role: "alert" }, `This report cannot be shown: ${e instanceof Error ? e.message : String(e)}`));
    app.removeAttribute("aria-busy");
    console.error(e);
  }
}

void start();
