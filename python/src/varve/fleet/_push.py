"""Puts traces into a store in S3, as `varve push` does into one that is a folder.

Tables come first and the manifest last: a reader takes a trace without one for half-written. A table's last bytes are
sent when all of it has turned out to be what the manifest says, so that an object of the right length was whole when
it was sent.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from varve._binary import VarveError
from varve._trace import TABLES
from varve.fleet._print import plain
from varve.fleet._store import MAX_MANIFEST, DamagedError, Storage, encoded, id_of, run_of
from varve.fleet._store import TABLES as NEEDED

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "manifest.json"
#: How often a request is made that fails for a reason that may pass: pauses take half a minute at most.
TRIES = 6
_UNKNOWN = "unknown"
_PIECE = 1 << 20
# The ETag of an object that was sent as one request, unless the server encrypts it with a key of its own.
_MD5 = re.compile(r"[0-9a-f]{32}")
# OpenTelemetry's htlhash (semantic conventions, process.executable.build_id.htlhash).
_HASHED = 4096
#: No name is longer in a store: with what stands before it, it is one of a file system's, which take 255 bytes.
MAX_NAME = 200
# A name that was shortened has so many digits of its hash.
_DIGITS = 16
_COPY = "\nhint: if the folder is a copy, copy it again; else record again"
_NAMED = "\nhint: give the folder that `varve record` wrote, such as NAME.varve"


@dataclass(frozen=True)
class Names:
    """What a trace is called in the store; None: what it says itself."""

    service: str | None = None
    build: str | None = None
    host: str | None = None


class UnfitError(Exception):
    """Why a trace is not put into a store."""


@dataclass(frozen=True)
class _Table:
    """A table of a trace, open for reading."""

    name: str
    #: Of the trace and of this file, for messages.
    path: str
    file: BinaryIO
    size: int
    crc32: int

    def pieces(self) -> Iterator[bytes]:
        """Give its bytes, the last of them when all are known to be right."""
        self.file.seek(0)
        rest, crc = self.size, 0
        while True:
            piece = self._read(min(rest, _PIECE))
            crc, rest = zlib.crc32(piece, crc), rest - len(piece)
            if rest and not piece:
                raise _damaged(self.path, f"it has {self.size - rest} bytes, and had {self.size} when it was written")
            if not rest and self._read(1):
                raise _damaged(self.path, f"it has more than the {self.size} bytes that it had when it was written")
            if not rest and crc != self.crc32:
                raise _damaged(self.path, "its content is not what was written: its checksum differs")
            yield piece
            if not rest:
                return

    def _read(self, size: int) -> bytes:
        try:
            return self.file.read(size)
        except OSError as error:
            raise UnfitError(f"cannot read {self.path}: {error.strerror}") from error

    def md5(self) -> str:
        """Give the MD5 of its bytes."""
        found = hashlib.md5(usedforsecurity=False)
        for piece in self.pieces():
            found.update(piece)
        return found.hexdigest()

    def rows(self) -> "pa.Table":
        """Give its rows."""
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        try:
            return pq.read_table(pa.BufferReader(b"".join(self.pieces())))
        except (OSError, pa.ArrowException) as error:
            raise _damaged(self.path, error) from error


@dataclass(frozen=True)
class _Trace:
    """A trace that was checked."""

    path: str
    content: bytes
    #: The user whom it belongs to.
    owner: int
    #: Its program's command line, and its number.
    command: Sequence[str]
    pid: int
    start_unix_ns: int
    tables: Mapping[str, _Table]

    @property
    def id(self) -> str:
        """Give the same for the same trace."""
        return id_of(self.content)


def push(traces: Sequence[str], storage: Storage, names: Names) -> int:
    """Put traces into a store in S3. Gives the exit code: 0 where all are in it, else 1."""
    unfit = 0
    for at, path in enumerate(traces):
        try:
            _say("varve", _push(path, storage, names))
        except UnfitError as error:
            unfit += 1
            _say("error", str(error))
        except VarveError as error:
            # The server was asked often enough: the next trace would only wait as long again.
            _say("error", str(error))
            if rest := len(traces) - at - 1:
                _say("varve", f"{rest} more {'trace was' if rest == 1 else 'traces were'} not tried")
            return 1
    return 1 if unfit else 0


def _say(word: str, text: str) -> None:
    what, _, hint = text.partition("\nhint: ")
    print(f"{word}: {plain(what)}", file=sys.stderr)
    if hint:
        print(f"hint: {plain(hint)}", file=sys.stderr)


def _push(path: str, storage: Storage, names: Names) -> str:
    with _opened(path) as trace:
        for table in trace.tables.values():
            for _ in table.pieces():
                pass
        try:
            place = f"{_place(trace, names)}/{trace.id}.varve"
        except UnicodeEncodeError as error:
            raise _damaged(f"{path}/{MANIFEST}", "it has a name that is no text", "manifest") from error
        there = storage.sizes(place)
        wanted = {f"{table.name}.parquet": table.size for table in trace.tables.values()}
        wanted[MANIFEST] = len(trace.content)
        url = f"s3://{storage.root}/{place}"
        if all(there.get(name) == size for name, size in wanted.items()):
            return f"{path} is there already: {url}"

        def send(table: _Table) -> bool:
            name = f"{place}/{table.name}.parquet"
            if there.get(f"{table.name}.parquet") == table.size:
                tag = storage.etag(name)
                if not _MD5.fullmatch(tag) or tag == table.md5():
                    return False
            storage.send(name, table.pieces())
            return True

        sent = sum(storage.each(send, trace.tables.values()))
        storage.write(f"{place}/{MANIFEST}", trace.content)
        before = len(trace.tables) - sent
        return f"pushed {path} to {url}" + (f"; {before} of its tables were there" if before else "")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[_Trace]:
    """Open a trace and all of its tables: what vanishes afterwards is sent all the same."""
    with contextlib.ExitStack() as stack:
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except NotADirectoryError as error:
            raise UnfitError(f"{path} is not a Varve trace: it has no manifest.json{_NAMED}") from error
        except OSError as error:
            hint = _NAMED if isinstance(error, FileNotFoundError) else ""
            raise UnfitError(f"cannot open {path}: {error.strerror}{hint}") from error
        stack.callback(os.close, folder)
        content = _content(folder, path, stack)
        whole = f"{path}/{MANIFEST}"
        try:
            manifest = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _damaged(whole, error, "manifest") from error
        sums = _checked(manifest, path)
        assert isinstance(manifest, dict)
        tables = {}
        for name, (size, crc) in sums.items():
            where = f"{path}/{name}.parquet"
            try:
                file = stack.enter_context(_file(folder, f"{name}.parquet"))
            except FileNotFoundError as error:
                raise _damaged(where, "it is missing") from error
            except OSError as error:
                raise _damaged(where, error.strerror or error) from error
            tables[name] = _Table(name, where, file, size, crc)
        target = manifest["target"]
        start = manifest["clock"]["start_unix_ns"]
        yield _Trace(path, content, os.fstat(folder).st_uid, target["command"], target["pid"], start, tables)


def _content(folder: int, path: str, stack: contextlib.ExitStack) -> bytes:
    try:
        file = stack.enter_context(_file(folder, MANIFEST))
        content = file.read(MAX_MANIFEST + 1)
    except FileNotFoundError as error:
        raise UnfitError(f"{path} is not a Varve trace: it has no manifest.json{_NAMED}") from error
    except OSError as error:
        raise UnfitError(f"cannot read {path}/{MANIFEST}: {error.strerror or error}") from error
    if len(content) > MAX_MANIFEST:
        raise _damaged(f"{path}/{MANIFEST}", "it is too long for a manifest", "manifest")
    return content


def _file(folder: int | None, name: str) -> BinaryIO:
    """Open a regular file of a trace; links are not followed."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError("it is a symbolic link, not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is no regular file")
    return os.fdopen(handle, "rb")


