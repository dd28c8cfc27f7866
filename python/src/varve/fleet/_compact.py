"""The compacted store: facts of many runs in few files.

``compact/NAME/`` has ``runs.parquet``, a file of each fact, sorted by service, build and site, and ``compact.json``,
which is written last: a folder without it is no part of the store. Its name comes from the ids of its runs, so that a
compaction that was killed writes the same again. Nothing of the traces is changed or removed.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from varve._binary import VarveError
from varve.fleet._engine import FACTS, VERSION
from varve.fleet._remote import Object
from varve.fleet._store import DAY, ID, MAX_SUM, DamagedError, Found, Run, Skipped, Storage, is_text, number

if TYPE_CHECKING:
    import pyarrow as pa

    from varve.fleet._session import Session

FORMAT = "varve-fleet-compact"
_NAME = re.compile(r"v[0-9]+-[0-9a-f]{16}")
_ROW_GROUP = 1 << 16
_RUN_FIELDS = (
    "id", "folder", "service", "build", "host", "date", "start_unix_ns", "duration_ns", "complete", "losses", "backend",
    "command", "exit_code", "kernel", "cpu",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A folder of the compacted store."""

    path: str
    #: Runs in the order of their numbers in the files.
    runs: Sequence[Run]
    #: Files of the facts that were asked for, by name.
    files: dict[str, Path | Object]


def read_parts(storage: Storage, found: Found, facts: Sequence[str], spool: Path) -> tuple[list[Part], list[Skipped]]:
    """Give the parts of the compacted store with files of these facts, and those that cannot be used."""
    parts: list[Part] = []
    skipped: list[Skipped] = []
    whole = [folder for folder in sorted(found.compact) if "compact.json" in found.compact[folder]]
    for folder in whole:
        try:
            parts.append(_part(storage, folder, found.compact[folder], facts, spool))
        except DamagedError as error:
            skipped.append(Skipped(folder, error.kind, str(error)))
    return parts, skipped


def _part(storage: Storage, folder: str, sizes: dict[str, int], facts: Sequence[str], spool: Path) -> Part:
    import pyarrow as pa  # noqa: PLC0415

    manifest, _ = storage.manifest(f"{folder}/compact.json", sizes["compact.json"])
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DamagedError("compact.json is not of a compacted store")
    if manifest.get("version") != VERSION:
        raise DamagedError(
            f"its facts have version {manifest.get('version')}, and this package reads {VERSION}", "future_version"
        )
    files: dict[str, Path | Object] = {}
    try:
        sums = {name: _sum(manifest["files"][name]) for name in ("runs", *FACTS)}
        for name in FACTS:
            if sizes.get(f"{name}.parquet") != sums[name][0]:
                raise DamagedError(f"{name}.parquet is missing or has another length")
        runs = _runs(storage.checked(folder, "runs", sums["runs"]))
        if len(runs) != number(manifest["runs"]):
            raise DamagedError(f"runs.parquet has {len(runs)} runs, and compact.json says {manifest['runs']}")
        for name in facts:
            data = storage.checked(folder, name, sums[name])
            _check_fact(name, data, len(runs))
            if storage.copies:
                path = spool / folder.replace("/", "-") / f"{name}.parquet"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data)
                files[name] = path
            elif storage.remote:
                files[name] = storage.object(folder, name, sums[name])
            else:
                files[name] = storage.local(f"{folder}/{name}.parquet")
    except (KeyError, TypeError, ValueError, AttributeError, OSError, pa.ArrowException) as error:
        raise DamagedError(f"it cannot be read: {str(error)[:200] or repr(error)}") from error
    return Part(folder, runs, files)


def _sum(said: dict[str, object]) -> tuple[int, int]:
    return number(said["bytes"]), number(said["crc32"])


def _runs(data: bytes) -> list[Run]:
    """Give the runs of a part, each of which is one that a compaction writes."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    about = pq.read_table(pa.BufferReader(data))
    runs = []
    for row in about.select([*_RUN_FIELDS, "capabilities"]).to_pylist():
        for name in _RUN_FIELDS:
            value = row[name]
            if name == "complete":
                continue
            if _kind(name) == pa.string() and not (value is None and name == "folder"):
                if not isinstance(value, str) or not is_text(value):
                    raise ValueError(f"a run's {name} is no text")
            elif name in ("duration_ns", "losses", "start_unix_ns"):
                number(value, MAX_SUM if name != "start_unix_ns" else (1 << 63) - 1)
        if not isinstance(row["complete"], bool) or not isinstance(row["exit_code"], int | None):
            raise TypeError("a run's `complete` or `exit_code` has another type")
        if not ID.fullmatch(row["id"]) or not DAY.fullmatch(row["date"]):
            raise ValueError("a run's id or date is none")
        runs.append(Run(**{**row, "capabilities": frozenset(row["capabilities"].split())}))
    if len({run.id for run in runs}) < len(runs):
        raise ValueError("it has a run twice")
    return runs


def _check_fact(name: str, data: bytes, runs: int) -> None:
    """Raise where a file of facts cannot be read, or has rows that no compaction writes."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    from varve.fleet._duckdb import fact_columns  # noqa: PLC0415

    columns = fact_columns()[name]
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        for column, kind in columns.items():
            found = file.schema_arrow.field(column).type
            if not (pa.types.is_integer(found) if kind == "BIGINT" else pa.types.is_string(found)):
                raise DamagedError(f"{name}.parquet has another type of {column}: {found}")
        for batch in file.iter_batches(columns=list(columns)):
            batch.validate(full=True)
            if batch["run"].null_count:
                raise DamagedError(f"{name}.parquet has a row of no run")
            for column, kind in columns.items():
                # Samples may be of any address.
                if kind != "BIGINT" or column == "offset_bytes":
                    continue
                found = pc.min_max(batch[column]).as_py()
                highest = runs - 1 if column == "run" else MAX_SUM
                if found["min"] is not None and not 0 <= found["min"] <= found["max"] <= highest:
                    raise DamagedError(f"{name}.parquet has an impossible value of {column}")


