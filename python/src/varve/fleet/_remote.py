"""S3: which server is asked, and what Spark's workers read there.

Workers get this module with their work: it imports nothing of this package, which they need not have.
"""

import json
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

# Objects that a worker's task reads at a time: each waits for the server.
_AHEAD = 8
_BATCH_ROWS = 1 << 16
# How the driver finds what a worker says of the server in what Spark says of the worker.
_MARK = "varve-storage-failed"
# What relations of the engines need of each table, and as what.
_COLUMNS = {
    "intervals": {"interval": "number", "start_ns": "number", "end_ns": "number"},
    "touches": {"interval": "number", "pid": "number", "page": "number", "pages": "number", "source": "word"},
    "objects": {
        "object": "number", "pid": "number", "kind": "word", "name": "word", "site": "number", "layer": "number",
        "address": "number", "bytes": "number", "born_ns": "number", "died_ns": "number",
    },
    "sites": {"site": "number", "label": "word", "frames": "frames"},
    "samples": {
        "time_ns": "number", "pid": "number", "tid": "number", "address": "number", "bytes": "number",
        "write": "truth", "object": "number", "weight_ns": "number", "site": "number",
    },
}  # fmt: skip


# The highest value of each column that is no name of something: a trace with others was not recorded. Moments: 9 years
# since the machine started. A row of touches is 1 TiB at most, an object 256 TiB.
_MOMENT = 1 << 58
#: Nanoseconds of a trace, 104 days, and of the threads of its samples.
MAX_TIME = 1 << 53
HIGHEST = {
    "intervals": {"interval": 1 << 32, "start_ns": _MOMENT, "end_ns": _MOMENT},
    "touches": {"interval": 1 << 32, "pid": 1 << 32, "page": 1 << 52, "pages": 1 << 28},
    "objects": {
        "object": 1 << 62, "pid": 1 << 32, "site": 1 << 32, "layer": 1 << 32, "bytes": 1 << 48, "born_ns": _MOMENT,
        "died_ns": _MOMENT,
    },
    "sites": {"site": 1 << 32},
    "samples": {
        "time_ns": 1 << 62, "pid": 1 << 32, "tid": 1 << 32, "bytes": 1 << 57, "object": 1 << 62, "weight_ns": MAX_TIME,
        "site": 1 << 32,
    },
}  # fmt: skip
# The highest sum of a column, over rows of which it is at most so much. Facts have a row for 62 pages of these, and
# sums over a thousand traces must be numbers still.
_EACH = 1 << 62
TOTALS = {
    "touches": (("pages", _EACH, 1 << 34, "names more than 64 TiB of touched pages"),),
    "objects": (
        ("bytes", _EACH, 1 << 51, "names more than 2 PiB of objects"),
        ("bytes", 1 << 36, 1 << 46, "names more than 64 TiB of objects of 64 GiB and less"),
    ),
    "samples": (("weight_ns", _EACH, MAX_TIME, "names more than 104 days of samples"),),
}
#: Columns of which each value occurs once: else a row would meet many.
UNIQUE = {"intervals": "interval", "sites": "site"}
#: Between the addresses of programs and those of the kernel there are none.
NO_ADDRESS = (1 << 57, 1 << 63)


class Bounds:
    """Whether a table can be true, before it is read for facts, which may be many times as large."""

    def __init__(self, table: str) -> None:
        """See `add`."""
        self._table = table
        self._sums = [0.0 for _ in TOTALS.get(table, ())]
        self._time = 0.0
        self._seen: set[int] = set()

    def add(self, batch: "pa.RecordBatch | dict[str, pa.Array]") -> str | None:
        """Look at more of its rows. Says what cannot be; None where all can."""
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        for column, highest in HIGHEST[self._table].items():
            found = pc.min_max(batch[column]).as_py()
            if found["min"] is not None and (found["min"] < 0 or found["max"] > highest):
                return f"has an impossible value of {column}"
        for at, (column, each, most, what) in enumerate(TOTALS.get(self._table, ())):
            values = batch[column]
            values = values.cast(pa.float64(), safe=False)
            self._sums[at] += pc.sum(values.filter(pc.less_equal(values, float(each)))).as_py() or 0
            if self._sums[at] > most:
                return what
        if self._table == "objects" and _has_no_address(batch["address"]):
            return "has an impossible value of address"
        if self._table == "intervals":
            lengths = pc.subtract(batch["end_ns"].cast(pa.int64()), batch["start_ns"].cast(pa.int64()))
            self._time += pc.sum(lengths).as_py() or 0
            if self._time > MAX_TIME or (pc.min(lengths).as_py() or 0) < 0:
                return "has impossible intervals"
        if (column := UNIQUE.get(self._table, "")) and not self._are_new(batch[column].to_pylist()):
            return f"has a value of {column} twice"
        return None

    def _are_new(self, values: list[int]) -> bool:
        before = len(self._seen)
        self._seen.update(values)
        return len(self._seen) == before + len(values)


