"""A store: what lies in it, and what of that can be used.

``service=S/build=B/host=H/date=YYYY-MM-DD/ID.varve/`` holds a trace, ``compact/NAME/`` facts of many (`_compact`).
"""

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from varve._binary import VarveError
from varve._trace import VERSION
from varve.fleet._remote import Object, Server, differs, said

if TYPE_CHECKING:
    import pyarrow.fs as pafs

#: Tables that facts are made of. A finished trace has all of them.
TABLES = ("intervals", "touches", "objects", "sites", "samples")
#: Bytes; more is no manifest.
MAX_MANIFEST = 16 << 20
_TRACE = re.compile(
    r"service=(?P<service>[^/]*)/build=(?P<build>[^/]*)/host=(?P<host>[^/]*)/date=(?P<date>[^/]*)/(?P<name>[^/]+)[.]varve"
)
ID = re.compile(r"[0-9a-f]{16}")
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_S3_THREADS = 16
_MAX_SIGNED = (1 << 63) - 1
#: Of moments, in nanoseconds: 9 years since the machine started.
MAX_MOMENT = 1 << 58
#: Of what is summed over traces: a thousand such sums are a number still.
MAX_SUM = 1 << 53
# Folders from a service's to a trace's.
_LEVELS = 5
_MAX_WORDS = 1000
_MAX_WORD = 200
_T = TypeVar("_T")
_R = TypeVar("_R")


def id_of(manifest: bytes) -> str:
    """Give the ID of the trace with this manifest."""
    return hashlib.sha256(manifest).hexdigest()[:16]


def encoded(name: str) -> str:
    """Give a name as a folder of a store has it. Raises ValueError where it is no text."""
    return quote(name, safe="").replace("~", "%7E")


@dataclass(frozen=True)
class Selection:
    """Which traces of a store are meant: UTC days, both inclusive, and one service."""

    since: date | None = None
    until: date | None = None
    service: str | None = None

    def takes(self, service: str, day: str) -> bool:
        """Whether a trace of this service and day is meant."""
        return (
            (self.service is None or service == self.service)
            and (self.since is None or day >= self.since.isoformat())
            and (self.until is None or day <= self.until.isoformat())
        )


@dataclass(frozen=True)
class Run:
    """A trace that can be used."""

    id: str
    #: Below the store; what is compacted may have no folder any more.
    folder: str | None
    service: str
    build: str
    host: str
    #: UTC, YYYY-MM-DD.
    date: str
    #: Wall clock, nanoseconds since 1970.
    start_unix_ns: int
    duration_ns: int
    complete: bool
    #: The loss counters that are not zero, with commas between them. They count different things.
    losses: str
    backend: str
    command: str
    exit_code: int | None
    kernel: str
    cpu: str
    capabilities: frozenset[str]
    #: Bytes and CRC-32 of each table.
    checksums: dict[str, tuple[int, int]] = field(hash=False, default_factory=dict)


@dataclass(frozen=True)
class Skipped:
    """A trace, or a part of the compacted store, that is not used, and why."""

    #: Below the store.
    path: str
    #: `half_written`, `unfinished`, `damaged`, `duplicate`, `future_version`, `other_clock`, `unreadable`, `removed`.
    kind: str
    why: str


@dataclass(frozen=True)
class Found:
    """The names in a store."""

    #: Folders of traces, and the sizes of their files.
    traces: dict[str, dict[str, int]]
    #: Folders of the compacted store, and the sizes of their files.
    compact: dict[str, dict[str, int]]
    #: What cannot be listed.
    skipped: Sequence[Skipped] = ()


