"""Facts and views on Spark."""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from varve._binary import VarveError
from varve.fleet import _remote
from varve.fleet._engine import RELATIONS, Compacted, EngineError, Text, Traced, plan_of
from varve.fleet._remote import Object, Server, failure, rows, schema_of, why_unusable, with_origin

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# The frame that the label names says how far the line is from the function's beginning.
_FRAME = """get(filter(frames, f -> f.function IS NOT NULL AND label = concat(
    regexp_replace(f.file, '^.*/', ''), ':', f.line, ', in ', f.function)), 0)"""

_COLUMNS = {
    "intervals": "r.run, CAST(t.interval AS BIGINT) AS interval_number, CAST(t.start_ns AS BIGINT) AS start_ns, "
    "CAST(t.end_ns AS BIGINT) AS end_ns FROM file_intervals AS t JOIN traced AS r ON r.id = t.id",
    "touches": "r.run, CAST(t.interval AS BIGINT) AS interval_number, CAST(t.pid AS BIGINT) AS pid, "
    "CAST(t.page AS BIGINT) AS page, CAST(t.pages AS BIGINT) AS pages, t.source "
    "FROM file_touches AS t JOIN traced AS r ON r.id = t.id",
    "objects": "r.run, CAST(o.object AS BIGINT) AS object, CAST(o.pid AS BIGINT) AS pid, o.kind, o.name, "
    "regexp_replace(o.name, ':[0-9]+', '') AS symbol, coalesce('+' || s.distance, '') AS place, "
    "CAST(o.layer AS BIGINT) AS layer, try_cast(o.address AS BIGINT) AS address, CAST(o.bytes AS BIGINT) AS bytes, "
    "CAST(o.born_ns AS BIGINT) AS born_ns, CAST(o.died_ns AS BIGINT) AS died_ns "
    "FROM file_objects AS o JOIN traced AS r ON r.id = o.id "
    f"LEFT JOIN (SELECT id, site, {_FRAME}.line - {_FRAME}.function_line AS distance FROM file_sites) AS s "
    "ON s.id = o.id AND s.site = o.site",
    "samples": "r.run, CAST(a.time_ns AS BIGINT) AS time_ns, CAST(a.pid AS BIGINT) AS pid, "
    "CAST(a.tid AS BIGINT) AS tid, try_cast(a.address AS BIGINT) AS address, CAST(a.bytes AS BIGINT) AS bytes, "
    "a.write AS is_write, CAST(a.object AS BIGINT) AS object, CAST(a.weight_ns AS BIGINT) AS weight_ns, "
    "s.label AS code FROM file_samples AS a JOIN traced AS r ON r.id = a.id "
    "LEFT JOIN (SELECT id, site, label FROM file_sites) AS s ON s.id = a.id AND s.site = a.site",
}
_PATTERN = re.compile(r"[*?\[\]{}\\]")
# Of rows of objects: it fails where one is damaged.
_WHOLE = "assert_true(why IS NULL, why) IS NULL"
# The table that a relation needs besides the one of its name.
_MORE = {"objects": "sites", "samples": "sites"}


