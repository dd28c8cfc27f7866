import { h } from "./dom";
import * as fmt from "./format";
import type { AllocPage, BlockSite, Estimate, Judgement } from "./payload";

/** The allocator's part of the page, of a program whose operations were counted. */
type Counted = Omit<AllocPage, "judgement"> & { judgement: Judgement };

const ROWS = 10;
/** A class without an upper bound has the largest number. */
const UNBOUNDED = 2 ** 63;

/** A mean in nanoseconds, and how far off it may be where that is more than a tenth; nothing where it may be off by itself, and says nothing. */
export function withError(ns: number, error: number): string {
  if (error >= 1) return fmt.ABSENT;
  return error > 0.1 ? `${fmt.duration(ns)} ± ${fmt.duration(ns * error)}` : fmt.duration(ns);
}

interface Row { /** it is among the first that are shown; of a table without such rows, those above are */ matters?: boolean; cells: string[]; /** what the row opens to */ inside?: () => HTMLElement; /** the whole of a name that is cut */ title?: string }

/** A table of its first rows, with a button for the others. The first column is a name, the others are figures. */
function table(title: string, heads: (string | [string, string])[], rows: Row[], note: string | null = null, omitted = 0, wide = false): HTMLElement | null {
  if (!rows.length) return null;
  const body = h("tbody", {});
  const more = h("button", { type: "button", class: "tool more", onclick: () => { fill(rows); more.hidden = true; } }, `Show all ${fmt.count(rows.length)}`);
  const fill = (shown: Row[]) => body.replaceChildren(...shown.flatMap(row => one(row)));
  const one = ({ cells, inside, title: whole }: Row): HTMLElement[] => {
    const name = whole ?? cells[0];
    const open = h("tr", { class: "inside", hidden: true });
    const twist = inside && h("button", {
      type: "button", class: "twist", "aria-expanded": "false", "aria-label": `Call stack of ${cells[0]}`,
      onclick: () => {
        open.hidden = !open.hidden;
        twist!.setAttribute("aria-expanded", String(!open.hidden));
        twist!.textContent = open.hidden ? "▸" : "▾";
        if (!open.childElementCount) open.append(h("td", { colspan: heads.length }, inside()));
      },
    }, "▸");
    const row = h("tr", {}, ...cells.map((cell, i) => h("td", { class: i ? "num" : "c-name", title: i ? null : name }, i ? null : twist, cell)));
    return inside ? [row, open] : [row];
  };
  const first = rows.some(r => r.matters) ? rows.filter(r => r.matters) : rows.slice(0, ROWS);
  fill(first);
  more.hidden = rows.length <= first.length;
  return h("section", { class: `card sampled${wide ? " wide" : ""}`, "aria-label": title },
    h("h2", {}, title),
    note && h("p", { class: "note" }, note),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${title}` }, h("table", {},
      h("thead", {}, h("tr", {}, ...heads.map((head, i) => h("th", { scope: "col", class: i ? "num" : "", title: typeof head === "string" ? null : head[1] }, typeof head === "string" ? head : head[0])))),
      body)),
    more, omitted > 0 && h("p", { class: "note" }, `and ${fmt.count(omitted)} more`));
}

function estimate(e: Estimate): string {
  return e.bytes ? `${fmt.bytes(e.bytes)} ± ${fmt.bytes(e.error_bytes)}` : fmt.ABSENT;
}

const KINDS: Record<string, string> = {
  fresh: "blocks that begin where none had begun before", reused: "blocks that begin where others had been",
  free: "blocks that end", realloc: "blocks that change their size", aligned: "blocks with an alignment",
};

function times({ times, trace }: Judgement): HTMLElement | null {
  return table("Time of an operation", ["kind", "timed", "mean", ["p50", "half of them took no longer"], ["p99", "99 % of them took no longer"], ["max", "the longest took no longer"]],
    Object.entries(times).map(([kind, t]) => ({ title: KINDS[kind] ?? kind, cells: [kind, fmt.count(t!.timed), withError(t!.mean_ns, t!.mean_error_ns / Math.max(t!.mean_ns, 1)), fmt.duration(t!.p50_ns), fmt.duration(t!.p99_ns), fmt.duration(t!.max_ns)] })),
    `One operation in ${fmt.count(trace.time_every)} is timed. An operation of a few nanoseconds seems longer than it is.`);
}

function operations({ operations }: Judgement): HTMLElement | null {
  const share = (part: number, all: number) => fmt.share(part / Math.max(1, all));
  return table("Operations", ["called", "count", "bytes", ["fresh", "blocks that began where none had begun before"], ["parallel", "while several threads of the process allocated"], "failed", "mean", "in all"],
    Object.entries(operations).sort((a, b) => b[1]!.count - a[1]!.count).map(([name, o]) => ({
      cells: [name, fmt.count(o!.count), fmt.bytes(o!.requested_bytes), fmt.maybe(o!.fresh, fresh => share(fresh, o!.count)), share(o!.parallel, o!.count), o!.failed ? fmt.count(o!.failed) : fmt.ABSENT, ...[o!.mean_ns, o!.time_ns].map(ns => (o!.timed ? withError(ns, o!.time_error) : fmt.ABSENT))],
    })), null, 0, true);
}

/** What operations gave back to the kernel, and what it costs that it came again; nothing where they gave nothing back. */
function givenBack({ bytes, address_bytes, again_bytes, again, unknown }: Judgement["given_back"]): string {
  if (!bytes && !unknown) return "";
  // Where it is not known what was there, no more than the addresses.
  const gave = bytes ? fmt.bytes(bytes) : `up to ${fmt.bytes(address_bytes)}`;
  const cost = again ? `, whose first touches by the program itself, outside of operations, took ${fmt.share(again.share)} ± ${fmt.share(again.error)} of the CPU time` : "";
  const came = again_bytes ? `; ${fmt.bytes(again_bytes)} of that came again at least${cost}` : "";
  return ` Operations gave ${gave} back to the kernel${came}${unknown ? `; what page faults take in all as it comes again is not known, as ${unknown.why}` : ""}.`;
}

function kernel({ syscalls, faults, mmap_lock, given_back }: Judgement): HTMLElement {
  const note = `${fmt.count(faults.inside)} page faults within operations (${(faults.per_operation * 1000).toFixed(2)} to 1,000 operations), ${fmt.count(faults.outside)} elsewhere${faults.behind === null ? "" : `, ${fmt.count(faults.behind)} of these first touches of memory that the allocator had mapped${faults.behind_share ? ` (${fmt.share(faults.behind_share.share)} ± ${fmt.share(faults.behind_share.error)} of the CPU time)` : ""}${faults.behind_by_kernel ? `; ${fmt.count(faults.behind_by_kernel)} of them by the kernel, as in read: their time is not known` : ""}`}.${mmap_lock ? ` Operations waited ${fmt.duration(mmap_lock.time_ns)} for mmap_lock, the lock of the process's mappings (${fmt.count(mmap_lock.waits)} ${mmap_lock.waits === 1 ? "wait" : "waits"}), the program elsewhere ${fmt.duration(mmap_lock.outside_ns)}.` : ""}${givenBack(given_back)}`;
  return table("System calls and page faults", ["system call", "count", ["by frees", "within operations that free"], ["failed", "they gave an error, or brk did not move the end of the heap"], "time", ["queued", "ready to run meanwhile, and other programs had the CPUs"], "bytes", ["of 1,000", "calls to 1,000 operations"]],
    syscalls.map(c => ({
      title: c.sites.length ? `largest parts from ${c.sites.map(([site, n]) => `${site} (${fmt.count(n)})`).join(", ")}` : c.name,
      cells: [c.name, fmt.count(c.count), fmt.count(c.by_frees), c.failed ? fmt.count(c.failed) : fmt.ABSENT, fmt.duration(c.time_ns), fmt.duration(c.queued_ns), fmt.bytes(c.bytes), (c.per_operation * 1000).toFixed(3)],
    })), note)
    ?? h("section", { class: "card sampled", "aria-label": "System calls and page faults" }, h("h2", {}, "System calls and page faults"), h("p", { class: "note" }, "No operation made a system call."), h("p", { class: "note" }, note));
}

/** A time with its error, which is a share of it; absent where it is not known. */
function estimated(time: number | null, error: number | null): string {
  return time === null ? fmt.ABSENT : error === null ? fmt.duration(time) : withError(time, error);
}

/** Why times are absent, where some are. */
function missing(rows: { time_unknown: string | null }[]): string {
  const reasons = [...new Set(rows.flatMap(r => r.time_unknown ?? []))];
  return reasons.length ? ` Its time is absent where ${reasons.join(", or ")}.` : "";
}

const TIME: [string, string] = ["time", "made of the operations that were timed; its error, with 95 % confidence, is said where it is more than a tenth"];

function callers({ sites }: Judgement): HTMLElement | null {
  return table("Callers", ["caller", "count", "asked for", "given back", TIME, ["CPU time", "by the clocks of CPUs, where they found its operations four times or more"], "system calls", "page faults"],
    sites.map(s => ({ title: `${s.label}: ${s.operations.join(", ")}`, cells: [s.label, fmt.count(s.count), fmt.bytes(s.requested_bytes), fmt.bytes(s.freed_bytes), estimated(s.time_ns, s.time_error), estimated(s.cpu_ns, s.cpu_error), fmt.count(s.syscalls), fmt.count(s.faults)] })),
    `A caller is the function that an operation returns to.${missing(sites)}`, 0, true);
}

function classes({ classes }: Judgement): HTMLElement | null {
  const largest = new Set([...classes].sort((a, b) => (b.usable_bytes ?? b.requested_bytes) - (a.usable_bytes ?? a.requested_bytes)).slice(0, ROWS));
  return table("Size classes", ["blocks up to", ["allocated", "by realloc too, in the class of the new size; blocks that were neither freed nor reallocated live"], "freed", ["reallocated", "blocks that realloc took: what it gave for them is allocated in the class of its new size"], "asked for", "usable", ["lost", "usable bytes that nobody asked for"], ["time", "of allocations that neither clear nor copy memory, made of those that were timed"]],
    classes.filter(c => c.count || c.freed || c.reallocated).map(c => ({
      matters: largest.has(c),
      cells: [c.bytes >= UNBOUNDED ? "(larger)" : fmt.bytes(c.bytes), fmt.count(c.count), fmt.count(c.freed), fmt.count(c.reallocated), fmt.bytes(c.requested_bytes), fmt.maybe(c.usable_bytes, fmt.bytes),
        c.usable_bytes ? fmt.share(Math.max(0, c.usable_bytes - c.requested_bytes) / c.usable_bytes) : fmt.ABSENT, estimated(c.time_ns, c.time_error)],
    })), `${classes.length > ROWS ? "Those with the most bytes come first; all are listed by size." : ""}${missing(classes)}`.trim() || null, 0, true);
}

function threads({ judgement, omitted_threads }: Counted): HTMLElement | null {
  return table("Threads", ["thread", "count", "asked for", "given back", TIME],
    judgement.threads.map(t => ({ cells: [t.name ? `${t.name} (${t.tid})` : String(t.tid), fmt.count(t.count), fmt.bytes(t.requested_bytes), fmt.bytes(t.freed_bytes), estimated(t.time_ns, t.time_error)] })), missing(judgement.threads).trim() || null, omitted_threads);
}

function processes({ judgement, omitted_processes }: Counted): HTMLElement | null {
  if (judgement.processes.length < 2) return null;
  return table("Processes", ["process", "allocator", "count", ["peak", "the most that it had asked for"]],
    judgement.processes.map(p => ({ title: p.exe, cells: [`${p.exe.split("/").pop() || "unknown"} (${p.pid})`, p.allocator, fmt.count(p.count), fmt.maybe(p.peak_requested_bytes, fmt.bytes)] })), null, omitted_processes);
}

/** The function of a frame or a label, without its place. */
function functionOf(name: string): string {
  return name.replace(/ \([^()]*\)$/, "").replace(/^.*, in /, "");
}

/** Who allocates, and who called that: a label leaves out what wraps the allocator. */
function place(site: BlockSite): string {
  const names = site.stack.map(functionOf), own = functionOf(site.label);
  const caller = names[names.lastIndexOf(own) + 1];
  return caller ? `${site.label} < ${caller}` : site.label;
}

/** Of fewer sampled blocks nothing is said by call stack. */
const FEW_SAMPLES = 20;

/** How full the allocator's pages are, and what keeps those that are nearly empty. */
export function pages({ pages }: Judgement): HTMLElement | null {
  if (!pages) return null;
  const { peak, sparsest } = pages;
  const of = (part: number) => fmt.share(part / Math.max(1, peak.resident_bytes));
  const note = [
    `When most was resident, ${fmt.bytes(peak.resident_bytes)}, blocks had ${of(peak.live_bytes)} of it; ${of(peak.pinned_bytes)} was free on pages with blocks, ${of(peak.empty_bytes)} on pages without.`,
    `Blocks filled ${fmt.share(Math.min(1, peak.live_bytes / Math.max(1, peak.line_bytes)))} of the cache lines that they touched.`,
    peak.shared_pages ? `${fmt.count(peak.shared_pages)} ${peak.shared_pages === 1 ? "page has" : "pages have"} blocks of several threads.` : "",
    sparsest.sparse_pages ? `After ${fmt.duration(sparsest.time_ns)} they filled ${fmt.count(sparsest.sparse_pages)} ${sparsest.sparse_pages === 1 ? "page" : "pages"} to a quarter at most: ${fmt.bytes(sparsest.sparse_pinned_bytes)} of ${fmt.bytes(sparsest.resident_bytes)} was free there and could not be given back.` : "",
  ].filter(Boolean).join(" ");
  const touched = (t: NonNullable<(typeof pages.pinned_by)[number]["touched"]>) => [t.second, t.ten_seconds, t.minute, t.longer].map(b => (b ? fmt.bytes(b) : fmt.ABSENT));
  const when: [string, string][] = pages.pinned_by.some(p => p.touched) ? [["touched in the last 1\u00a0s", "when its pages were touched last"], ["1\u2013\u206010\u00a0s", "before"], ["10\u2013\u206060\u00a0s", "before"], ["longer", "before, or never"]] : [];
  return table("Nearly empty pages", ["kept by blocks of", ["keep", "free memory of the pages that they lie on, by their bytes"], "sampled", ["half no older than", "half of what is kept is by blocks that are no older"], ...when],
    pages.pinned_by.map(p => ({
      title: p.label,
      inside: () => frames(p.stack),
      cells: [p.label, estimate(p.pinned), fmt.count(p.samples), fmt.duration(p.age_p50_ns), ...(when.length ? (p.touched ? touched(p.touched) : when.map(() => fmt.ABSENT)) : [])],
    })), note, 0, true)
    ?? h("section", { class: "card sampled", "aria-label": "Pages of the allocator" }, h("h2", {}, "Pages of the allocator"), h("p", { class: "note" }, note));
}

/** Which free blocks the allocator gives out, where it has a choice. */
export function choice({ choice }: Judgement): HTMLElement | null {
  if (!choice.far) return null;
  return table("Choice of free blocks", ["far blocks allocated by", "blocks"], choice.sites.map(([name, count]) => ({ cells: [name, fmt.count(count)] })),
    `${fmt.share(choice.far.share)} ± ${fmt.share(choice.far.error)} of ${fmt.count(choice.blocks)} sampled small blocks that were allocated soon after others of their size had been freed lie 64 KiB and more away from these and from the block before.`);
}

/** Blocks that share a cache line with another thread's. */
export function lines({ lines }: Judgement): HTMLElement | null {
  if (!lines.blocks) return null;
  const use = !lines.confirmed ? "Whether their threads meet there is not known: there are no samples, or too few."
    : lines.confirmed.lines ? `Samples found ${fmt.count(lines.confirmed.lines)} ${lines.confirmed.lines === 1 ? "line" : "lines"} where threads use different bytes and write, with ${fmt.share(Math.min(1, lines.confirmed.share))} ± ${fmt.share(lines.confirmed.error)} of the time at accesses.`
    : "Samples found no line where threads use different bytes and write.";
  return table("Cache lines with blocks of several threads", ["allocated by", "blocks"], lines.sites.map(([name, count]) => ({ cells: [name, fmt.count(count)] })),
    `${fmt.count(lines.blocks)} blocks began on a line with a block of another thread: ${fmt.count(lines.active)} by the allocator alone (active), ${fmt.count(lines.passive)} in memory that was freed for another thread (passive). ${use}`);
}

function frames(stack: string[]): HTMLElement {
  return h("ol", { class: "frames" }, ...(stack.length ? stack : ["unknown caller"]).map(frame => h("li", {}, h("code", {}, frame))));
}

/** What lives, by the stacks that allocated it. */
export function blocks({ blocks, processes, trace }: Judgement): HTMLElement | null {
  if (trace.probe_ns !== null || !blocks.sample_bytes) return null;
  const whole = processes.length > 1 ? `all ${fmt.count(processes.length)} processes together, each up to its end` : "the process";
  const note = [
    `${fmt.count(blocks.samples)} ${blocks.samples === 1 ? "block" : "blocks"} of ${whole} were sampled, one to ${fmt.bytes(blocks.sample_bytes)} of allocations; errors hold with 95 % confidence.`,
    `Allocated: ${estimate(blocks.allocated)}. At the peak${blocks.peak_ns === null ? "" : `, after ${fmt.duration(blocks.peak_ns)}`}: ${blocks.at_peak === null ? "not known" : estimate(blocks.at_peak)}. Never freed: ${estimate(blocks.never_freed)}.`,
    blocks.samples < FEW_SAMPLES ? "That is too few for figures by call stack: take more, such as varve alloc record --sample-every 16KiB." : "",
  ].join(" ");
  if (blocks.samples < FEW_SAMPLES) return h("section", { class: "card sampled wide", "aria-label": "Blocks by call stack" }, h("h2", {}, "Blocks by call stack"), h("p", { class: "note" }, note));
  const pages = blocks.sites.some(s => s.idle);
  const idle: [string, string][] = pages ? [
    ["idle 1\u2013\u206010\u00a0s", "never freed, and last touched so long before the end of its process"], ["idle 10\u2013\u206060\u00a0s", "never freed, and last touched so long before the end"],
    ["idle for longer", "never freed, and last touched more than 60 s before the end"], ["never touched", "never freed, and not touched since they were allocated"]] : [];
  return table("Blocks by call stack", ["allocated by", "in all", "blocks", "at the peak", "never freed", ["lived", "half of the bytes that were freed no longer"], ["under 1 ms", "the share of all bytes that lived no longer"], ["freed elsewhere", "of what was freed, by another thread"], ...idle],
    blocks.sites.map(s => ({
      title: s.label,
      inside: () => frames(s.stack),
      cells: [place(s), estimate(s.allocated), fmt.count(s.allocated.blocks), fmt.maybe(s.at_peak, at => fmt.bytes(at.bytes)), estimate(s.never_freed), fmt.maybe(s.lifetime_p50_ns, fmt.duration), fmt.share(s.short_lived), fmt.share(s.freed_elsewhere),
        ...(pages ? (s.idle ? [s.idle.ten_seconds, s.idle.minute, s.idle.longer, s.idle.never].map(b => (b ? fmt.bytes(b) : fmt.ABSENT)) : idle.map(() => fmt.ABSENT)) : [])],
    })), note, 0, true);
}

/** The tables below the graphs. */
export function tables(alloc: Counted): HTMLElement {
  const { judgement } = alloc;
  return h("div", { class: "wide tables" }, times(judgement), kernel(judgement), callers(judgement), operations(judgement), classes(judgement), threads(alloc), processes(alloc));
}
