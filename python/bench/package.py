"""What importing the package takes, and how steady touched and resident memory are: ``python bench/package.py --help``.

``import``: processes that import and ones that do not, by turns; the figure is the difference of their medians.
``steady``: two programs, recorded again and again with ``varve check``; the spread of each figure over the runs, and
how many runs break a budget of 5 % above the median.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import varve

#: Seconds that ``import varve`` may take.
MAX_IMPORT_S = 0.3
#: Above the median.
BUDGET = 1.05
CHURN = """
import time
for _ in range(6):
    memory = bytearray(b"1") * ({size} << 20)
    del memory
    time.sleep(0.07)
"""
LISTS = """
import json
lists = [[number, str(number), number / 3] for number in range({lists})]
assert json.loads(json.dumps(lists)) == lists
"""
#: Writes its child's peak beside what is recorded: the kernel's own figure, which no trace has.
PEAK = """
import os, resource, sys
child = os.posix_spawn(sys.executable, [sys.executable, '-c', sys.argv[2]], os.environ)
_, status, usage = os.wait4(child, 0)
with open(sys.argv[1], 'a') as file:
    print(usage.ru_maxrss << 10, file=file)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def run(program: str) -> float:
    """Give the seconds that a program of Python takes."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.monotonic() - begin


def imports(rounds: int) -> dict[str, object]:
    """Measure imports. Files are in the page cache: the first round does not count."""
    programs = {"nothing": "pass", "varve": "import varve", "with engines": "import varve, duckdb, pyarrow.parquet"}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(rounds + 1):
        for name, program in programs.items():
            seconds = run(program)
            if turn:
                times[name].append(seconds)
    medians = {name: statistics.median(of) for name, of in times.items()}
    for name in ("varve", "with engines"):
        more = medians[name] - medians["nothing"]
        print(f"import of {name:14} {more:6.3f} s more than Python's {medians['nothing']:.3f} s")
    taken = medians["varve"] - medians["nothing"]
    print(f"{'holds ' if taken <= MAX_IMPORT_S else 'missed'} import varve: {taken:.3f} s, {MAX_IMPORT_S} s permitted")
    return {"seconds": times, "import_s": taken, "max_s": MAX_IMPORT_S}


def figures(program: str, runs: int) -> dict[str, list[int]]:
    """Record a program so often. Gives bytes touched, and resident at an interval's end and at the kernel's peak."""
    with tempfile.TemporaryDirectory() as folder:
        kept, peaks = Path(folder) / "kept", Path(folder) / "peaks"
        budgets = ["--max-touched", "1024GiB", "--max-resident", "1024GiB"]
        check = [os.environ.get("VARVE", "varve"), "check", "-n", str(runs), "--json", *budgets, "--keep", str(kept)]
        done = subprocess.run([*check, "--", sys.executable, "-c", program], check=False, capture_output=True)
        if done.returncode:
            sys.exit((done.stdout + done.stderr).decode(errors="replace"))
        judged = {budget["budget"]["measure"]: budget["values"] for budget in json.loads(done.stdout)["budgets"]}
        for _ in range(runs):
            subprocess.run([sys.executable, "-c", PEAK, str(peaks), program], check=True)
        return {
            "touched": judged["touched_bytes"],
            "resident": judged["peak_resident_bytes"],
            "peak": [int(line) for line in peaks.read_text().split()],
        }


def spread(values: Sequence[float]) -> float:
    """Give the distance between the least and the most, as a share of the median."""
    return (max(values) - min(values)) / statistics.median(values)


def steady(runs: int, *, smoke: bool) -> dict[str, object]:
    """Measure how much figures of one program differ."""
    programs = {
        "memory that comes and goes": CHURN.format(size=2 if smoke else 32),
        # One that ends before the first interval has no resident memory that anybody saw.
        "JSON of lists": ("import time; time.sleep(0.3)" if smoke else "")
        + LISTS.format(lists=400 if smoke else 40_000),
    }
    found: dict[str, dict[str, object]] = {}
    for name, program in programs.items():
        found[name] = {}
        for figure, values in figures(program, runs).items():
            above = sum(value > BUDGET * statistics.median(values) for value in values)
            found[name][figure] = {"bytes": values, "spread": spread(values), "above_budget": above}
            print(
                f"{name:28} {figure:9} {min(values) / 2**20:7.1f} to {max(values) / 2**20:7.1f} MiB, "
                f"spread {100 * spread(values):5.1f} %, {above} of {len(values)} above the budget",
                flush=True,
            )
    return {"programs": found, "budget": BUDGET}


def main() -> int:
    """Run what the options name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("import", "steady"))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--output", type=Path, help="a file for every figure, JSON")
    parser.add_argument("--smoke", action="store_true", help="small programs, two runs; the figures say nothing")
    options = parser.parse_args()
    runs = 2 if options.smoke else options.runs
    measures: Mapping[str, Callable[[], dict[str, object]]] = {
        "import": lambda: imports(runs),
        "steady": lambda: steady(runs, smoke=options.smoke),
    }
    results = measures[options.what]()
    if options.output:
        about = {
            "benchmark": f"package-{options.what}",
            "options": {"runs": runs},
            "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()},
            "versions": {"python": platform.python_version(), "varve": Path(varve.__file__).parent.name},
        }
        options.output.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
