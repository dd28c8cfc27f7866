#!/usr/bin/env python3
"""Runs varve-kvs and varve-links over all variants, one after the other, and writes one JSON object a line.

usage: sweep.py DIRECTORY_OF_PROGRAMS OUTPUT.jsonl [--elements N] [--local 5,10,25,50,100,200] [--zipf 0.8,1.3]
                [--update 0.05,0.5] [--only btree/auto,skiplist/page]
"""
import argparse
import pathlib
import subprocess
import sys

VARIANTS = {
    "btree": ["hint", "local", "local+dfs", "dfs", "local+veb", "veb", "auto"],
    "skiplist": ["hint", "local", "local+page", "page", "auto"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--elements", default="13421773")
    parser.add_argument("--local", default="5,10,25,50,100,200")
    parser.add_argument("--zipf", default="0.8,1.3")
    parser.add_argument("--update", default="0.05")
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    only = set(filter(None, chosen.only.split(",")))
    with chosen.output.open("a") as output:
        for structure, placements in VARIANTS.items():
            for placement in placements:
                if only and f"{structure}/{placement}" not in only:
                    continue
                common = ["--json", "--structure", structure, "--placement", placement, "--elements", chosen.elements]
                runs = [
                    [chosen.programs / "varve-links", *common],
                    [chosen.programs / "varve-kvs", *common, "--local", chosen.local, "--zipf", chosen.zipf,
                     "--update", chosen.update],
                ]
                for run in runs:
                    print(*run, file=sys.stderr)
                    subprocess.run(run, stdout=output, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
