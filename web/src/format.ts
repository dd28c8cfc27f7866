import type { Known } from "./payload";
import { PAGE_BYTES } from "./payload";

const group = new Intl.NumberFormat("en-US");

export function count(n: number): string {
  return group.format(Math.round(n));
}

export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  while (n >= 1024 && u < units.length - 1) { n /= 1024; u++; }
  const digits = u === 0 || n >= 100 || Number.isInteger(n) ? 0 : n >= 10 ? 1 : 2;
  // 8 MiB, not 8.00 MiB, whether it is so exactly or not: as the text report has it.
  const text = digits ? n.toFixed(digits).replace(/\.?0+$/, "") : n.toFixed(0);
  return `${text} ${units[u]}`;
}

export function pages(n: number): string {
  return `${count(n)} ${n === 1 ? "page" : "pages"}`;
}

export function pageBytes(n: number): string {
  return bytes(n * PAGE_BYTES);
}

export function share(x: number): string {
  const p = x * 100;
  if (p === 0) return "0 %";
  if (p < 0.01) return "< 0.01 %";
  if (p > 99.9 && p < 100) return "> 99.9 %";
  const digits = p >= 99.95 ? 0 : p >= 10 ? 1 : p >= 1 ? 1 : 2;
  return `${p.toFixed(digits)} %`;
}

let unit: "nanoseconds" | "accesses" | "ticks" = "nanoseconds";

/** What all times count: sources without a clock count something else. */
export function countsIn(of: typeof unit): void {
  unit = of;
}

/** microseconds, with as many digits as `step` (microseconds) asks for */
export function time(us: number, step = 1000): string {
  if (unit !== "nanoseconds") return `${count(us * 1000)} ${unit}`;
  const sign = us < 0 ? "-" : "";
  us = Math.abs(us);
  if (us < 1e6 && step < 1e5) {
    return us === 0 ? "0 s" : us < 1000 ? `${sign}${us.toFixed(0)} µs` : `${sign}${(us / 1000).toFixed(step < 1000 ? 2 : 0)} ms`;
  }
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / 1e6) - 1e-9)));
  const s = us / 1e6;
  if (s < 60) return `${sign}${s.toFixed(digits)} s`;
  const whole = Math.floor(s / 60);
  const rest = (s - whole * 60).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  if (whole < 60) return `${sign}${whole}:${rest} min`;
  return `${sign}${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}:${rest} h`;
}

/** nanoseconds with three digits, as the text report has them */
export function duration(ns: number): string {
  if (ns === 0) return "0 s";
  const three = (x: number) => (x >= 99.95 ? x.toFixed(0) : x.toFixed(x >= 9.995 ? 1 : 2).replace(/\.?0+$/, ""));
  if (ns < 999.5) return `${ns.toFixed(0)} ns`;
  if (ns < 999_500) return `${three(ns / 1e3)} µs`;
  if (ns < 999_500_000) return `${three(ns / 1e6)} ms`;
  return ns < 119.5e9 ? `${three(ns / 1e9)} s` : time(ns / 1e3, 1e6);
}

export function hex(n: number): string {
  return `0x${n.toString(16)}`;
}

export function pageAddress(page: number): string {
  return hex(page * PAGE_BYTES);
}

/** steps of 1, 2, 5 (and 10, 30, 60 s above a second) */
export function timeStep(span: number, ticks: number): number {
  const raw = span / Math.max(1, ticks);
  for (const s of [1e6, 2e6, 5e6, 1e7, 2e7, 3e7, 6e7, 1.2e8, 3e8, 6e8, 1.2e9, 1.8e9, 3.6e9, 7.2e9]) {
    if (raw > 5e5 && s >= raw) return s;
  }
  return niceStep(raw);
}

export function niceStep(raw: number): number {
  const p = 10 ** Math.floor(Math.log10(raw));
  for (const m of [1, 2, 5, 10]) if (m * p >= raw) return m * p;
  return 10 * p;
}

/** A name of an object with what tells it apart in front. */
export function name(full: string): string {
  return full.replaceAll("(anonymous namespace)::", "").replace(/^heap, small objects, first from ([^(]*[^( ])/, "$1, small objects");
}

/** Names without their places in brackets; of several that are alike then, with the end of the place: a line or an offset. */
export function short(names: string[]): string[] {
  const plain = names.map(n => name(n.replace(/ \(.*\)$/, "")));
  const used = new Map<string, number>();
  for (const n of plain) used.set(n, (used.get(n) ?? 0) + 1);
  return plain.map((n, i) => {
    const place = used.get(n)! > 1 ? /[^ (]*?([:+][0-9a-fx]+)[^:+]*\)$/.exec(names[i]) : null;
    return place ? `${n} ${place[1]}` : n;
  });
}

/** What stands where nothing is known. */
export const ABSENT = "–";

/** The figure, or its bound; null where it is not known. */
export function value<T>(known: Known<T>): T | null {
  return "absent" in known ? null : "exact" in known ? known.exact : known.at_least;
}

/** A figure as a person reads it, or a dash. */
export function known<T>(figure: Known<T>, show: (value: T) => string): string {
  if ("absent" in figure) return ABSENT;
  return "exact" in figure ? show(figure.exact) : `at least ${show(figure.at_least)}`;
}

/** A figure that is null where it is not known, as a person reads it. */
export function maybe<T>(figure: T | null, show: (value: T) => string): string {
  return figure === null ? ABSENT : show(figure);
}

/** A figure of touches of an object, marked where others may have touched more of its pages, and the program with them. */
export function bound(of: { possibly_others_page_touches: number | null }, text: string): string {
  return of.possibly_others_page_touches ? `≥\u00a0${text}` : text;
}

/** Why a figure is not known; null where it is. */
export function why<T>(figure: Known<T>): string | null {
  return "absent" in figure ? `not known: ${figure.absent}` : null;
}
