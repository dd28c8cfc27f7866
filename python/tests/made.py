"""Made traces: tables of the format with known truth, of any size, that no program ran for.

A made trace is 10 s of a server with 200 intervals: a hot table touched in every interval, a log touched once, a pool
of which half is never touched, small scans, and two threads that meet on a cache line.
"""

import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

INTERVALS = 200
INTERVAL_NS = 50_000_000
#: Pages of the objects of a made trace.
HOT, LOG, POOL = 2048, 1024, 4096
SITES = ("table", "log", "pool")
#: Objects of the processes 200 and 201, which ended in the last interval, and of 202, which ended in the middle and has
#: one: kind, name, layer, first page, pages, how many of them are touched, in the first tenth, and whether it was freed
#: in the middle.
OTHERS_AT = 1 << 24
OTHERS = {
    "rodata": ("file", "lib.so .rodata", 1, 0, 64, 0, False),
    "constant": ("static", "codes (tables.c)", 6, 0, 32, 8, False),
    "data": ("static", "lib.so .data/.bss (small variables)", 1, 64, 64, 0, False),
    "static": ("static", "buffer (lib.c)", 6, 64, 32, 16, False),
    "kept": ("heap", "kept (server.c:70, in keep)", 5, 256, 64, 48, False),
    "freed": ("heap", "freed (server.c:75, in keep)", 5, 512, 64, 10, True),
    "shared": ("mapping", "shared memory", 0, 1024, 128, 0, False),
    "ring": ("mapping", "ring (server.c:80, in share)", 2, 1024, 128, 20, False),
    "anonymous": ("mapping", "anonymous memory", 0, 2048, 256, 200, False),
}
BRIEF = ("heap", "brief (server.c:90, in work)", 5, 256, 64, 30, True)
_SECTION = 1 << 28
_SMALL = 300
_WORDS = pa.dictionary(pa.int8(), pa.string())
_FRAME = pa.struct(
    [
        ("function", pa.string()), ("file", pa.string()), ("line", pa.uint32()), ("column", pa.uint32()),
        ("function_line", pa.uint32()), ("module", pa.string()), ("offset", pa.uint64()),
        ("address", pa.uint64()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Made:
    """What a made trace is of."""

    service: str
    build: str
    host: str
    date: str
    #: What tells it from others.
    id: str
    seed: int
    #: Rows of touches.
    touches: int = 2000
    #: Rows of faults and of samples.
    faults: int = 200
    samples: int = 200
    #: By how much larger than usual the pool is.
    grown: float = 1.0
    #: Lines by which the build's functions moved.
    moved: int = 0
    start_unix_ns: int = 1_790_000_000_000_000_000
    complete: bool = True
    #: Loss counters that are not zero, where it is not complete.
    losses: tuple[str, ...] = ("faults",)
    #: Objects' names begin with this.
    prefix: str = ""
    #: Whether it has other processes too, `OTHERS`.
    others: bool = False


def write(store: Path, made: Made) -> Path:
    """Write a made trace into a store. Gives its folder."""
    above = (
        store / f"service={made.service}" / f"build={made.build}" / f"host={made.host}" / f"date={made.date}"
    )  # fmt: skip
    folder = above / f"{made.id}.new"
    folder.mkdir(parents=True)
    checksums = {}
    for name, table in tables(made).items():
        path = folder / f"{name}.parquet"
        pq.write_table(
            table, path, compression="zstd", use_dictionary=False,
            column_encoding={
                field.name: "DELTA_BINARY_PACKED" for field in table.schema
                if pa.types.is_integer(field.type) and field.type.bit_width >= 32
            } or None,
        )  # fmt: skip
        data = path.read_bytes()
        checksums[name] = {"bytes": len(data), "crc32": zlib.crc32(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest(made, checksums)))
    return named(folder)


def named(folder: Path) -> Path:
    """Name a trace in a store by its manifest, as `varve push` does. Gives its folder."""
    name = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()[:16]
    return folder.rename(folder.with_name(f"{name}.varve"))


def manifest(made: Made, checksums: dict[str, dict[str, int]]) -> dict[str, object]:
    """Give the manifest."""
    end = INTERVALS * INTERVAL_NS
    return {
        "format": "varve-trace", "version": 1, "varve": "made", "state": "finished", "backend": "scan",
        "capabilities": [
            "touches", "resident", "faults", "overhead", "machine", "places", "lives", "superset", "heap_objects",
            "samples",
        ],
        "recorder_pid": None,
        "target": {"command": [made.service], "pid": 100, "attached": True, "exit_code": None},
        "machine": {
            "kernel": "made", "architecture": "x86_64", "cpu": "made", "cpus": 2, "memory_bytes": 1 << 34, "nodes": 1,
        },
        "clock": {"start_ns": 0, "end_ns": end, "start_unix_ns": made.start_unix_ns, "unit": "nanoseconds"},
        "completeness": {"complete": made.complete, "statement": "made"},
        "losses": {"stacks": 0, **({} if made.complete else dict.fromkeys(made.losses, 3))},
        "checksums": checksums,
        "notes": [made.id],
    }  # fmt: skip


def tables(made: Made) -> dict[str, pa.Table]:
    """Give the tables."""
    draw = np.random.default_rng(made.seed)
    numbers = np.arange(INTERVALS, dtype=np.uint32)
    starts = numbers.astype(np.uint64) * INTERVAL_NS
    pool = int(POOL * made.grown)
    # The order in which the kernel gives addresses differs from run to run.
    bases = {name: (0x7F0000000000 + int(draw.integers(64)) * _SECTION * 8) // 4096 + at * (_SECTION // 4096)
             for at, name in enumerate((*SITES, "small"))}  # fmt: skip
    found = {
        "intervals": pa.table(
            {"interval": numbers, "start_ns": starts, "end_ns": starts + np.uint64(INTERVAL_NS),
             "held_ns": np.full(INTERVALS, 300_000, np.uint64), "resident_pages": np.full(INTERVALS, 9000, np.uint64)}
        ),
        "touches": _touches(made, draw, bases, pool),
        "faults": _faults(made, draw, bases),
        "objects": _objects(made, bases, pool),
        "sites": _sites(made),
        "samples": _samples(made, draw, bases),
    }  # fmt: skip
    if made.others:
        objects, touches = _others(found["objects"].num_rows)
        for name, more in (("objects", objects), ("touches", touches)):
            of = found[name]
            added = pa.Table.from_pylist(more, of.schema)
            found[name] = pa.concat_tables([of, added]).sort_by("interval" if name == "touches" else "object")
    return found


def _others(number: int) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Give the objects and touches of other processes. number: of the first object."""
    end = INTERVALS * INTERVAL_NS
    chosen = [(pid, of) for pid in (200, 201) for of in OTHERS.values()] + [(202, BRIEF)]
    objects: list[dict[str, object]] = []
    touches: list[dict[str, object]] = []
    for pid, (kind, name, layer, page, pages, touched, freed) in chosen:
        at = OTHERS_AT + page
        objects.append(
            {"object": number + len(objects), "pid": pid, "kind": kind, "name": name, "site": None, "address": at << 12,
             "bytes": pages << 12, "born_ns": 0, "died_ns": end // 2 if freed else end - 10_000_000, "tid": None,
             "pool": False, "layer": layer, "continues": None}
        )  # fmt: skip
        if touched:
            touches.append(
                {"interval": INTERVALS // 20, "pid": pid, "page": at, "pages": touched, "page_bytes": 4096,
                 "written": None, "source": "scan"}
            )  # fmt: skip
    return objects, touches


def _touches(made: Made, draw: np.random.Generator, bases: dict[str, int], pool: int) -> pa.Table:
    # A log that is written once, in the first tenth; half of the pool in its first half; the rest is the hot table.
    log = INTERVALS // 10
    interval = [np.arange(log), np.arange(log, log + 16)]
    page = [bases["log"] + np.arange(log) * (LOG // log), bases["pool"] + np.arange(16) * (pool // 32)]
    pages = [np.full(log, LOG // log), np.full(16, pool // 32)]
    rest = max(made.touches - log - 16, 0)
    order = np.sort(draw.integers(0, INTERVALS, rest))
    long = draw.random(rest) < 0.1
    start = draw.integers(0, HOT - 64, rest)
    interval.append(order)
    page.append(bases["table"] + start)
    pages.append(np.where(long, draw.integers(2, 64, rest), 1))
    at = np.argsort(np.concatenate(interval), kind="stable")
    rows = len(at)
    return pa.table(
        {
            "interval": np.concatenate(interval)[at].astype(np.uint32),
            "pid": np.full(rows, 100, np.uint32),
            "page": np.concatenate(page)[at].astype(np.uint64),
            "pages": np.concatenate(pages)[at].astype(np.uint32),
            "page_bytes": np.full(rows, 4096, np.uint32),
            "written": pa.nulls(rows, pa.bool_()),
            "source": pa.array(["scan"], pa.string()).take(pa.array(np.zeros(rows, np.int64))).cast(_WORDS),
        }
    )


def _faults(made: Made, draw: np.random.Generator, bases: dict[str, int]) -> pa.Table:
    rows = made.faults
    return pa.table(
        {
            "time_ns": np.sort(draw.integers(0, INTERVALS * INTERVAL_NS, rows)).astype(np.uint64),
            "pid": np.full(rows, 100, np.uint32),
            "tid": draw.integers(100, 104, rows).astype(np.uint32),
            "cpu": draw.integers(0, 2, rows).astype(np.uint32),
            "ip": (0x400000 + draw.integers(0, 1 << 16, rows)).astype(np.uint64),
            "address": ((bases["table"] + draw.integers(0, HOT, rows)) * 4096).astype(np.uint64),
            "write": pa.array(draw.random(rows) < 0.5),
            "kernel": pa.array(np.zeros(rows, bool)),
        }
    )


def _objects(made: Made, bases: dict[str, int], pool: int) -> pa.Table:
    end = INTERVALS * INTERVAL_NS
    sizes = [HOT, LOG, pool]
    lines = [10, 20, 30]
    named = [
        f"{made.prefix}{name} (server.c:{line + made.moved}, in {name}_init)"
        for name, line in zip(SITES, lines, strict=True)
    ]
    small = np.arange(_SMALL)
    names = [
        *named,
        *(f"{made.prefix}item (server.c:{40 + made.moved + int(at) % 40}, in make_{int(at) % 40})" for at in small),
    ]
    rows = len(names)
    born = np.concatenate([np.zeros(3, np.uint64), (small * (end // _SMALL)).astype(np.uint64)])
    return pa.table(
        {
            "object": np.arange(rows, dtype=np.uint64),
            "pid": np.full(rows, 100, np.uint32),
            "kind": pa.array(["heap"] * rows, pa.string()).cast(_WORDS),
            "name": names,
            "site": pa.array([*range(3), *(3 + int(at) % 40 for at in small)], pa.uint32()),
            "address": np.concatenate(
                [np.array([bases[name] for name in SITES]) * 4096, bases["small"] * 4096 + small * 8192]
            ).astype(np.uint64),
            "bytes": np.concatenate([np.array(sizes) * 4096, np.full(_SMALL, 4096)]).astype(np.uint64),
            "born_ns": born,
            "died_ns": pa.array(
                [None] * 3 + [int(at) + end // 10 if int(at) + end // 10 < end else None for at in born[3:]],
                pa.uint64(),
            ),
            "tid": np.full(rows, 100, np.uint32),
            "pool": pa.array(np.zeros(rows, bool)),
            "layer": np.full(rows, 5, np.uint32),
            "continues": pa.nulls(rows, pa.uint64()),
        }
    )


def _sites(made: Made) -> pa.Table:
    places = [(f"{name}_init", line) for name, line in zip(SITES, (10, 20, 30), strict=True)]
    places += [(f"make_{at}", 40 + at) for at in range(40)]
    places += [("serve", 100), ("count", 120)]
    return pa.table(
        {
            "site": np.arange(len(places), dtype=np.uint32),
            "label": [f"server.c:{line + made.moved}, in {function}" for function, line in places],
            "frames": pa.array(
                [[{"function": function, "file": "src/server.c", "line": line + made.moved, "column": 3,
                   "function_line": line + made.moved - 4, "module": "server", "offset": None,
                   "address": 0x400000 + line}]
                 for function, line in places],
                pa.list_(_FRAME),
            ),
        }
    )  # fmt: skip


def _samples(made: Made, draw: np.random.Generator, bases: dict[str, int]) -> pa.Table:
    rows = made.samples
    # One in ten is of one of two threads at its half of a cache line.
    shared = np.arange(rows) % 10 == 0
    thread = np.where(shared, 101 + np.arange(rows) // 10 % 2, draw.integers(100, 104, rows))
    address = np.where(
        shared,
        bases["table"] * 4096 + 128 + (thread - 101) * 32,
        bases["table"] * 4096 + 4096 + draw.integers(0, 1 << 22, rows) * 8 % (HOT * 4096 - 8192),
    )
    return pa.table(
        {
            "time_ns": (np.arange(rows) * (INTERVALS * INTERVAL_NS // max(rows, 1))).astype(np.uint64),
            "pid": np.full(rows, 100, np.uint32),
            "tid": thread.astype(np.uint32),
            "cpu": (thread % 2).astype(np.uint32),
            "ip": np.full(rows, 0x400100, np.uint64),
            "address": address.astype(np.uint64),
            "bytes": np.full(rows, 8, np.uint64),
            "write": pa.array(shared),
            "object": np.zeros(rows, np.uint64),
            "source": pa.array(["cpu-clock"] * rows, pa.string()).cast(_WORDS),
            "weight_ns": np.full(rows, 1_000_000, np.uint64),
            "site": pa.array(np.where(shared, 44, 43).astype(np.uint32)),
        }
    )