def name_of(runs: Sequence[Run]) -> str:
    """Name the part of these runs."""
    ids = "\n".join(sorted(run.id for run in runs))
    return f"v{VERSION}-{hashlib.sha256(ids.encode()).hexdigest()[:16]}"


def write_part(storage: Storage, session: "Session", spool: Path) -> str:
    """Write the facts of a session's runs. Gives the name of the part."""
    import pyarrow as pa  # noqa: PLC0415

    runs = session.runs
    shared = session.is_shared
    folder = f"compact/{name_of(runs)}"
    columns = {name: [getattr(run, name) for run in runs] for name in _RUN_FIELDS}
    about = pa.table(
        {
            **{
                name: pa.array(values, pa.bool_() if name == "complete" else _kind(name))
                for name, values in columns.items()
            },
            "capabilities": pa.array([" ".join(sorted(run.capabilities)) for run in runs], pa.string()),
        }
    )
    files = {"runs": _write(storage, folder, "runs", about, spool, shared=shared)}
    for fact in FACTS.values():
        order = ", ".join(f"f.{column}" for column in fact.order)
        table = session.query(
            f"SELECT r.service, r.build, f.* FROM {fact.name} AS f JOIN runs AS r ON r.run = f.run "
            f"ORDER BY r.service, r.build, {order}"
        )
        files[fact.name] = _write(storage, folder, fact.name, table, spool, shared=shared)
    manifest = {"format": FORMAT, "version": VERSION, "runs": len(runs), "files": files}
    storage.write(f"{folder}/compact.json", json.dumps(manifest, indent=1).encode(), shared=shared)
    return folder


def _kind(name: str) -> "pa.DataType":
    import pyarrow as pa  # noqa: PLC0415

    return pa.int64() if name in ("start_unix_ns", "duration_ns", "exit_code") else pa.string()


def _write(  # noqa: PLR0913
    storage: Storage, folder: str, name: str, table: "pa.Table", spool: Path, *, shared: bool
) -> dict[str, int]:
    import pyarrow.parquet as pq  # noqa: PLC0415

    beside = spool / f"{name}.parquet"
    pq.write_table(table, beside, compression="zstd", row_group_size=_ROW_GROUP)
    data = beside.read_bytes()
    storage.write(f"{folder}/{name}.parquet", data, shared=shared)
    beside.unlink()
    return {"bytes": len(data), "crc32": zlib.crc32(data)}


@contextlib.contextmanager
def locked(storage: Storage) -> Iterator[None]:
    """Hold the compacted store of a folder alone, and remove what a killed compaction left.

    In S3 nobody can: two compactions may write the same runs, which readers count once.
    """
    if storage.remote:
        yield
        return
    folder = storage.local("compact")
    try:
        folder.mkdir(exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        hint = "hint: a compaction writes into the store: run it as the store's owner"
        raise VarveError(f"{folder} cannot be written: {error.strerror}\n{hint}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise VarveError(f"{storage.place} is being compacted by another process\nhint: wait for it") from error
        _remove_left(handle)
        yield
    finally:
        os.close(handle)


def _remove_left(compact: int) -> None:
    """Remove parts that a killed compaction has not ended: folders of its names with nothing but its files."""
    own = {f"{name}.parquet{end}" for name in ("runs", *FACTS) for end in ("", ".new")} | {"compact.json.new"}
    for name in os.listdir(compact):
        if not _NAME.fullmatch(name) or not stat.S_ISDIR(os.lstat(name, dir_fd=compact).st_mode):
            continue
        try:
            part = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=compact)
        except PermissionError:
            # Somebody else's: readers name it.
            continue
        try:
            files = os.listdir(part)  # noqa: PTH208 a descriptor
            if own.issuperset(files):
                for file in files:
                    os.unlink(file, dir_fd=part)
                os.rmdir(name, dir_fd=compact)
        finally:
            os.close(part)
