"""A trace, and what it says."""

import json
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from varve._binary import VarveError, run

# Programs that only name their phases import neither.
if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: The format of traces that this package reads.
VERSION = 1
#: Tables of finished traces (docs/trace-format.md). A trace lacks those of which it has no rows.
TABLES = (
    "intervals", "touches", "faults", "samples", "counts", "objects", "sites", "symbols", "mappings", "threads",
    "processes", "counters", "losses", "operations", "operation_times", "operation_charges", "heap_memory",
    "sampled_blocks", "heap_pages", "sparse_pages", "shared_lines", "block_choices", "marks",
)  # fmt: skip
# More is no manifest.
_MAX_MANIFEST = 64 << 20
_PIECE = 1 << 20


class Heatmap:
    """A picture of time and addresses. A notebook draws it."""

    def __init__(self, png: bytes) -> None:
        """See `Trace.heatmap`, which makes one."""
        #: The picture.
        self.png = png

    def _repr_png_(self) -> bytes:
        return self.png

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file."""
        Path(path).write_bytes(self.png)


class Trace:
    """A trace: tables as lazy relations of DuckDB, and the figures of the report.

    A relation becomes Arrow with ``.to_arrow_table()``, pandas with ``.df()``, Polars with ``.pl()``.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, holds: "tempfile.TemporaryDirectory[str] | None" = None
    ) -> None:
        """See `open`. holds: a temporary folder that goes when this is closed."""
        import duckdb  # noqa: PLC0415

        self.folder = Path(folder)
        self._holds = holds
        #: What the trace says of itself.
        self.manifest = _manifest(self.folder)
        self._duckdb = duckdb.connect(":memory:")
        self._reports: dict[tuple[str, ...], Mapping[str, Any]] = {}
        self._error = duckdb.Error
        self._tables = _files(self.folder, self.manifest)
        for table, file in self._tables.items():
            try:
                self._duckdb.execute(f"CREATE VIEW {table} AS FROM {parquet(file)}")
            except (duckdb.Error, UnicodeEncodeError) as error:
                raise VarveError(f"{file} cannot be read: {error}") from error

    def __repr__(self) -> str:
        """Name the trace and its program."""
        target = self.manifest.get("target")
        words = target.get("command") if isinstance(target, dict) else None
        command = " ".join(str(word) for word in words) if isinstance(words, list) else str(words or "")
        return f"<varve.Trace {str(self.folder)!r} of {command!r}>"

    def __enter__(self) -> Self:
        """Close at the end of the ``with``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Give back what DuckDB holds. A trace in a temporary folder is removed."""
        self._duckdb.close()
        if self._holds is not None:
            self._holds.cleanup()

    @property
    def tables(self) -> list[str]:
        """The tables that this trace has."""
        return list(self._tables)

    def table(self, name: str) -> "duckdb.DuckDBPyRelation":
        """Give a table, as the trace has it."""
        if name not in self._tables:
            what = "no table of a trace" if name not in TABLES else "not in this trace, which has no rows of it"
            raise VarveError(f"`{name}` is {what}\nhint: it has {', '.join(self._tables)}")
        return self._duckdb.table(name)

    @property
    def intervals(self) -> "duckdb.DuckDBPyRelation":
        """The intervals of the recording."""
        return self.table("intervals")

    @property
    def touches(self) -> "duckdb.DuckDBPyRelation":
        """Runs of touched pages, by interval; also those that only others may have touched (``source``)."""
        return self.table("touches")

    @property
    def objects(self) -> "duckdb.DuckDBPyRelation":
        """Lives of objects."""
        return self.table("objects")

    @property
    def samples(self) -> "duckdb.DuckDBPyRelation":
        """Sampled accesses."""
        return self.table("samples")

    @property
    def sites(self) -> "duckdb.DuckDBPyRelation":
        """Call stacks."""
        return self.table("sites")

    @property
    def processes(self) -> "duckdb.DuckDBPyRelation":
        """Processes."""
        return self.table("processes")

    @property
    def threads(self) -> "duckdb.DuckDBPyRelation":
        """Threads."""
        return self.table("threads")

    @property
    def marks(self) -> "duckdb.DuckDBPyRelation":
        """Phases and events that the program named."""
        return self.table("marks")

    def sql(self, query: str, parameters: Sequence[object] = ()) -> "duckdb.DuckDBPyRelation":
        """Ask in SQL: tables have their names. Raises VarveError where the query is none."""
        try:
            return self._duckdb.sql(query, params=list(parameters))
        except self._error as error:
            raise VarveError(f"DuckDB: {error}\nhint: the trace has the tables {', '.join(self._tables)}") from error

    def report(self, *, phase: str | None = None, options: Sequence[str] = ()) -> Mapping[str, Any]:
        """Give what ``varve report --json`` says (docs/report-json.md): all of it, or of one phase.

        options: more of ``varve report``'s, such as ``["--object", "grid*"]``. The trace is read once for each choice.
        """
        chosen = tuple(_options(options, phase=phase))
        if chosen not in self._reports:
            done = run(["report", str(self.folder), "--json", *chosen])
            self._reports[chosen] = json.loads(done.stdout)
        return self._reports[chosen]

    @property
    def footprint(self) -> Mapping[str, Any]:
        """Figures of the whole run: ``touched_pages``, ``peak_working_set_pages`` and so on."""
        found: Mapping[str, Any] = self.report()["footprint"]
        return found

    @property
    def findings(self) -> Sequence[Mapping[str, Any]]:
        """What stands out, with advice."""
        found: Sequence[Mapping[str, Any]] = self.report()["findings"]
        return found

    def figures(self, name: str, *, phase: str | None = None) -> "duckdb.DuckDBPyRelation":
        """Give a list of the report, such as ``objects`` or ``groups``, as a relation: a column for each field."""
        import pyarrow as pa  # noqa: PLC0415

        rows = self.report(phase=phase).get(name)
        if not isinstance(rows, list):
            raise VarveError(f"the report has no list `{name}`")
        if not rows:
            raise VarveError(f"the report's list `{name}` is empty")
        # Not each row has every field.
        fields = dict.fromkeys(field for row in rows for field in row)
        columns = {field: _column([row.get(field) for row in rows]) for field in fields}
        return self._duckdb.from_arrow(pa.table(columns))

    def working_set(self, *, phase: str | None = None) -> "duckdb.DuckDBPyRelation":
        """Give for each interval ``start_ns``, ``end_ns``, ``pages`` touched, ``resident_pages``."""
        return self.figures("working_set", phase=phase)

    def heatmap(self, *, phase: str | None = None, object: str | None = None, options: Sequence[str] = ()) -> Heatmap:  # noqa: A002
        """Draw time and addresses, of all or of a phase or object. A notebook shows the result."""
        with tempfile.TemporaryDirectory(prefix="varve-") as folder:
            picture = Path(folder) / "map.png"
            chosen = _options(options, phase=phase, object=object)
            run(["report", str(self.folder), "--png", str(picture), *chosen])
            return Heatmap(picture.read_bytes())

    def _repr_png_(self) -> bytes:
        return self.heatmap().png


