"""From a store to relations: what is compacted, and facts of the traces that are not."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from varve._binary import VarveError
from varve._temporary import Folder
from varve.fleet._compact import Part, read_parts
from varve.fleet._engine import FACTS, Compacted, Engine, EngineError, Reader, Text, Traced, texts
from varve.fleet._print import plain
from varve.fleet._remote import why_unusable
from varve.fleet._store import DamagedError, Run, Selection, Skipped, Storage, read_runs

if TYPE_CHECKING:
    import pyarrow as pa


# Services that a hint names.
_NAMED = 20


@dataclass(frozen=True)
class Opened:
    """What of a store is selected."""

    parts: Sequence[Part]
    #: Ids of runs that the compacted store has.
    compacted: frozenset[str]
    runs: Sequence[Run]
    skipped: Sequence[Skipped]


def open_store(storage: Storage, selection: Selection, facts: Sequence[str], spool: Path) -> Opened:
    """Look what a store has. facts: those that are read. spool: a folder for copies of remote files."""
    found = storage.list(selection.service)
    parts, damaged = read_parts(storage, found, facts, spool)
    known: dict[str, Run] = {}
    for part in parts:
        for run in part.runs:
            if selection.takes(run.service, run.date):
                known.setdefault(run.id, run)
    if selection.service is not None and not found.traces and not known:
        _refuse(selection.service, {*storage.services(), *(run.service for part in parts for run in part.runs)})
    runs, skipped = read_runs(storage, found, selection, list(known.values()))
    return Opened(parts, frozenset(known), runs, [*damaged, *skipped])


def _refuse(service: str, there: set[str]) -> None:
    """Say which services a store has, where it has others than the one that was asked for."""
    if there and service not in there:
        order = sorted(there)
        rest = f" and {len(order) - _NAMED} more" if len(order) > _NAMED else ""
        raise VarveError(
            f"the store has no service {plain(service)}\nhint: it has {plain(', '.join(order[:_NAMED]))}{rest}"
        )


class Session:
    """Relations of selected runs on an engine."""

    def __init__(self, storage: Storage, engine: Engine, opened: Opened, facts: Iterable[str], spool: Path) -> None:
        """Make the facts. Traces that turn out to be damaged come to `skipped`."""
        self._engine = engine
        self._storage = storage
        self.skipped = list(opened.skipped)
        self.parts = opened.parts
        wanted = [fact for name, fact in texts("facts").items() if name in set(facts)]
        tables = sorted({table for fact in wanted for table in FACTS[fact.name].tables})
        rest = [run for run in opened.runs if run.id not in opened.compacted]
        if storage.remote and not storage.copies:
            traced = self._read(storage, rest, tables)
        else:
            traced = self._check(storage, rest, tables, spool)
        self.runs: list[Run] = []
        numbers: list[int] = []
        base = 0
        bases = []
        selected = {run.id for run in opened.runs}
        for part in opened.parts:
            bases.append(base)
            for number, run in enumerate(part.runs):
                if run.id in selected:
                    # It may be in another part too, of a compaction that ran beside.
                    selected.discard(run.id)
                    self.runs.append(run)
                    numbers.append(base + number)
            base += len(part.runs)
        traces = {
            run.id: (
                run,
                Traced(base + number, run.id, folder, frozenset(fact.name for fact in wanted if _able(run, fact))),
            )
            for number, (run, folder) in enumerate(traced)
        }
        self._add(wanted, tables, traces)
        self._traced = frozenset(traces)
        for run, trace in traces.values():
            self.runs.append(run)
            numbers.append(trace.run)
        engine.set_runs(_table(self.runs, numbers))
        for fact in wanted:
            files = [Compacted(part.files[fact.name], at) for part, at in zip(opened.parts, bases, strict=True)]
            engine.finish(fact, files)

    def _read(self, storage: Storage, runs: Sequence[Run], tables: Sequence[str]) -> list[tuple[Run, Path | None]]:
        """Have the engine read the tables. Gives the runs whose tables are not damaged."""
        assert isinstance(self._engine, Reader)
        objects = {
            run.id: {table: storage.object(run.folder, table, run.checksums[table]) for table in tables}
            for run in runs
            if run.folder is not None
        }
        wrong = self._engine.read(objects)
        self.skipped += [
            Skipped(run.folder, "damaged", wrong[run.id]) for run in runs if run.folder and run.id in wrong
        ]
        return [(run, None) for run in runs if run.id not in wrong]

    def _check(
        self, storage: Storage, runs: Sequence[Run], tables: Sequence[str], spool: Path
    ) -> list[tuple[Run, Path | None]]:
        def check(run: Run) -> Path | Skipped:
            assert run.folder is not None
            folder = storage.local(run.folder)
            if storage.copies:
                folder = spool / f"{run.id}.varve"
                folder.mkdir(exist_ok=True)
            try:
                for table in tables:
                    data = storage.checked(run.folder, table, run.checksums[table])
                    if storage.copies:
                        (folder / f"{table}.parquet").write_bytes(data)
            except DamagedError as error:
                return Skipped(run.folder, error.kind, str(error))
            return folder

        good: list[tuple[Run, Path | None]] = []
        for run, result in zip(runs, storage.each(check, runs), strict=True):
            if isinstance(result, Skipped):
                self.skipped.append(result)
            else:
                good.append((run, result))
        return good

    def _add(self, facts: Sequence[Text], tables: Sequence[str], traces: dict[str, tuple[Run, Traced]]) -> None:
        if not facts:
            return
        able = [trace for _, trace in traces.values()]
        size = self._engine.batch or max(len(able), 1)
        for at in range(0, max(len(able), 1), size):
            batch = able[at : at + size]
            while (bad := self._add_batch(facts, tables, batch)) is not None:
                for run_id, (kind, why) in bad.items():
                    folder = traces.pop(run_id)[0].folder
                    assert folder is not None
                    self.skipped.append(Skipped(folder, kind, why))
                batch = [trace for trace in batch if trace.id not in bad]

    def _add_batch(
        self, facts: Sequence[Text], tables: Sequence[str], batch: Sequence[Traced]
    ) -> dict[str, tuple[str, str]] | None:
        """Make facts of traces; or give those that are to be left out, with kind and reason, and make none."""
        try:
            wrong = self._engine.examine(tables, batch)
            bad = {run_id: ("damaged", why) for run_id, why in wrong.items()}
            if not bad:
                self._engine.add_traces(facts, batch)
                return None
        except EngineError:
            bad = {trace.id: why for trace in batch if trace.folder and (why := _unusable(trace.folder, tables))}
            if not bad:
                raise
        return bad

    @property
    def is_shared(self) -> bool:
        """Whether everybody may read all that the facts were made of."""
        folders = {run.folder for run in self.runs if run.id in self._traced}
        folders |= {part.path for part in self.parts}
        return bool(folders) and all(folder is not None and self._storage.is_shared(folder) for folder in folders)

    def confine(self, sql: str) -> None:
        """Let a query of somebody's own change nothing. Raises EngineError where it is not one that gives rows."""
        self._engine.confine(sql)

    def query(self, sql: str) -> "pa.Table":
        """Answer a query over ``runs`` and the facts."""
        return self._engine.query(sql)


