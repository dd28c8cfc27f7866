import { NEVER, NO_THREAD } from "./payload";

export type Mode = "heat" | "thread" | "first";
type Rgb = [number, number, number];

function parse(hexColor: string): Rgb {
  const n = parseInt(hexColor.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

function ramp(stops: string[], t: number): Rgb {
  const x = Math.max(0, Math.min(1, t)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(x));
  const a = parse(stops[i]), b = parse(stops[i + 1]), f = x - i;
  return [0, 1, 2].map(k => Math.round(a[k] + (b[k] - a[k]) * f)) as Rgb;
}

const mix = (a: Rgb, b: Rgb, f: number): Rgb => [0, 1, 2].map(k => Math.round(a[k] + (b[k] - a[k]) * f)) as Rgb;
const pack = ([r, g, b]: Rgb): number => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
const css = ([r, g, b]: Rgb): string => `rgb(${r} ${g} ${b})`;

// Heat runs from "barely above the ground" to the strongest contrast with it, on either ground.
const HEAT = {
  dark: ["#33406f", "#5b3f94", "#8f3f98", "#c4467f", "#ea6a54", "#f99f3e", "#fbd75a", "#fdf6c4"],
  light: ["#f6dcae", "#f4bd7c", "#ee9259", "#e0644b", "#c23c55", "#932464", "#5f1a66", "#2b0f4d"],
};
const FIRST = {
  dark: ["#4a57c4", "#3d86cf", "#2fb0b4", "#4fcc83", "#a9dc4e", "#fde047"],
  light: ["#2d2a83", "#2b5f9e", "#1f8a8d", "#35a86b", "#8fba32", "#d9a900"],
};
const THREADS = {
  dark: ["#5aa9ff", "#ff9f4a", "#59d98c", "#ff6f91", "#c79bff", "#ffd84d", "#4fdbe0", "#f28be0", "#b5c95a", "#d4a27f", "#9fb4ff", "#8ee6c0"],
  light: ["#1f6fd0", "#d9660a", "#16884b", "#cf2f5b", "#7a43c9", "#a67c00", "#0b8794", "#b8399f", "#6b7d10", "#8f5a33", "#4a5fc0", "#1d8f6b"],
};
const GROUND = {
  dark: { page: "#0f1318", alive: "#1a2027", dead: "#12161b", unknown: "#8a94a0", possibly: "#55697d" },
  light: { page: "#ffffff", alive: "#edf0f4", dead: "#f8f9fb", unknown: "#7b8490", possibly: "#9fb0c3" },
};

/** Colours for one theme, as packed pixels for canvases and as CSS for legends. */
export class Palette {
  readonly page: number;
  readonly dead: number;
  /** the stripes of what others may have touched */
  readonly possibly: number;
  readonly heat: Uint32Array;
  private readonly cache = new Map<number, Uint32Array>();
  constructor(readonly dark: boolean) {
    const ground = GROUND[this.key];
    this.page = pack(parse(ground.page));
    this.dead = pack(parse(ground.dead));
    this.possibly = pack(parse(ground.possibly));
    this.heat = this.table(v => ramp(HEAT[this.key], (v - 1) / 254));
  }
  private get key(): "dark" | "light" { return this.dark ? "dark" : "light"; }

  private table(colour: (v: number) => Rgb): Uint32Array {
    const lut = new Uint32Array(256);
    lut[0] = pack(parse(GROUND[this.key].alive));
    for (let v = 1; v < 256; v++) lut[v] = pack(colour(v));
    return lut;
  }

  /** One hue over heat values: weak touches are paler, never invisible. */
  private shades(id: number, hue: () => Rgb): Uint32Array {
    let lut = this.cache.get(id);
    if (!lut) {
      const ground = parse(GROUND[this.key].alive), full = hue();
      lut = this.table(v => mix(ground, full, 0.38 + 0.62 * Math.sqrt(v / 255)));
      this.cache.set(id, lut);
    }
    return lut;
  }

  threadLut(thread: number): Uint32Array {
    return this.shades(thread, () => this.threadRgb(thread));
  }
  firstLut(bin: number, bins: number): Uint32Array {
    const step = bin === NEVER ? 255 : Math.floor((bin / Math.max(1, bins)) * 254);
    return this.shades(0x10000 + step, () => (step === 255 ? parse(GROUND[this.key].unknown) : ramp(FIRST[this.key], step / 254)));
  }
  private threadRgb(thread: number): Rgb {
    const set = THREADS[this.key];
    return thread === NO_THREAD ? parse(GROUND[this.key].unknown) : parse(set[thread % set.length]);
  }
  threadCss(thread: number): string { return css(this.threadRgb(thread)); }
  heatCss(share: number): string { return css(ramp(HEAT[this.key], Math.sqrt(share))); }
  possiblyCss(): string {
    const { alive, possibly } = GROUND[this.key];
    return `repeating-linear-gradient(135deg, ${possibly} 0 2px, ${alive} 2px 5px)`;
  }
  heatGradient(): string { return `linear-gradient(to right, ${HEAT[this.key].join(", ")})`; }
  firstGradient(): string { return `linear-gradient(to right, ${FIRST[this.key].join(", ")})`; }
}