def _checked(manifest: object, path: str) -> dict[str, tuple[int, int]]:
    """Give the bytes and CRC-32 of each table, where the manifest says all that readers of a store need."""
    if isinstance(manifest, dict) and manifest.get("state") == "recording":
        raise UnfitError(
            f"{path} is not in order: it is being recorded, or its recorder was killed\n"
            f"hint: once its recorder is gone, `varve recover {path}` puts it in order"
        )
    try:
        return _sums(manifest)
    except DamagedError as error:
        if error.kind == "future_version":
            raise UnfitError(f"{path}: {error}\nhint: push it with the varve that recorded it, or newer") from error
        raise _damaged(f"{path}/{MANIFEST}", error, "manifest") from error


def _sums(manifest: Any) -> dict[str, tuple[int, int]]:  # noqa: ANN401
    try:
        run_of(manifest, "", dict.fromkeys(("service", "build", "host", "date", "name"), ""))
    except DamagedError as error:
        # Readers say so of it.
        if error.kind != "other_clock":
            raise
    try:
        sums = {name: (int(of["bytes"]), int(of["crc32"])) for name, of in manifest["checksums"].items()}
        fits = int(manifest["target"]["pid"]) >= 0 and manifest["clock"]["start_unix_ns"] >= 0
        fits = fits and all(isinstance(word, str) for word in manifest["target"]["command"])
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise DamagedError(f"it lacks what a reader needs: {error!r}") from error
    if not fits or any(size < 0 for size, _ in sums.values()):
        raise DamagedError("it has a value that no recorder writes")
    # They become names of files.
    if foreign := sorted(set(sums) - set(TABLES)):
        raise DamagedError(f"it names a table {foreign[0]!r}, which no trace has")
    if lacks := sorted({*NEEDED, "processes", "mappings"} - set(sums)):
        raise DamagedError(f"it has no checksum of the table {lacks[0]}")
    return sums


