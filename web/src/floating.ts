import { h } from "./dom";

/** The tip of the canvases below the map. */
export class Floating {
  readonly element = h("div", { class: "tip", role: "tooltip", hidden: true });

  show(e: { clientX: number; clientY: number }, title: string, ...pairs: [string, string][]): void {
    const list = h("dl", {});
    for (const [key, value] of pairs) list.append(h("dt", {}, key), h("dd", {}, value));
    this.element.replaceChildren(h("strong", {}, title), list);
    this.element.hidden = false;
    const w = this.element.offsetWidth, hgt = this.element.offsetHeight;
    const x = e.clientX + 16 + w > window.innerWidth - 8 ? e.clientX - w - 14 : e.clientX + 16;
    const y = e.clientY + 18 + hgt > window.innerHeight - 8 ? e.clientY - hgt - 12 : e.clientY + 18;
    this.element.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  }

  hide(): void { this.element.hidden = true; }
}
