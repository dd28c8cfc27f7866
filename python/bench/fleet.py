"""What views over many traces cost: ``python bench/fleet.py --help``. Prints a table, and writes every figure.

Each figure is of one command in a process of its own: its time, its CPU time, its peak memory, and what it read
(``rchar`` of /proc/self/io: system calls, also where the page cache answers).
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

import fleets  # noqa: E402
import made  # noqa: E402

VIEWS = ("services", "savings", "cold_by_site", "working_set", "regressions", "hosts", "false_sharing")
#: Rows of one trace: touches, faults, samples; intervals, objects and sites come on top.
TOUCHES, FAULTS, SAMPLES = 36_000, 8_000, 5_700
ROWS = TOUCHES + FAULTS + SAMPLES + made.INTERVALS + 303 + 45


def make(place: tuple[str, int]) -> None:
    """Make the trace of this number: three services, four builds, fifty hosts."""
    store, number = place
    build, host = number % 4, number // 4 % 50
    made.write(
        Path(store),
        made.Made(
            service=f"service{number % 3}",
            build=f"{build:040x}",
            host=f"host{host}",
            date=f"2026-11-{1 + build * 5 + number // 200 % 5:02d}",
            id=hashlib.sha256(str(number).encode()).hexdigest()[:16],
            seed=number,
            touches=TOUCHES,
            faults=FAULTS,
            samples=SAMPLES,
            grown=1.3 if build == 2 else 1.0,  # noqa: PLR2004 the third
            moved=build * 3,
            start_unix_ns=1_790_000_000_000_000_000 + build * 10**15,
        ),
    )


def fill(store: Path, traces: int) -> None:
    """Make a store."""
    with multiprocessing.get_context("spawn").Pool() as pool:
        for _ in pool.imap_unordered(make, ((str(store), number) for number in range(traces)), chunksize=20):
            pass


def child(arguments: Sequence[str]) -> int:
    """Run a command of the fleet, and say what it took."""
    # What is loaded is no part of what is read; it is of the time.
    begin = time.monotonic()
    import duckdb  # noqa: F401, PLC0415
    import pyarrow.parquet  # noqa: F401, PLC0415

    from varve.fleet._command import main  # noqa: PLC0415

    before = read_bytes()
    code = main(arguments)
    seconds = time.monotonic() - begin
    read = read_bytes() - before
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss << 10}
    print(json.dumps({**found, "read_bytes": read}), file=sys.stderr)
    return code


def read_bytes() -> int:
    """Give how much this process has read."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


def measure(arguments: Sequence[str]) -> dict[str, float]:
    """Run a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", *arguments],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stderr.splitlines()[-1])
    return found


def show(name: str, found: dict[str, float]) -> None:
    """Print a row."""
    print(
        f"{name:48} {found['seconds']:8.2f} s {found['cpu_seconds']:8.2f} s of CPU "
        f"{found['peak_bytes'] / 2**20:8.0f} MiB {found['read_bytes'] / 1e6:10.1f} MB read",
        flush=True,
    )


def sizes(store: Path) -> dict[str, int]:
    """Give files and bytes, of traces and of the compacted store."""
    found = {"files": 0, "bytes": 0, "compact_files": 0, "compact_bytes": 0}
    for path in store.rglob("*"):
        if path.is_file():
            kind = "compact_" if path.relative_to(store).parts[0] == "compact" else ""
            found[f"{kind}files"] += 1
            found[f"{kind}bytes"] += path.stat().st_size
    return found


def views(options: argparse.Namespace, store: Path, traces: int) -> Iterator[dict[str, object]]:
    """Measure all views, before and after compaction."""
    common = ["--memory", "2GiB", "--threads", "2"]
    for state in ("traces", "compacted"):
        if state == "compacted":
            found = measure(["compact", str(store), *common])
            show(f"{traces * ROWS:.1e} rows: compact", found)
            yield {"what": "compact", "traces": traces, "rows": traces * ROWS, **found, **sizes(store)}
        for view in options.views.split(",") if state == "traces" else VIEWS:
            found = measure(["query", str(store), view, *common])
            show(f"{traces * ROWS:.1e} rows: {view}, {state}", found)
            yield {"what": view, "state": state, "traces": traces, "rows": traces * ROWS, **found}


def spark(options: argparse.Namespace, store: Path, traces: int) -> Iterator[dict[str, object]]:
    """Measure a view with one worker and with two, of one core each, by turns."""
    for turn in range(options.turns):
        for workers in (1, 2):
            with tempfile.TemporaryDirectory() as folder, fleets.spark_cluster(workers, folder) as url:
                found = measure(["query", str(store), "cold_by_site", "--engine", "spark", "--master", url])
            show(f"{traces * ROWS:.1e} rows: cold_by_site, Spark, {workers} workers", found)
            yield {"what": "spark", "workers": workers, "turn": turn, "traces": traces, "rows": traces * ROWS, **found}


def main() -> int:
    """Run what the options name."""
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("views", "spark"))
    parser.add_argument("--traces", default="200,2000", help="sizes of stores, in traces of about 50,000 rows")
    parser.add_argument(
        "--views", default=",".join(VIEWS), help="views that are asked of traces that are not compacted"
    )
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where stores are made and kept")
    parser.add_argument("--output", type=Path, help="a file for every figure, JSON")
    parser.add_argument("--smoke", action="store_true", help="a small store; the figures say nothing")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        for traces in [8] if options.smoke else [int(count) for count in options.traces.split(",")]:
            store = (options.folder or Path(temporary)) / f"{traces}"
            if not store.exists():
                fill(store, traces)
            shutil.rmtree(store / "compact", ignore_errors=True)
            results += list((views if options.what == "views" else spark)(options, store, traces))
    if options.output:
        import duckdb  # noqa: PLC0415

        about = {
            "benchmark": f"fleet-{options.what}",
            "options": {"traces": options.traces, "views": options.views, "turns": options.turns},
            "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()},
            "versions": {"python": platform.python_version(), "duckdb": duckdb.__version__},
        }
        options.output.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
