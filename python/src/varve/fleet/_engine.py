"""What an engine does: it makes facts of traces, and answers views over facts.

The texts of facts and views are the same for every engine (``sql/``). What differs is below them: how files become the
relations that facts read. Those are the tables of docs/trace-format.md, with ``run`` and with signed numbers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from varve._binary import VarveError
from varve.fleet._remote import Object

if TYPE_CHECKING:
    import pyarrow as pa

#: The version of facts and views.
VERSION = 1
_READS = re.compile(r"^-- reads: ([a-z_, ]+)$", re.MULTILINE)

#: Columns of the relations that facts read.
RELATIONS = {
    "intervals": {"run": "BIGINT", "interval_number": "BIGINT", "start_ns": "BIGINT", "end_ns": "BIGINT"},
    "touches": {
        "run": "BIGINT", "interval_number": "BIGINT", "pid": "BIGINT", "page": "BIGINT", "pages": "BIGINT",
        "source": "STRING",
    },
    "objects": {
        "run": "BIGINT", "object": "BIGINT", "pid": "BIGINT", "kind": "STRING", "name": "STRING", "symbol": "STRING",
        "place": "STRING", "layer": "BIGINT", "address": "BIGINT", "bytes": "BIGINT", "born_ns": "BIGINT",
        "died_ns": "BIGINT",
    },
    "samples": {
        "run": "BIGINT", "time_ns": "BIGINT", "pid": "BIGINT", "tid": "BIGINT", "address": "BIGINT",
        "bytes": "BIGINT", "is_write": "BOOLEAN", "object": "BIGINT", "weight_ns": "BIGINT", "code": "STRING",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """A relation that is made of traces."""

    name: str
    #: Tables of the trace that it needs.
    tables: tuple[str, ...]
    #: What a trace must have: without it nothing can be said.
    capabilities: frozenset[str]
    #: Whether traces with losses are left out.
    complete: bool
    #: How it is sorted where it is compacted.
    order: tuple[str, ...]


#: Working sets of incomplete traces are lower bounds; what was never touched is known of complete traces only.
FACTS = {
    fact.name: fact
    for fact in (
        Fact("run_working_sets", ("intervals", "touches"), frozenset({"touches", "superset"}), False, ("run", "pages")),  # noqa: FBT003
        Fact(
            "run_sites",
            ("intervals", "touches", "objects", "sites"),
            frozenset({"touches", "superset", "places", "lives"}),
            True,  # noqa: FBT003
            ("kind", "symbol", "place", "run"),
        ),
        Fact(
            "run_coverage",
            ("intervals", "touches", "objects", "sites"),
            frozenset({"touches", "superset", "places", "lives"}),
            True,  # noqa: FBT003
            ("run",),
        ),
        Fact(
            "run_lines",
            ("samples", "objects", "sites"),
            frozenset({"samples", "places", "lives"}),
            False,  # noqa: FBT003
            ("kind", "symbol", "place", "offset_bytes", "run"),
        ),
    )
}


@dataclass(frozen=True)
class Text:
    """A fact or a view."""

    name: str
    #: Its query, one statement.
    sql: str
    #: Relations that it reads.
    reads: tuple[str, ...]
    #: What it says, one sentence.
    title: str


def texts(kind: str) -> dict[str, Text]:
    """Give the steps to facts (``steps``), the facts (``facts``) or the views (``views``) of this version, by name."""
    folder = resources.files("varve.fleet") / "sql" / f"v{VERSION}" / kind
    found = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        sql = file.read_text(encoding="utf-8")
        reads = _READS.search(sql)
        assert reads is not None, file.name
        name = file.name.removesuffix(".sql")
        title = sql.splitlines()[0].split(": ", 1)[1]
        found[name] = Text(name, sql, tuple(reads[1].split(", ")), title)
    return found


@dataclass(frozen=True)
class Traced:
    """A trace of which facts are to be made."""

    #: Its number in ``runs``.
    run: int
    id: str
    #: The folder of its tables; None: they are in S3, and a `Reader` has them.
    folder: Path | None
    #: Facts that can be made of it.
    facts: frozenset[str]


@dataclass(frozen=True)
class Compacted:
    """A file of the compacted store."""

    file: Path | Object
    #: What is added to its run numbers.
    base: int


@dataclass(frozen=True)
class Plan:
    """What facts are made from."""

    #: Steps in the order in which they can be made.
    steps: Sequence[Text]
    #: Steps that several others or facts read: what they give is kept, or it would be made several times.
    kept: frozenset[str]
    #: Relations of traces.
    relations: Sequence[str]


def plan_of(facts: Sequence[Text]) -> Plan:
    """Give the steps and the relations of traces that facts are made from."""
    known = texts("steps")
    steps: dict[str, Text] = {}

    def take(reads: Sequence[str]) -> None:
        for name in sorted(set(reads) & set(known) - set(steps)):
            take(known[name].reads)
            steps[name] = known[name]

    take([name for fact in facts for name in fact.reads])
    readers = [set(text.reads) for text in (*steps.values(), *facts)]
    kept = frozenset(name for name in steps if sum(name in reads for reads in readers) > 1)
    return Plan(list(steps.values()), kept, sorted({name for reads in readers for name in reads} & set(RELATIONS)))


class Engine(Protocol):
    """Makes facts and answers views."""

    name: str
    #: How many traces it is given at a time; None: all.
    batch: int | None

    def set_runs(self, runs: "pa.Table") -> None:
        """Make the relation ``runs``."""

    def examine(self, tables: Sequence[str], traces: Sequence[Traced]) -> dict[str, str]:
        """Give the traces, by id, whose tables cannot be true, and why. Raises EngineError where one cannot be read."""

    def add_traces(self, facts: Sequence[Text], traces: Sequence[Traced]) -> None:
        """Make facts of traces: all of them, or none. Raises EngineError where a trace cannot be read."""

    def finish(self, fact: Text, compacted: Sequence[Compacted]) -> None:
        """Make the relation of a fact: what was added, and what is compacted, of the runs in ``runs``."""

    def confine(self, sql: str) -> None:
        """Let a query of somebody's own change nothing. Raises EngineError where it is not one that gives rows."""

    def query(self, sql: str) -> "pa.Table":
        """Answer a query over ``runs`` and facts. Raises EngineError."""

    def close(self) -> None:
        """End what was started."""


@runtime_checkable
class Reader(Protocol):
    """An engine whose workers read S3 themselves."""

    def read(self, traces: Mapping[str, Mapping[str, Object]]) -> dict[str, str]:
        """Read tables of traces, by their ids, to make facts of. Gives what is damaged, by id, and why."""


class EngineError(VarveError):
    """What an engine says of a query or a file."""
