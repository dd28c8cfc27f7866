#!/usr/bin/env python3
"""Sets the rows of a sweep (sweep.py) beside published figures of the same variants, cell by cell.

usage: compare.py SWEEP.jsonl [--links EDGES.csv] [--swaps SWAPS.csv] [--replacement clock|fifo]

EDGES.csv has the columns structure, placement, local_edges, in_page_edges, cross_page_edges and local_bytes; compared is the
share of links that cross pages. SWAPS.csv has structure, placement, local_percent, zipf, update_ratio, page_reads and
page_writes; compared is the sum of reads and writes, and in each column (local memory, skew, updates) the best variant of
both. Pages that are dirty at the end and were not written are in neither sum: the study counts what its pager moved during
the operations. The line `with what is left` adds ours to ours alone, which is the worst case for us. A ratio below 1 is
ours being lower. Ends with 1 if a cell is worse than published, is missing, or a best is not 20 percent lower.
"""
import argparse
import csv
import json
import pathlib
import sys


def rows_of(path: pathlib.Path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def cross_share(local: float, in_page: float, cross: float) -> float:
    return cross / (local + in_page + cross)


def compare_links(ours: list[dict], published: list[dict]) -> list[str]:
    wrong = []
    print(f"{'links that cross pages':28}{'published':>10}{'ours':>10}{'ratio':>8}")
    for row in published:
        name = f"{row['structure']} {row['placement']}"
        theirs = cross_share(*(float(row[c]) for c in ("local_edges", "in_page_edges", "cross_page_edges")))
        mine = [r for r in ours if r["structure"] == row["structure"] and r["placement"] == row["placement"]
                and r["local_bytes"] == int(row["local_bytes"])]
        if not mine:
            wrong.append(f"links: no run of {name}")
            continue
        share = cross_share(mine[0]["local_links"], mine[0]["in_page_links"], mine[0]["cross_page_links"])
        print(f"{name:28}{theirs:10.3f}{share:10.3f}{share / theirs:8.3f}{' worse' if share > theirs else ''}")
        if share > theirs:
            wrong.append(f"links: {name} {share / theirs:.3f}")
    return wrong


def compare_swaps(ours: list[dict], published: list[dict], replacement: str) -> list[str]:
    """Counted on both sides: pages read and pages written during the operations."""
    wrong = []
    rows = {(r["structure"], r["placement"], float(r["local_percent"]), float(r["zipf"]), float(r["update_ratio"])): r
            for r in ours if r["schema"].startswith("varve-kvs/") and r.get("replacement", "clock") == replacement}
    moved = {cell: r["page_reads"] + r["page_writes"] for cell, r in rows.items()}
    theirs = {(r["structure"], r["placement"], float(r["local_percent"]), float(r["zipf"]), float(r["update_ratio"])):
              float(r["page_reads"]) + float(r["page_writes"]) for r in published}
    columns = sorted({cell[2:] for cell in theirs if any(mine[2:] == cell[2:] for mine in moved)})
    variants = list(dict.fromkeys((r["structure"], r["placement"]) for r in published))
    heads = "".join(f"{f'{l:g}%/{z:g}':>10}" for l, z, _ in columns)
    print(f"\nratio of page reads and writes, ours to published, at local memory/skew; replacement {replacement}\n"
          f"{'':22}{heads}")
    for variant in variants:
        line = f"{' '.join(variant):22}"
        for column in columns:
            cell = (*variant, *column)
            if cell not in theirs:
                line += f"{'':>10}"
            elif cell not in moved:
                line += f"{'-':>10}"
                wrong.append(f"swaps: no run of {cell}")
            else:
                ratio = moved[cell] / theirs[cell]
                line += f"{ratio:9.3f}{'!' if ratio > 1 else ' '}"
                if ratio > 1:
                    wrong.append(f"swaps: {cell} {ratio:.3f}")
        print(line)
    line = f"{'best to best':22}"
    worst = f"{'  with what is left':22}"
    names = f"{'':22}"
    for column in columns:
        best = min((cell for cell in moved if cell[2:] == column), key=moved.get)
        least = min(v for cell, v in theirs.items() if cell[2:] == column)
        ratio = moved[best] / least
        line += f"{ratio:9.3f}{'!' if ratio > 0.8 else ' '}"
        left = rows[best].get("dirty_pages_left")
        worst += f"{'-':>10}" if left is None else f"{(moved[best] + left) / least:9.3f} "
        names += f"{best[0] + '/' + best[1]:>10}"
        if ratio > 0.8:
            wrong.append(f"swaps: best of {column} {ratio:.3f}")
    print(f"{line}\n{worst}\n{names}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=pathlib.Path)
    parser.add_argument("--links", type=pathlib.Path)
    parser.add_argument("--swaps", type=pathlib.Path)
    parser.add_argument("--replacement", choices=["clock", "fifo"], default="clock", help="which of our rows")
    chosen = parser.parse_args()
    text = chosen.sweep.read_text()
    ours = [json.loads(line) for line in text.splitlines()] if text.startswith('{"schema":"varve-kvs') \
        else json.loads(text)["rows"]
    wrong = []
    if chosen.links:
        wrong += compare_links(ours, rows_of(chosen.links))
    if chosen.swaps:
        wrong += compare_swaps(ours, rows_of(chosen.swaps), chosen.replacement)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