class Spark:
    """An engine that a Spark cluster, or Spark within this machine, runs."""

    name = "spark"
    batch: int | None = None

    def __init__(self, *, master: str, server: Server | None = None) -> None:
        """master: such as ``spark://HOST:7077`` or ``local[*]``. server: whom the workers ask for a store in S3.

        Workers must see a store that is a folder at the same path.
        """
        try:
            from pyspark import cloudpickle  # noqa: PLC0415
            from pyspark.errors import PySparkException  # noqa: PLC0415
            from pyspark.sql import SparkSession  # noqa: PLC0415
        except ImportError as error:
            raise VarveError("pyspark is not installed\nhint: pip install 'varve[spark]'") from error
        # Else workers need this package.
        cloudpickle.register_pickle_by_value(_remote)  # type: ignore[no-untyped-call]
        self._server = server
        #: Tables in S3, by name.
        self._tables: dict[str, DataFrame] = {}
        self._errors: tuple[type[Exception], ...] = (PySparkException, *_java_errors())
        # Workers run the Python of this process where they need one.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = (
            SparkSession.builder.master(master)
            .appName("varve fleet")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "OFF")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.ansi.enabled", "true")
            # Else each file is a task of its own that looks whether it is there.
            .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "8")
            .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        )
        for key, value in _settings().items():
            builder = builder.config(key, value)
        try:
            with warnings.catch_warnings():
                # pyspark complains of versions of packages that are not used here.
                warnings.simplefilter("ignore")
                self._session = builder.getOrCreate()
        except self._errors as error:
            raise EngineError(f"Spark does not start on {master}: {_said(error)}") from error
        self._partitions(0)
        self._facts: dict[str, DataFrame] = {}

    def set_runs(self, runs: "pa.Table") -> None:
        """See `Engine`."""
        self._session.createDataFrame(runs).createOrReplaceTempView("runs")

    def read(self, traces: Mapping[str, Mapping[str, Object]]) -> dict[str, str]:
        """See `Reader`. What is read stays with the workers until facts are made of it."""
        wrong: dict[str, str] = {}
        try:
            for table in sorted({table for of in traces.values() for table in of}):
                found = self._objects([(run, of[table]) for run, of in traces.items()], schema_of(table)).persist()
                self._tables[table] = found
                for row in found.where("why IS NOT NULL").select("id", "why").collect():
                    wrong.setdefault(row["id"], f"{table}.parquet {row['why']}")
            known = ", ".join(f"'{run}'" for run in wrong)
            for table, found in self._tables.items():
                # A worker that goes is replaced by one that reads again: then nothing else may be damaged.
                good = f"CASE WHEN id IN ({known}) THEN false ELSE {_WHOLE} END" if wrong else _WHOLE
                found.where(good).createOrReplaceTempView(f"file_{table}")
        except self._errors as error:
            raise _failed(error) from error
        return wrong

    def _objects(self, objects: Sequence[tuple[str, Object]], schema: "pa.Schema") -> "DataFrame":
        """Have workers read objects, each with an id. A row that says why one is damaged stands in its place."""
        import pyarrow as pa  # noqa: PLC0415

        assert self._server is not None
        server = self._server.with_keys(os.environ)
        tasks = self._session.createDataFrame(
            pa.table(
                {
                    "id": pa.array([name for name, _ in objects], pa.string()),
                    "path": pa.array([at.path for _, at in objects], pa.string()),
                    "size": pa.array([at.size for _, at in objects], pa.int64()),
                    "crc32": pa.array([at.crc32 for _, at in objects], pa.int64()),
                }
            )
        )

        def read(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            return rows(server, schema, batches)

        cores = self._session.sparkContext.defaultParallelism
        parts = min(len(objects), max(4 * cores, len(objects) // 64))
        columns = self._session.createDataFrame(with_origin(schema).empty_table()).schema
        return tasks.repartition(max(parts, 1)).mapInArrow(read, columns)

    def examine(self, tables: Sequence[str], traces: Sequence[Traced]) -> dict[str, str]:
        """See `Engine`. Of tables in S3 the workers say it."""
        wrong: dict[str, str] = {}
        for trace in traces:
            # With those signs not taken for patterns Spark 4 reads other files twice.
            if trace.folder and _PATTERN.search(str(trace.folder)):
                wrong[trace.id] = "its path has a sign that Spark takes for a pattern (--engine duckdb reads it)"
                continue
            for table in tables if trace.folder else ():
                try:
                    why = why_unusable(f"{trace.folder}/{table}.parquet", table)
                except FileNotFoundError as error:
                    raise EngineError(f"{trace.folder} is not there any more") from error
                if why:
                    wrong.setdefault(trace.id, f"{table}.parquet {why}")
        return wrong

    def add_traces(self, facts: Sequence[Text], traces: Sequence[Traced]) -> None:
        """See `Engine`."""
        import pyarrow as pa  # noqa: PLC0415

        plan = plan_of(facts)
        kept = []
        try:
            self._partitions(len(traces))
            if traces:
                columns = {"id": [trace.id for trace in traces], "run": [trace.run for trace in traces]}
                numbers = self._session.createDataFrame(pa.table(columns))
                numbers.hint("broadcast").createOrReplaceTempView("traced")
            for relation in plan.relations:
                self._relation(relation, traces).createOrReplaceTempView(relation)
            for step in plan.steps:
                made = self._session.sql(step.sql)
                if step.name in plan.kept:
                    kept.append(made.persist())
                made.createOrReplaceTempView(step.name)
            for fact in facts:
                able = [trace.run for trace in traces if fact.name in trace.facts]
                runs = self._session.createDataFrame(pa.table({"run": pa.array(able, pa.int64())}))
                made = self._session.sql(fact.sql)
                # Computed now: a trace that cannot be read shows here.
                self._facts[fact.name] = made.join(runs, "run", "left_semi").select(*made.columns).localCheckpoint()
        except self._errors as error:
            raise _failed(error) from error
        finally:
            for table in (*kept, *self._tables.values()):
                table.unpersist()

    def _partitions(self, traces: int) -> None:
        # One for each core; more where a partition would have more than 64 traces.
        cores = self._session.sparkContext.defaultParallelism
        self._session.conf.set("spark.sql.shuffle.partitions", str(max(cores, traces // 64)))

    def _relation(self, name: str, traces: Sequence[Traced]) -> "DataFrame":
        if not traces:
            columns = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in RELATIONS[name].items())
            return self._session.sql(f"SELECT {columns} WHERE false")
        for table in (name, *([_MORE[name]] if name in _MORE else [])):
            if table in self._tables:
                continue
            files = [f"file://{trace.folder}/{table}.parquet" for trace in traces]
            schema = self._files(files[:1]).schema
            # The id stands before the end of the path, so many signs away; a pattern would cost more than all else.
            end = len(f".varve/{table}.parquet") + 16
            self._files(files, schema).selectExpr(
                "*", f"substring(_metadata.file_path, -{end}, 16) AS id"
            ).createOrReplaceTempView(f"file_{table}")
        return self._session.sql(f"SELECT {_COLUMNS[name]}")

    def finish(self, fact: Text, compacted: Sequence[Compacted]) -> None:
        """See `Engine`."""
        whole = self._facts.pop(fact.name)
        try:
            for part in self._parts(compacted, whole):
                whole = whole.unionByName(part.select(*whole.columns))
            runs = self._session.table("runs").select("run")
            made = whole.join(runs, "run", "left_semi").select(*whole.columns)
            # Views read facts several times. Without their lineage plans are short, and planning is most of the time.
            made.localCheckpoint().createOrReplaceTempView(fact.name)
        except self._errors as error:
            raise _failed(error) from error

    def _parts(self, compacted: Sequence[Compacted], like: "DataFrame") -> "Iterator[DataFrame]":
        """Give what is compacted, with the columns of another."""
        objects = [(str(file.base), file.file) for file in compacted if isinstance(file.file, Object)]
        if objects:
            found = self._objects(objects, like.limit(0).toArrow().schema)
            found = found.where(_WHOLE).withColumnRenamed("run", "local_run")
            yield found.selectExpr("local_run + CAST(id AS BIGINT) AS run", "*")
        for file in compacted:
            if isinstance(file.file, Path):
                part = self._files([f"file://{file.file}"]).withColumnRenamed("run", "local_run")
                yield part.selectExpr(f"local_run + {file.base} AS run", "*")

    def _files(self, files: Sequence[str], schema: "StructType | None" = None) -> "DataFrame":
        """Read files whose names are no patterns."""
        for file in files:
            if _PATTERN.search(file):
                raise VarveError(f"{file} has a sign that Spark takes for a pattern\nhint: use --engine duckdb")
        reader = self._session.read
        return (reader.schema(schema) if schema is not None else reader).parquet(*files)

    def confine(self, sql: str) -> None:
        """See `Engine`. What a query reads nobody bounds: Spark has no settings for that."""
        try:
            # Only what gives rows can stand there.
            self._session._jsparkSession.sessionState().sqlParser().parsePlan(f"SELECT * FROM (\n{sql}\n)")  # noqa: SLF001
        except self._errors as error:
            said = _said(error)
            raise EngineError(
                f"the query is not one statement that gives rows: Spark: {said}\nhint: write one SELECT"
            ) from error

    def query(self, sql: str) -> "pa.Table":
        """See `Engine`."""
        try:
            table: pa.Table = self._session.sql(sql).toArrow()
        except self._errors as error:
            raise _failed(error) from error
        return table

    def close(self) -> None:
        """See `Engine`."""
        self._session.stop()


def _java_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError  # noqa: PLC0415

    # What the driver's gateway raises, and pyspark where there is no Java.
    return (Py4JError, RuntimeError)


def _settings() -> dict[str, Any]:
    """Give the settings of the variable VARVE_SPARK, such as ``spark.executor.memory=4g,spark.cores.max=8``."""
    pairs = [pair for pair in os.environ.get("VARVE_SPARK", "").split(",") if pair]
    return dict(pair.split("=", 1) for pair in pairs)


def _failed(error: Exception) -> VarveError:
    # A server that fails is no fault of a trace.
    if said := failure(str(error)):
        return VarveError(said)
    return EngineError(f"Spark: {_said(error)}")


def _said(error: Exception) -> str:
    # What follows are the calls that led there.
    return str(error).split("\n\tat ", 1)[0].split("\nJVM stacktrace", 1)[0].strip()[:2000]