def _able(run: Run, fact: Text) -> bool:
    needs = FACTS[fact.name]
    return needs.capabilities <= run.capabilities and (run.complete or not needs.complete)


class Spool:
    """A temporary folder for copies of remote files."""

    def __enter__(self) -> Path:
        self._folder = Folder("varve-fleet-")
        return self._folder.path

    def __exit__(self, *_: object) -> None:
        self._folder.remove()


def only(opened: Opened, runs: Sequence[Run]) -> Opened:
    """Give a part of what is selected, without what is compacted."""
    return replace(opened, parts=(), compacted=frozenset(), runs=runs)


def _table(runs: Sequence[Run], numbers: Sequence[int]) -> "pa.Table":
    import pyarrow as pa  # noqa: PLC0415

    words, signed = pa.string(), pa.int64()
    return pa.table(
        {
            "run": pa.array(numbers, signed),
            **{name: pa.array([getattr(run, name) for run in runs], words) for name in _TEXTS},
            **{name: pa.array([getattr(run, name) for run in runs], signed) for name in _NUMBERS},
            "complete": pa.array([run.complete for run in runs], pa.bool_()),
        }
    )


_TEXTS = ("id", "service", "build", "host", "date", "losses", "backend", "command", "kernel", "cpu")
_NUMBERS = ("start_unix_ns", "duration_ns", "exit_code")


def _unusable(folder: Path, tables: Sequence[str]) -> tuple[str, str] | None:
    """Say why a trace's tables cannot be used, with the kind; None where they can."""
    for table in tables:
        try:
            if why := why_unusable(folder / f"{table}.parquet", table):
                return "damaged", f"{table}.parquet {why}"
        except FileNotFoundError:
            if not folder.exists():
                return "removed", "it was removed while the store was read"
            return "damaged", f"{table}.parquet is missing"
    return None
