#!/usr/bin/env python3
"""Draws what sweep.py wrote: page reads over local memory for each skew, and shares of links, as one SVG file each.

usage: plot.py SWEEP.jsonl DIRECTORY
"""
import collections
import json
import pathlib
import sys

COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2"]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 420, 80, 50, 30


def text(x, y, content, anchor="middle"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-family="sans-serif" font-size="12">{content}</text>'


def save(path, body):
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">'
                    f'<rect width="100%" height="100%" fill="white"/>{"".join(body)}</svg>\n')
    print(path)


def draw_reads(path, title, lines):
    """`lines` maps a placement to {local percent: reads}."""
    budgets = sorted({budget for line in lines.values() for budget in line})
    most = max(max(line.values()) for line in lines.values())
    across, up = WIDTH - LEFT - 150, HEIGHT - TOP - BOTTOM
    place = {b: LEFT + across * i / max(1, len(budgets) - 1) for i, b in enumerate(budgets)}
    body = [text(WIDTH / 2, 18, title), text(LEFT + across / 2, HEIGHT - 10, "local memory, % of the data")]
    for i in range(5):
        y = TOP + up * (1 - i / 4)
        body.append(f'<path d="M{LEFT} {y:.0f}H{LEFT + across}" stroke="#ddd"/>' + text(LEFT - 6, y + 4, f"{most * i / 4:,.0f}", "end"))
    body += [text(x, HEIGHT - BOTTOM + 18, f"{b:g}") for b, x in place.items()]
    for i, (name, line) in enumerate(sorted(lines.items())):
        points = " ".join(f"{place[b]:.1f},{TOP + up * (1 - reads / most):.1f}" for b, reads in sorted(line.items()))
        colour = COLOURS[i % len(COLOURS)]
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body.append(f'<rect x="{WIDTH - 140}" y="{TOP + 20 * i}" width="12" height="12" fill="{colour}"/>')
        body.append(text(WIDTH - 122, TOP + 20 * i + 11, name, "start"))
    save(path, body)


def draw_links(path, title, bars):
    """`bars` maps a placement to its three counts."""
    body = [text(WIDTH / 2, 18, title)]
    across = WIDTH - LEFT - 150
    for row, (name, counts) in enumerate(bars.items()):
        y, x = TOP + 20 + row * 40, LEFT + 40.0
        body.append(text(LEFT + 34, y + 18, name, "end"))
        for colour, count in zip(COLOURS, counts):
            width = across * count / max(1, sum(counts))
            body.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="26" fill="{colour}"/>')
            x += width
        body.append(text(x + 6, y + 18, f"{100 * counts[2] / max(1, sum(counts)):.1f} % cross", "start"))
    for i, name in enumerate(["local", "in-page", "cross-page"]):
        body.append(f'<rect x="{LEFT + 120 * i + 40}" y="{HEIGHT - 30}" width="12" height="12" fill="{COLOURS[i]}"/>')
        body.append(text(LEFT + 120 * i + 58, HEIGHT - 19, name, "start"))
    save(path, body)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    reads = collections.defaultdict(lambda: collections.defaultdict(dict))
    links = collections.defaultdict(dict)
    for line in pathlib.Path(sys.argv[1]).read_text().splitlines():
        row = json.loads(line)
        if row["schema"] == "varve-kvs/1":
            key = (row["structure"], row["zipf"], row["update_ratio"])
            reads[key][row["placement"]][row["local_percent"]] = row["page_reads"]
        else:
            counts = [row["local_links"], row["in_page_links"], row["cross_page_links"]]
            links[row["structure"]][row["placement"]] = counts
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for (structure, zipf, updates), lines in reads.items():
        draw_reads(folder / f"kvs-{structure}-zipf{zipf}-update{updates}.svg",
                   f"{structure}: pages read by 10,000 operations, Zipf {zipf}, {updates:.0%} updates", lines)
    for structure, bars in links.items():
        draw_links(folder / f"links-{structure}.svg", f"{structure}: links between nodes", bars)


if __name__ == "__main__":
    main()
