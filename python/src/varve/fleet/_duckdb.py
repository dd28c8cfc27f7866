"""Facts and views on DuckDB, within this process."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from varve._temporary import Folder
from varve._trace import parquet
from varve.fleet._engine import RELATIONS, Compacted, EngineError, Text, Traced, plan_of, texts
from varve.fleet._remote import HIGHEST, MAX_TIME, NO_ADDRESS, TOTALS, UNIQUE

if TYPE_CHECKING:
    import pyarrow as pa

# Names of Spark for what DuckDB calls otherwise.
_MACROS = (
    "CREATE MACRO explode(list) AS unnest(list)",
    "CREATE MACRO sequence(low, high) AS generate_series(low, high)",
    "CREATE MACRO shiftleft(value, bits) AS value << bits",
    "CREATE MACRO shiftright(value, bits) AS value >> bits",
    "CREATE MACRO collect_set(value) AS list(DISTINCT value)",
    "CREATE MACRO array_sort(list) AS list_sort(list)",
    "CREATE MACRO array_join(list, between) AS array_to_string(list, between)",
)

# The frame that the label names says how far the line is from the function's beginning.
_FRAME = """list_filter(frames, lambda f: f.function IS NOT NULL AND label = concat(
    regexp_replace(f.file, '^.*/', ''), ':', f.line, ', in ', f.function))[1]"""

_COLUMNS = {
    "intervals": "file_index::BIGINT AS run, interval::BIGINT AS interval_number, start_ns::BIGINT AS start_ns, "
    "end_ns::BIGINT AS end_ns FROM {intervals}",
    "touches": "file_index::BIGINT AS run, interval::BIGINT AS interval_number, pid::BIGINT AS pid, "
    "page::BIGINT AS page, pages::BIGINT AS pages, source FROM {touches}",
    "objects": "o.file_index::BIGINT AS run, o.object::BIGINT AS object, o.pid::BIGINT AS pid, o.kind, o.name, "
    "regexp_replace(o.name, ':[0-9]+', '', 'g') AS symbol, coalesce('+' || s.distance, '') AS place, "
    "o.layer::BIGINT AS layer, try_cast(o.address AS BIGINT) AS address, o.bytes::BIGINT AS bytes, "
    "o.born_ns::BIGINT AS born_ns, o.died_ns::BIGINT AS died_ns FROM {objects} AS o "
    f"LEFT JOIN (SELECT file_index, site, {_FRAME}.line - {_FRAME}.function_line AS distance FROM {{sites}}) AS s "
    "ON s.file_index = o.file_index AND s.site = o.site",
    "samples": "a.file_index::BIGINT AS run, a.time_ns::BIGINT AS time_ns, a.pid::BIGINT AS pid, "
    "a.tid::BIGINT AS tid, try_cast(a.address AS BIGINT) AS address, a.bytes::BIGINT AS bytes, a.write AS is_write, "
    "a.object::BIGINT AS object, a.weight_ns::BIGINT AS weight_ns, s.label AS code FROM {samples} AS a "
    "LEFT JOIN (SELECT file_index, site, label FROM {sites}) AS s ON s.file_index = a.file_index AND s.site = a.site",
}
# Relations of few rows that steps read several times: opening files and looking at names would be most of that.
_SMALL = ("intervals", "objects")


class DuckDB:
    """An engine without a server. What does not fit its memory goes to a temporary folder."""

    name = "duckdb"

    def __init__(self, *, memory: str, threads: int | None, batch: int = 256) -> None:
        """memory: such as ``2GiB``. threads: CPUs that it uses; None: all."""
        import duckdb  # noqa: PLC0415

        self.batch: int | None = batch
        self._error = duckdb.Error
        self._folder = Folder("varve-fleet-")
        #: Files that views read.
        self._files: list[Path] = []
        settings: dict[str, Any] = {
            "memory_limit": memory,
            "temp_directory": f"{self._folder.path}/spill",
            "preserve_insertion_order": False,
        }
        if threads is not None:
            settings["threads"] = threads
        try:
            self._connection = duckdb.connect(f"{self._folder.path}/facts.duckdb", config=settings)
        except duckdb.Error as error:
            self._folder.remove()
            raise EngineError(
                f"DuckDB does not start: {error}\nhint: --memory and --threads say what it may use"
            ) from error
        for macro in _MACROS:
            self._connection.execute(macro)

    def set_runs(self, runs: "pa.Table") -> None:
        """See `Engine`."""
        self._connection.register("given_runs", runs)
        self._run("CREATE OR REPLACE TABLE runs AS FROM given_runs")
        self._connection.unregister("given_runs")

    def examine(self, tables: Sequence[str], traces: Sequence[Traced]) -> dict[str, str]:
        """See `Engine`."""
        wrong: dict[str, str] = {}
        files = _Files([trace.folder for trace in traces if trace.folder])
        for table in tables if traces else ():
            try:
                found = self._connection.execute(_EXAMINE[table].format_map(files)).fetchall()
            except self._error as error:
                raise EngineError(f"DuckDB: {error}") from error
            for file, why in found:
                wrong.setdefault(traces[file].id, f"{table}.parquet {why}")
        return wrong

    def add_traces(self, facts: Sequence[Text], traces: Sequence[Traced]) -> None:
        """See `Engine`. Within a batch a run is the number of its file."""
        plan = plan_of(facts)
        self._run("BEGIN")
        try:
            for relation in plan.relations:
                kind = "TABLE" if relation in _SMALL else "VIEW"
                self._run(f"CREATE OR REPLACE TEMP {kind} {relation} AS {_relation(relation, traces)}")
            for step in plan.steps:
                kind = "TABLE" if step.name in plan.kept else "VIEW"
                self._run(f"CREATE OR REPLACE TEMP {kind} {step.name} AS {step.sql}")
            for fact in facts:
                able = [f"({file}, {trace.run})" for file, trace in enumerate(traces) if fact.name in trace.facts]
                rows = (
                    f"SELECT n.run::BIGINT AS run, f.* EXCLUDE (run) FROM ({fact.sql}) AS f "
                    f"JOIN (VALUES {', '.join(able) or '(-1, -1)'}) AS n(file, run) ON n.file = f.run"
                )
                self._run(f"CREATE TABLE IF NOT EXISTS traced_{fact.name} AS FROM ({rows}) LIMIT 0")
                if able:
                    self._run(f"INSERT INTO traced_{fact.name} {rows}")
        except EngineError:
            self._run("ROLLBACK")
            raise
        self._run("COMMIT")

    def finish(self, fact: Text, compacted: Sequence[Compacted]) -> None:
        """See `Engine`."""
        described = self._connection.execute(f"DESCRIBE traced_{fact.name}").fetchall()
        rest = ", ".join(f"f.{row[0]}" for row in described if row[0] != "run")
        parts = [f"FROM traced_{fact.name}"]
        for file in compacted:
            assert isinstance(file.file, Path)
            self._files.append(file.file)
            parts.append(f"SELECT f.run + {file.base} AS run, {rest} FROM {parquet(file.file)} AS f")
        union = " UNION ALL ".join(parts)
        self._run(f"CREATE OR REPLACE VIEW {fact.name} AS SELECT * FROM ({union}) WHERE run IN (SELECT run FROM runs)")

    def confine(self, sql: str) -> None:
        """See `Engine`. From now on no files are read and written but those of the store's facts, and DuckDB's own."""
        import duckdb  # noqa: PLC0415

        try:
            statements = self._connection.extract_statements(sql)
        except (self._error, UnicodeEncodeError) as error:
            raise EngineError(f"DuckDB: {error}") from error
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise EngineError("the query is not one statement that gives rows\nhint: write one SELECT")
        # Names with signs of patterns are asked for as patterns.
        folders = sorted({f"{file.parent}/" for file in self._files})
        names = ", ".join("'" + folder.replace("'", "''") + "'" for folder in folders)
        for setting in (
            f"allowed_directories = [{names}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            self._run(f"SET {setting}")

    def query(self, sql: str) -> "pa.Table":
        """See `Engine`."""
        try:
            return self._connection.sql(sql).to_arrow_table()
        except self._error as error:
            raise EngineError(f"DuckDB: {error}") from error

    def close(self) -> None:
        """See `Engine`."""
        self._connection.close()
        self._folder.remove()

    def _run(self, sql: str) -> None:
        try:
            self._connection.execute(sql)
        except self._error as error:
            raise EngineError(f"DuckDB: {error}") from error


def _relation(name: str, traces: Sequence[Traced]) -> str:
    if not traces:
        columns = ", ".join(f"NULL::{kind} AS {column}" for column, kind in RELATIONS[name].items())
        return f"SELECT {columns} WHERE false"
    return "SELECT " + _COLUMNS[name].format_map(_Files([trace.folder for trace in traces if trace.folder]))


class _Files(dict[str, str]):
    """The files of a table, by its name."""

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__()
        self._folders = folders

    def __missing__(self, table: str) -> str:
        return parquet(*(folder / f"{table}.parquet" for folder in self._folders))


def _examine(table: str) -> str:
    """Give the query for what `Bounds` says, by the number of the file."""
    cases = [
        (f"min({column}) < 0 OR max({column}) > {highest}", f"has an impossible value of {column}")
        for column, highest in HIGHEST[table].items()
    ]
    for column, each, most, what in TOTALS.get(table, ()):
        cases.append((f"sum({column}) FILTER ({column} <= {each}) > {most}", what))
    if table == "objects":
        low, end = NO_ADDRESS
        cases.append(
            (f"count(*) FILTER (address >= {low} AND address < {end}) > 0", "has an impossible value of address")
        )
    if table == "intervals":
        time = "sum(end_ns) - sum(start_ns)"
        cases.append((f"{time} > {MAX_TIME} OR count(*) FILTER (end_ns < start_ns) > 0", "has impossible intervals"))
    if table in UNIQUE:
        cases.append((f"count(DISTINCT {UNIQUE[table]}) < count(*)", f"has a value of {UNIQUE[table]} twice"))
    whens = " ".join(f"WHEN {case} THEN '{why}'" for case, why in cases)
    found = f"SELECT file_index, CASE {whens} END AS why FROM {{{table}}} GROUP BY file_index"
    return f"SELECT file_index, why FROM ({found}) WHERE why IS NOT NULL"


_EXAMINE = {table: _examine(table) for table in HIGHEST}


@functools.cache
def fact_columns() -> Mapping[str, Mapping[str, str]]:
    """Give the columns of each fact, and DuckDB's names of their types."""
    import duckdb  # noqa: PLC0415

    with duckdb.connect(":memory:") as connection:
        for macro in _MACROS:
            connection.execute(macro)
        for relation in RELATIONS:
            connection.execute(f"CREATE VIEW {relation} AS {_relation(relation, ())}".replace("STRING", "VARCHAR"))
        facts = texts("facts")
        for step in plan_of(list(facts.values())).steps:
            connection.execute(f"CREATE VIEW {step.name} AS {step.sql}")
        return {
            name: {row[0]: row[1] for row in connection.execute(f"DESCRIBE ({fact.sql})").fetchall()}
            for name, fact in facts.items()
        }
