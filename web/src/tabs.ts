import { h } from "./dom";

/** A list of tabs, and the panels of which one is shown. */
export class Tabs<T extends string> {
  readonly element: HTMLElement;
  private readonly buttons = new Map<T, HTMLButtonElement>();

  constructor(label: string, names: [T, string][], readonly panels: Record<T, HTMLElement>, kind = "tabs") {
    for (const [id, text] of names) {
      this.buttons.set(id, h("button", { type: "button", role: "tab", id: `t-${id}`, "aria-controls": `p-${id}`, onclick: () => this.open(id) }, text));
      const panel = panels[id];
      panel.id = `p-${id}`;
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", `t-${id}`);
    }
    this.element = h("div", { class: kind, role: "tablist", "aria-label": label, onkeydown: (e: KeyboardEvent) => {
      const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
      if (!step) return;
      const at = names.findIndex(([id]) => this.buttons.get(id) === document.activeElement);
      const [id] = names[(at + step + names.length) % names.length];
      this.open(id);
      this.buttons.get(id)!.focus();
    } }, ...this.buttons.values());
  }

  open(chosen: T): void {
    for (const [id, button] of this.buttons) {
      button.setAttribute("aria-selected", String(id === chosen));
      button.tabIndex = id === chosen ? 0 : -1;
      this.panels[id].classList.toggle("off", id !== chosen);
    }
  }
}
