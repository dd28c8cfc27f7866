import { h } from "./dom";

export type Theme = "dark" | "light";
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function remembered(): Theme | null {
  try {
    const t = localStorage.getItem("varve-theme");
    return t === "dark" || t === "light" ? t : null;
  } catch { return null; } // storage is refused to some file: pages
}

/** Before anything is drawn. */
export function begin(): void {
  document.documentElement.dataset.theme = remembered() ?? (dark.matches ? "dark" : "light");
}

/** The theme of the page, and the button that changes it. */
export class Themes {
  private chosen = remembered();
  readonly button = h("button", { type: "button", class: "tool theme", onclick: () => {
    this.chosen = this.now === "dark" ? "light" : "dark";
    try { localStorage.setItem("varve-theme", this.chosen); } catch { /* not remembered, then */ }
    this.set(this.chosen);
  } });

  /** `draw` draws what colours depend on; `print` does it at once. */
  constructor(private readonly draw: (theme: Theme) => void, print = () => {}) {
    dark.addEventListener("change", () => { if (!this.chosen) this.set(this.now); });
    // Paper is white.
    window.addEventListener("beforeprint", () => { this.set("light"); print(); });
    window.addEventListener("afterprint", () => this.set(this.now));
  }

  private get now(): Theme { return this.chosen ?? (dark.matches ? "dark" : "light"); }

  private set(theme: Theme): void {
    document.documentElement.dataset.theme = theme;
    this.button.textContent = theme === "dark" ? "☀ Light" : "☾ Dark";
    this.button.setAttribute("aria-label", `Switch to the ${theme === "dark" ? "light" : "dark"} theme`);
    this.draw(theme);
  }

  start(): void { this.set(this.now); }
}