def _has_no_address(addresses: "pa.Array") -> bool:
    low, end = NO_ADDRESS
    # As signed numbers those of the kernel are below 0.
    return any(address is not None and low <= address < end for address in addresses.unique().to_pylist())


def why_unusable(source: Any, table: str) -> str | None:  # noqa: ANN401
    """Say why a table cannot be read, or cannot be true; None where it can. source: what pyarrow reads.

    Raises FileNotFoundError.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        wanted, bounds = schema_of(table), Bounds(table)
        with pq.ParquetFile(source) as file:
            if why := unfit(file.schema_arrow, wanted):
                return why
            for batch in file.iter_batches(_BATCH_ROWS, columns=wanted.names):
                batch.validate(full=True)
                if why := bounds.add(batch):
                    return why
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        return f"cannot be read: {error}"
    return None


@dataclass(frozen=True)
class Server:
    """Which server is asked, and how patiently."""

    region: str
    #: None: that of the region.
    endpoint: str | None
    #: How many seconds a request may stand still.
    timeout: float
    #: How often a request is made that fails for a reason that may pass. Pauses grow, to some seconds each.
    tries: int
    #: Key, secret and session token; None: those that the client finds in the usual places.
    keys: tuple[str, str, str | None] | None = field(default=None, repr=False)

    def with_keys(self, environment: Mapping[str, str]) -> "Server":
        """Give the same with the keys of an environment, for a machine that has another one."""
        key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
        if not key or not secret:
            return self
        return replace(self, keys=(key, secret, environment.get("AWS_SESSION_TOKEN")))

    def client(self) -> "pafs.S3FileSystem":
        """Give a client."""
        import pyarrow.fs as pafs  # noqa: PLC0415

        more: dict[str, Any] = {}
        if self.endpoint:
            parts = urlsplit(self.endpoint)
            more = {"endpoint_override": parts.netloc or parts.path, "scheme": parts.scheme or "https"}
        if self.keys:
            more |= dict(zip(("access_key", "secret_key", "session_token"), self.keys, strict=True))
        return pafs.S3FileSystem(
            region=self.region,
            connect_timeout=self.timeout,
            request_timeout=self.timeout,
            # A small file is one request, and is there whole or not at all.
            allow_delayed_open=True,
            # Else all of a large file may wait in memory.
            background_writes=False,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=self.tries),
            **more,
        )


@dataclass(frozen=True)
class Object:
    """A file in S3, and what it must be."""

    #: BUCKET/KEY.
    path: str
    size: int
    crc32: int


def said(place: str, error: object, tries: int) -> str:
    """Say that a place in S3 fails, and what can be done."""
    if "NO_SUCH_BUCKET" in str(error):
        bucket = place.removeprefix("s3://").split("/", 1)[0]
        return f"there is no bucket {bucket}\nhint: make it first, as with `aws s3 mb s3://{bucket}`"
    return (
        f"{place} cannot be read or written: {error}\n"
        f"hint: what may pass was tried {tries} times; AWS_ENDPOINT_URL, AWS_REGION and AWS_ACCESS_KEY_ID say which "
        "server and who asks"
    )


def differs(data: bytes, size: int, crc32: int) -> str | None:
    """Say how a file differs from what its manifest says; None where it does not."""
    if len(data) != size:
        return f"has {len(data)} bytes and not {size}"
    if zlib.crc32(data) != crc32:
        return "differs from its checksum"
    return None


def schema_of(table: str) -> "pa.Schema":
    """Give the columns of a table of a trace that are read, with signed numbers."""
    import pyarrow as pa  # noqa: PLC0415

    frame = {"function": pa.string(), "file": pa.string(), "line": pa.int64(), "function_line": pa.int64()}
    kinds = {"number": pa.int64(), "word": pa.string(), "truth": pa.bool_(), "frames": pa.list_(pa.struct(frame))}
    return pa.schema([(column, kinds[kind]) for column, kind in _COLUMNS[table].items()])


def unfit(found: "pa.Schema", wanted: "pa.Schema") -> str | None:
    """Say which column of a file has another type; None where all fit. Raises KeyError where one is missing."""
    import pyarrow as pa  # noqa: PLC0415

    for column in wanted:
        kind = found.field(column.name).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        alike = (pa.types.is_list, pa.types.is_boolean, pa.types.is_string, pa.types.is_integer)
        if not any(of(kind) and of(column.type) for of in alike):
            return f"has another type of {column.name}: {kind}"
    return None


def with_origin(schema: "pa.Schema") -> "pa.Schema":
    """Give the columns of `rows`."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.schema([("id", pa.string()), ("why", pa.string()), *schema])