class Storage:
    """A folder or a bucket. Raises VarveError where it cannot be read or written."""

    def __init__(self, place: str, *, tries: int = 3, copies: bool = True) -> None:
        """place: a folder, or ``s3://BUCKET`` or ``s3://BUCKET/PREFIX``. tries: as in `Server`.

        copies: whether files in S3 are copied here to be read; else workers read them.
        """
        self.place = place
        self.remote = place.startswith("s3://")
        self.copies = copies and self.remote
        self.server: Server | None = None
        self._fs: pafs.FileSystem | None = None
        if self.remote:
            self.root = place.removeprefix("s3://").rstrip("/")
            if not self.root.split("/", 1)[0]:
                raise VarveError(f"{place} names no bucket\nhint: write s3://BUCKET/PREFIX")
            self.server = _server(tries)
            self._fs = self.server.client()
        else:
            if "://" in place:
                raise VarveError(f"{place} is neither a folder nor in S3\nhint: write a path, or s3://BUCKET/PREFIX")
            try:
                self.root = str(Path(place).resolve())
                is_folder = bool(place) and Path(self.root).is_dir()
            except (OSError, ValueError, RuntimeError) as error:
                raise VarveError(f"{place} cannot be read: {error}") from error
            if not is_folder:
                what = f"there is no folder {place}" if place else "the name of the store is empty"
                raise VarveError(f"{what}\nhint: give the folder that `varve push --to` wrote, or s3://BUCKET/PREFIX")

    def local(self, path: str) -> Path:
        """Path of a file of a store that is a folder."""
        return Path(self.root) / path

    def list(self, service: str | None = None) -> Found:
        """Names and sizes of all files of traces and of the compacted store. Links are not followed."""
        traces: dict[str, dict[str, int]] = {}
        compact: dict[str, dict[str, int]] = {}
        skipped: dict[str, Skipped] = {}
        for path, size in self._files(service, skipped):
            folder, _, name = path.rpartition("/")
            found = compact if folder.startswith("compact/") else traces if _TRACE.fullmatch(folder) else None
            if found is None:
                continue
            if not is_text(folder):
                # Names become text of JSON and of pages.
                named = os.fsencode(folder).decode(errors="replace")
                skipped.setdefault(folder, Skipped(named, "damaged", "its name is no text"))
            elif is_text(name):
                found.setdefault(folder, {})[name] = size
        return Found(traces, compact, list(skipped.values()))

    def _files(self, service: str | None, skipped: dict[str, Skipped]) -> Iterator[tuple[str, int]]:
        wanted = None if service is None else f"service={encoded(service)}"
        if self._fs is None:
            try:
                with os.scandir(self.root) as entries:
                    tops = list(entries)
            except OSError as error:
                raise VarveError(f"{self.place} cannot be read: {error.strerror}{_CLOSED}") from error
            for entry in tops:
                if entry.name == "compact":
                    yield from _walk(entry, "", 2, skipped)
                elif entry.name.startswith("service=") and (
                    wanted is None or unquote(entry.name) == f"service={service}"
                ):
                    yield from _walk(entry, "", _LEVELS, skipped)
            return
        import pyarrow.fs as pafs  # noqa: PLC0415

        with self._named(self.place):
            for base in ("compact", wanted) if wanted else (None,):
                top = self.root if base is None else f"{self.root}/{base}"
                chosen = pafs.FileSelector(top, recursive=True, allow_not_found=base is not None)
                for info in self._fs.get_file_info(chosen):
                    if info.type == pafs.FileType.File:
                        yield info.path[len(self.root) + 1 :], info.size

    def services(self) -> set[str]:
        """Give the services that the store has traces of, beside those that are compacted."""
        if self._fs is None:
            names = [path.name for path in Path(self.root).iterdir()]
        else:
            import pyarrow.fs as pafs  # noqa: PLC0415

            with self._named(self.place):
                names = [info.base_name for info in self._fs.get_file_info(pafs.FileSelector(self.root))]
        return {unquote(name.removeprefix("service=")) for name in names if name.startswith("service=")}

    def read(self, path: str) -> bytes:
        """Give the bytes of a file."""
        if self._fs is None:
            handle = os.open(self.local(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(handle, "rb") as file:  # noqa: PTH123
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise OSError(f"{path} is no regular file")
                return file.read()
        with self._fs.open_input_stream(f"{self.root}/{path}") as stream:
            found: bytes = stream.read()
            return found

    def sizes(self, folder: str) -> dict[str, int]:
        """Give the names in a folder in S3, and their sizes."""
        import pyarrow.fs as pafs  # noqa: PLC0415

        assert self._fs is not None
        with self._named(f"{self.place}/{folder}"):
            found = self._fs.get_file_info(pafs.FileSelector(f"{self.root}/{folder}", allow_not_found=True))
            return {info.base_name: info.size for info in found if info.type == pafs.FileType.File}

    def etag(self, path: str) -> str:
        """Give the ETag of an object."""
        assert self._fs is not None
        with self._named(f"{self.place}/{path}"), self._fs.open_input_file(f"{self.root}/{path}") as file:
            return str(file.metadata().get("ETag", b""), "ascii", "replace").strip('"')

    def send(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write an object piece by piece. It appears when the last piece is written, or when they cannot be had."""
        assert self._fs is not None
        with self._named(f"{self.place}/{path}"), self._fs.open_output_stream(f"{self.root}/{path}") as stream:
            for piece in pieces:
                stream.write(piece)

    def is_shared(self, folder: str) -> bool:
        """Whether everybody may read a trace or a part; of S3 nobody here knows."""
        if self.remote:
            return False
        try:
            return stat.S_IMODE(self.local(folder).lstat().st_mode) & 0o005 == 0o005  # noqa: PLR2004
        except OSError:
            return False

    def write(self, path: str, content: Path | bytes, *, shared: bool = False) -> None:
        """Write a file, which appears whole or not at all. shared: whether others than its owner may read it."""
        with self._named(f"{self.place}/{path}"):
            data = content if isinstance(content, bytes) else content.read_bytes()
            if self._fs is not None:
                # An upload becomes an object when it is closed.
                with self._fs.open_output_stream(f"{self.root}/{path}") as stream:
                    stream.write(data)
                return
            target = self.local(path)
            target.parent.mkdir(mode=0o700, exist_ok=True)
            beside = target.with_name(target.name + ".new")
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(handle, 0o644 if shared else 0o600)
                os.fsync(handle)
            beside.rename(target)
            target.parent.chmod(0o755 if shared else 0o700)

    def each(self, work: Callable[[_T], _R], items: Iterable[_T]) -> Iterable[_R]:
        """Do work that waits for the storage, several at a time, results in order."""
        with ThreadPoolExecutor(_S3_THREADS if self.remote else 2) as pool:
            yield from pool.map(work, items)

    def checked(self, folder: str, table: str, checksum: tuple[int, int]) -> bytes:
        """Give the bytes of a table that are what the manifest says. Raises Damaged where they are not."""
        try:
            data = self.read(f"{folder}/{table}.parquet")
        except FileNotFoundError as error:
            raise self.missing(folder, f"{table}.parquet") from error
        except OSError as error:
            if self.remote:
                raise VarveError(self._said(f"{self.place}/{folder}/{table}.parquet", error)) from error
            raise _unread(f"{table}.parquet", error) from error
        if why := differs(data, *checksum):
            raise DamagedError(f"{table}.parquet {why}")
        return data

    def missing(self, folder: str, name: str) -> "DamagedError":
        """Say that a file is missing, or all of its trace: traces are removed while stores are read."""
        if not self.remote and not os.path.lexists(self.local(folder)):
            return DamagedError("it was removed while the store was read", "removed")
        return DamagedError(f"{name} is missing")

    def object(self, folder: str, table: str, checksum: tuple[int, int]) -> Object:
        """Give a table in S3, for workers that read it."""
        return Object(f"{self.root}/{folder}/{table}.parquet", *checksum)

    def manifest(self, path: str, size: int) -> tuple[Any, bytes]:
        """Give the JSON of a manifest, and its bytes. Raises Damaged where it is none."""
        if size > MAX_MANIFEST:
            raise DamagedError("the manifest is too large")
        try:
            content = self.read(path)
            return json.loads(content), content
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"the manifest is no JSON: {error}") from error
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise self.missing(path.rpartition("/")[0], "the manifest") from error
            if self.remote:
                raise VarveError(self._said(f"{self.place}/{path}", error)) from error
            raise _unread("the manifest", error) from error

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Name the place in errors of the storage."""
        try:
            yield
        # pyarrow calls names that no object may have invalid values.
        except (OSError, ValueError) as error:
            raise VarveError(self._said(what, error)) from error

    def _said(self, what: str, error: Exception) -> str:
        if self.server:
            return said(what, error, self.server.tries)
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        return f"{what} cannot be read or written: {why}{_CLOSED}"


_CLOSED = "\nhint: look who owns it and what may be done there, or run this as its owner"


class DamagedError(Exception):
    """Why a trace, or a part of the compacted store, cannot be used."""

    def __init__(self, why: str, kind: str = "damaged") -> None:
        """kind: as in `Skipped`."""
        super().__init__(why)
        self.kind = kind


def _server(tries: int) -> Server:
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    try:
        seconds = float(os.environ.get("VARVE_S3_TIMEOUT", "20"))
    except ValueError as error:
        raise VarveError("VARVE_S3_TIMEOUT is no number of seconds") from error
    return Server(region, endpoint, seconds, tries)


def _unread(name: str, error: OSError) -> DamagedError:
    kind = "unreadable" if isinstance(error, PermissionError) else "damaged"
    return DamagedError(f"{name} cannot be read: {error.strerror or error}", kind)


def is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _walk(entry: "os.DirEntry[str]", above: str, levels: int, skipped: dict[str, Skipped]) -> Iterator[tuple[str, int]]:
    """Give the files so many folders down: traces have none below."""
    path = f"{above}{entry.name}"
    children: list[os.DirEntry[str]] = []
    try:
        if entry.is_dir(follow_symlinks=False):
            if levels:
                with os.scandir(entry.path) as entries:
                    children = list(entries)
        elif entry.is_file(follow_symlinks=False):
            yield path, entry.stat(follow_symlinks=False).st_size
    except (FileNotFoundError, NotADirectoryError):
        # Traces are removed while stores are read.
        return
    except OSError as error:
        named = os.fsencode(path).decode(errors="replace")
        skipped[path] = Skipped(named, _unread("", error).kind, f"it cannot be read: {error.strerror}")
    for child in children:
        yield from _walk(child, f"{path}/", levels - 1, skipped)


def read_runs(
    storage: Storage, found: Found, selection: Selection, known: Sequence[Run]
) -> tuple[list[Run], list[Skipped]]:
    """Give the selected traces that can be used, in the order of their paths, and those that cannot.

    known: runs of the compacted store. Their manifests are not read again.
    """
    used = {run.id: run for run in known}
    skipped = [entry for entry in found.skipped if _may_be_meant(entry.path, selection)]
    seen: dict[str, str] = {}
    unread: list[tuple[str, re.Match[str]]] = []
    for folder in sorted(found.traces):
        parts = _TRACE.fullmatch(folder)
        assert parts is not None
        if not selection.takes(unquote(parts["service"]), parts["date"]):
            continue
        if why := _unusable(folder, parts, found.traces[folder], seen):
            skipped.append(why)
            continue
        seen[parts["name"]] = folder
        if parts["name"] not in used:
            unread.append((folder, parts))

    def read(item: tuple[str, re.Match[str]]) -> Run | Skipped:
        folder, parts = item
        try:
            return _run(storage, folder, parts, found.traces[folder])
        except DamagedError as error:
            return Skipped(folder, error.kind, str(error))

    for result in storage.each(read, unread):
        if isinstance(result, Run):
            used[result.id] = result
        else:
            skipped.append(result)
    order = sorted(used.values(), key=lambda run: (run.service, run.build, run.host, run.date, run.id))
    return order, skipped


def _may_be_meant(path: str, selection: Selection) -> bool:
    parts = _TRACE.fullmatch(path)
    return parts is None or selection.takes(unquote(parts["service"]), parts["date"])


def _unusable(folder: str, parts: re.Match[str], files: dict[str, int], seen: dict[str, str]) -> Skipped | None:
    if not ID.fullmatch(parts["name"]) or not DAY.fullmatch(parts["date"]):
        return Skipped(folder, "damaged", "its name is not that of a trace in a store")
    if "manifest.json" not in files:
        return Skipped(folder, "half_written", "it has no manifest")
    if parts["name"] in seen:
        return Skipped(folder, "duplicate", f"it is {seen[parts['name']]} again")
    return None


def _run(storage: Storage, folder: str, parts: re.Match[str], files: Mapping[str, int]) -> Run:
    manifest, content = storage.manifest(f"{folder}/manifest.json", files["manifest.json"])
    run = run_of(manifest, folder, parts.groupdict())
    # Else a folder with another name would be another run.
    if run.id != id_of(content):
        raise DamagedError(f"its name is not that of its manifest, {id_of(content)}: one of them was changed")
    for table, (size, _) in run.checksums.items():
        if f"{table}.parquet" not in files:
            raise storage.missing(folder, f"{table}.parquet")
        if files[f"{table}.parquet"] != size:
            raise DamagedError(f"{table}.parquet has {files[f'{table}.parquet']} bytes and not {size}")
    return run


def run_of(manifest: object, folder: str, parts: Mapping[str, str]) -> Run:
    """Give the run of a manifest. Raises DamagedError where readers cannot use it. parts: names of its folder."""
    if not isinstance(manifest, dict) or manifest.get("format") != "varve-trace":
        raise DamagedError("the manifest is not of a trace")
    version = manifest.get("version")
    if isinstance(version, int) and version > VERSION:
        raise DamagedError(
            f"it has version {version} of the format, and this package reads {VERSION}", "future_version"
        )
    if version != VERSION:
        raise DamagedError(f"it has the version {version!r}")
    if manifest.get("state") == "recording":
        raise DamagedError("it is being recorded, or its recorder was killed", "unfinished")
    try:
        clock, target, machine = manifest["clock"], manifest["target"], manifest["machine"]
        checksums = {
            table: (number(manifest["checksums"][table]["bytes"]), number(manifest["checksums"][table]["crc32"]))
            for table in TABLES
        }
        unit = clock["unit"]
        # Of other clocks nothing is summed.
        moment, most = (MAX_MOMENT, MAX_SUM) if unit == "nanoseconds" else (_MAX_SIGNED, _MAX_SIGNED)
        start, end = number(clock["start_ns"], moment), number(clock["end_ns"], moment)
        run = Run(
            id=parts["name"],
            folder=folder,
            service=unquote(parts["service"]),
            build=unquote(parts["build"]),
            host=unquote(parts["host"]),
            date=parts["date"],
            start_unix_ns=number(clock["start_unix_ns"]),
            duration_ns=number(end - start, most),
            complete=manifest["completeness"]["complete"] is True,
            losses=", ".join(
                sorted(_words(name) for name, count in manifest["losses"].items() if number(count, MAX_SUM))
            ),
            backend=_words(manifest["backend"]),
            command=" ".join(_words(word, _MAX_WORDS) for word in target["command"])[:_MAX_WORDS],
            exit_code=None if target["exit_code"] is None else number(target["exit_code"], 1 << 32, -1 << 31),
            kernel=_words(machine["kernel"]),
            cpu=_words(machine["cpu"]),
            capabilities=frozenset(_words(word) for word in manifest["capabilities"]),
            checksums=checksums,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"the manifest lacks what a reader needs: {_short(error)}") from error
    if unit != "nanoseconds":
        raise DamagedError("its times are no nanoseconds", "other_clock")
    return run


def number(value: object, highest: int = _MAX_SIGNED, lowest: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ValueError(f"{_short(value)} is no number that a recorder writes")
    return value


def _words(value: object, most: int = _MAX_WORD) -> str:
    if not isinstance(value, str) or not is_text(value):
        raise ValueError(f"{_short(value)} is a name that is no text")
    return value[:most]


def _short(value: object) -> str:
    return repr(value)[:_MAX_WORD]