def open(folder: str | os.PathLike[str]) -> Trace:
    """Open a trace, which nothing changes. Raises VarveError where it is none, or damaged."""
    return Trace(folder)


def _column(values: list[Any]) -> "pa.Array":
    import pyarrow as pa  # noqa: PLC0415

    try:
        return pa.array(values)
    except OverflowError:
        # Addresses of the kernel's half.
        return pa.array(values, type=pa.uint64())


def parquet(*files: Path) -> str:
    """Give what DuckDB reads these files by, as they are: no name is a pattern, or has a column."""
    names = (re.sub(r"([*?[])", r"[\1]", str(file)).replace("'", "''") for file in files)
    listed = ", ".join(f"'{name}'" for name in names)
    return f"read_parquet([{listed}], hive_partitioning = false)"


def _options(options: Sequence[str], *, phase: str | None = None, object: str | None = None) -> list[str]:  # noqa: A002
    chosen = [*options]
    if phase is not None:
        chosen += ["--phase", phase]
    if object is not None:
        chosen += ["--object", object]
    return chosen


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        with _opened(path) as file:
            content = file.read(_MAX_MANIFEST + 1)
        if len(content) > _MAX_MANIFEST:
            raise VarveError(f"{path} is too large")
        manifest = json.loads(content)
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = "hint: give the folder that `varve record` wrote, such as NAME.varve"
        raise VarveError(f"{folder} is no trace: it has no manifest.json\n{hint}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise VarveError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != "varve-trace":
        raise VarveError(f"{path} is not of a trace")
    if manifest.get("version") != VERSION:
        raise VarveError(
            f"{folder} has version {manifest.get('version')} of the format, and this package reads {VERSION}"
        )
    if manifest.get("state") == "recording":
        hint = "hint: if its recorder was killed, `varve report` reads what was written"
        raise VarveError(f"{folder} is being recorded, or its recorder was killed\n{hint}")
    return manifest


def _files(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Path]:
    """Give the files of the tables. Each is the one that was recorded: another would give other figures unseen."""
    sums = manifest.get("checksums")
    if not isinstance(sums, dict):
        raise VarveError(f"{folder} is damaged: its manifest has no checksums")
    files = {}
    for table in TABLES:
        path = folder / f"{table}.parquet"
        if table in sums:
            try:
                _check(path, sums[table])
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) and error.strerror else error
                hint = "hint: if the folder is a copy, copy it again; else record again"
                raise VarveError(f"the table {path} is damaged: {why}\n{hint}") from error
            files[table] = path
        elif os.path.lexists(path):
            raise VarveError(f"{folder} is damaged: its manifest does not name {path.name}")
    return files


def _check(path: Path, wanted: object) -> None:
    size, crc = 0, 0
    with _opened(path) as file:
        while piece := file.read(_PIECE):
            size, crc = size + len(piece), zlib.crc32(piece, crc)
    if wanted != {"bytes": size, "crc32": crc}:
        raise ValueError("it is not what was written: its length or its checksum differs")


def _opened(path: Path) -> BinaryIO:
    """Open a regular file; a link is followed to none, and nobody waits for a FIFO."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is not a regular file")
    return os.fdopen(handle, "rb")