def rows(server: Server, schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Read objects. Of one that is damaged there is a row that says why; what other rows it has do not count.

    batches: ``id``, ``path``, ``size``, ``crc32``. Raises OSError where the server fails, for `failure`.
    """
    import pyarrow as pa  # noqa: PLC0415

    client = server.client()

    def read(task: dict[str, Any]) -> bytes | str:
        try:
            with client.open_input_stream(task["path"]) as stream:
                data: bytes = stream.read()
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            place = f"s3://{task['path']}"
            raise OSError(f"{_MARK}{json.dumps(said(place, error, server.tries))}") from error
        return differs(data, task["size"], task["crc32"]) or data

    whole = with_origin(schema)
    for task, data in _ahead(read, (task for batch in batches for task in batch.to_pylist())):
        why = data if isinstance(data, str) else None
        try:
            for columns in _columns(data, schema) if isinstance(data, bytes) else ():
                count = len(columns[0])
                names = [pa.repeat(task["id"], count), pa.nulls(count, pa.string())]
                yield pa.RecordBatch.from_arrays([*names, *columns], schema=whole)
        except _UnfitError as error:
            why = str(error)
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            why = f"cannot be read: {error}"
        if why is not None:
            yield pa.RecordBatch.from_pylist([{"id": task["id"], "why": why}], schema=whole)


class _UnfitError(Exception):
    """A column has another type."""


def _columns(data: bytes, schema: "pa.Schema") -> "Iterator[list[pa.Array]]":
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    bounds = next((Bounds(table) for table in _COLUMNS if schema_of(table).equals(schema)), None)
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        if why := unfit(file.schema_arrow, schema):
            raise _UnfitError(why)
        for batch in file.iter_batches(_BATCH_ROWS, columns=schema.names):
            found = []
            if bounds and (why := bounds.add(batch)):
                raise _UnfitError(why)
            for column in schema:
                array = batch.column(column.name)
                if column.name == "address" and array.type == pa.uint64():
                    # Addresses of the kernel are no numbers of the engines.
                    array = pc.if_else(pc.less(array, pa.scalar(1 << 63, pa.uint64())), array, None)
                found.append(array.cast(column.type))
            yield found


def _ahead(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Do work that waits, some items ahead of who takes the results, which come in order."""
    waiting: deque[tuple[Any, Future[Any]]] = deque()
    with ThreadPoolExecutor(_AHEAD) as pool:
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) == _AHEAD:
                first, result = waiting.popleft()
                yield first, result.result()
        for item, result in waiting:
            yield item, result.result()


def failure(text: str) -> str | None:
    """Give what a worker said of the server, from what Spark says; None where it said nothing."""
    found = re.search(re.escape(_MARK) + r'("(?:[^"\\]|\\.)*")', text)
    return None if found is None else str(json.loads(found[1]))
