#!/usr/bin/env python3
"""Runs varve-kvs over all variants, one after the other, and writes one JSON object a line: for each cell of the sweep the
page traffic of the queries, and what the construction took and where the links of the structure lead. Variants that the
output has already are left out, so that an interrupted sweep goes on. Counts do not depend on the order.

usage: sweep.py DIRECTORY_OF_PROGRAMS OUTPUT.jsonl [--elements N] [--local 5,10,25,50,100,200] [--zipf 0.8,1.3]
                [--update 0.05,0.5] [--replacement clock,fifo] [--only btree/auto,skiplist/page]
"""
import argparse
import json
import pathlib
import subprocess
import sys

VARIANTS = {
    "btree": ["auto", "local+dfs", "local+veb", "dfs", "veb", "local", "hint"],
    "skiplist": ["auto", "local+page", "page", "local", "hint"],
}
HAS_LOCAL_PART = {"auto", "local", "local+dfs", "local+veb", "local+page"}


def done(output: pathlib.Path) -> set[tuple]:
    if not output.exists():
        return set()
    rows = [json.loads(line) for line in output.read_text().splitlines() if line.startswith("{")]
    return {(r["structure"], r["placement"], r["elements"], float(r["local_percent"])) for r in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--elements", type=int, default=13421773)
    parser.add_argument("--local", default="50,5,25,100,10,200")
    parser.add_argument("--zipf", default="0.8,1.3")
    parser.add_argument("--update", default="0.05,0.5")
    parser.add_argument("--replacement", default="clock,fifo")
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    only = set(filter(None, chosen.only.split(",")))
    for structure, placements in VARIANTS.items():
        for placement in placements:
            if only and f"{structure}/{placement}" not in only:
                continue
            there = done(chosen.output)
            missing = [local for local in chosen.local.split(",")
                       if (structure, placement, chosen.elements, float(local)) not in there]
            # A purely local part makes every size of local memory a store of its own; one at a time, to go on from there.
            batches = [[local] for local in missing] if placement in HAS_LOCAL_PART else [missing]
            for batch in filter(None, batches):
                run = [chosen.programs / "varve-kvs", "--json", "--structure", structure, "--placement", placement,
                       "--elements", str(chosen.elements), "--local", ",".join(batch), "--zipf", chosen.zipf,
                       "--update", chosen.update, "--replacement", chosen.replacement]
                print(*run, file=sys.stderr)
                rows = subprocess.run(run, stdout=subprocess.PIPE, check=True, text=True).stdout
                with chosen.output.open("a") as output:
                    output.write(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