def _damaged(path: str, why: object, what: str = "table") -> UnfitError:
    return UnfitError(f"the {what} {path} is damaged: {why}{_COPY}")


def _place(trace: _Trace, names: Names) -> str:
    """Say where in the store a trace belongs."""
    program = _program(trace)
    service = names.service
    if service is None:
        word = program["exe"] if program else next(iter(trace.command), "")
        service = PurePosixPath(word).name
        service = "" if service == ".." else service
    build = names.build
    if build is None and program:
        build = _build(trace, program)
    host = names.host
    if host is None:
        host = os.fsencode(os.uname().nodename).decode(errors="replace")
    day = datetime.fromtimestamp(trace.start_unix_ns // 1_000_000_000, UTC)
    parts = {"service": service, "build": build, "host": host}
    named = [f"{what}={short(value or _UNKNOWN)}" for what, value in parts.items()]
    return "/".join([*named, f"date={day:%Y-%m-%d}"])


def short(name: str) -> str:
    """Give a name as a folder has it; one that is too long by its beginning and a hash of all of it: two stay two."""
    whole = encoded(name)
    if len(whole) <= MAX_NAME:
        return whole
    beginning = ""
    # A character that is cut in the middle would be no text.
    for part in map(encoded, name):
        if len(beginning) + len(part) > MAX_NAME - _DIGITS - 1:
            break
        beginning += part
    return f"{beginning}-{hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]}"


def _program(trace: _Trace) -> dict[str, Any] | None:
    """Give the program that the recorded process became last."""
    table = trace.tables["processes"]
    found = None
    try:
        for row in table.rows().select(["pid", "exe", "file", "born_ns"]).to_pylist():
            if row["pid"] == trace.pid and (found is None or row["born_ns"] >= found["born_ns"]):
                found = row
    except (KeyError, TypeError) as error:
        raise _damaged(table.path, error) from error
    return found


def _build(trace: _Trace, program: Mapping[str, Any]) -> str | None:
    """Say which build it is: what its mappings say, else the hash of its file, where that is still the one that ran."""
    import pyarrow.compute as pc  # noqa: PLC0415

    table = trace.tables["mappings"]
    file = program["exe"] if program["file"] is None else program["file"]
    try:
        rows = table.rows().select(["pid", "path", "inode", "build_id"])
        rows = rows.filter((pc.field("pid") == program["pid"]) & (pc.field("path") == file)).slice(0, 1).to_pylist()
    except (KeyError, TypeError) as error:
        raise _damaged(table.path, error) from error
    if not rows or rows[0]["build_id"] is not None:
        return rows[0]["build_id"] if rows else None
    with contextlib.suppress(OSError, ValueError), open_named(file, trace.owner) as opened:
        about = os.fstat(opened.fileno())
        if about.st_ino == rows[0]["inode"]:
            return f"htl-{htl_hash(opened, about.st_size)}"
    return None


def open_named(path: str, owner: int) -> BinaryIO:
    """Open a regular file that a trace names, through no link; it is looked at before it is opened.

    Whoever made the trace chose the name, and learns a hash of what is in it: so a trace of somebody else's names only
    what that user may read too.
    """
    found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        link = f"/proc/self/fd/{found}"
        if not stat.S_ISREG(os.fstat(found).st_mode) or str(Path(link).readlink()) != path:
            raise OSError("it is no regular file of that name")
        if owner != os.geteuid() and not _may_read(path, os.fstat(found), owner):
            raise PermissionError(errno.EACCES, "it is not for the trace's owner")
        return os.fdopen(os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    finally:
        os.close(found)


def _may_read(path: str, about: os.stat_result, user: int) -> bool:
    """Whether a user may certainly read a file: which groups the user is in is not asked."""

    def may(about: os.stat_result, everybody: int, owner: int) -> bool:
        own = about.st_uid == user
        return bool(about.st_mode & owner) if own else about.st_mode & everybody == everybody

    folders = PurePosixPath(path).parents
    return may(about, 0o044, 0o400) and all(may(os.lstat(folder), 0o011, 0o100) for folder in folders)


def htl_hash(file: BinaryIO, size: int) -> str:
    """Hash the first and the last 4096 bytes, and the length as 8 bytes, the highest first: 16 bytes of SHA-256."""
    found = hashlib.sha256()
    for at in (0, max(size - _HASHED, 0)):
        file.seek(at)
        found.update(file.read(min(_HASHED, size)))
    found.update(size.to_bytes(8, "big"))
    return found.hexdigest()[:32]
