#!/usr/bin/env python3
"""Draws what compare.py printed: rate and p99 of each way, on logarithmic axes. usage: plot.py RUN.json PICTURE.svg"""

import json
import math
import sys

NAMES = {"mapped": "std::map, mapped file", "swap": "std::map, swap on disk", "zram": "std::map, swap on zram",
         "varve_disk": "far_map, file on disk", "varve_zram": "far_map, file on zram"}
LEFT, WIDTH, ROW = 165, 240, 24


def panel(out, x, title, values, low, high, text):
    out.append(f'<text x="{x}" y="16" class="title">{title}</text>')
    for i, (way, value) in enumerate(values):
        length = WIDTH * (math.log10(value) - low) / (high - low)
        kind = "ours" if way.startswith("varve") else "other"
        out.append(f'<rect x="{x}" y="{28 + i * ROW}" width="{length:.0f}" height="16" class="{kind}"/>')
        out.append(f'<text x="{x + length + 5:.0f}" y="{41 + i * ROW}">{text(value)}</text>')


def main():
    with open(sys.argv[1]) as file:
        rounds = json.load(file)["rounds"]
    best = [(way, max(rounds[way], key=lambda r: r["uniform_per_second"])) for way in NAMES if rounds.get(way)]
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="800" height="160" font-family="sans-serif" font-size="12">',
           "<style>.title{font-weight:bold}.ours{fill:#1b7f5c}.other{fill:#9aa5b1}</style>",
           '<rect width="800" height="160" fill="#fff"/>']
    for i, (way, _) in enumerate(best):
        out.append(f'<text x="0" y="{41 + i * ROW}">{NAMES[way]}</text>')
    panel(out, LEFT, "Operations a second", [(w, r["uniform_per_second"]) for w, r in best], 2, 5.1,
          lambda v: f"{v:,.0f}")
    panel(out, LEFT + 330, "99th percentile, µs", [(w, r["uniform_p99_us"]) for w, r in best], 0, 3.3,
          lambda v: f"{v:,.0f}")
    out.append("</svg>")
    with open(sys.argv[2], "w") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
