"""What is read is what the trace and the report say."""

import json
import os
import shutil

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from conftest import PAGES

import varve
from varve._binary import run

# A page of memory that is mapped at two addresses counts once in the report, and in the tables at each. The recorder's
# own memory counts apart in the report.
TOUCHES = """
    SELECT count(DISTINCT (interval, pid, p)) FROM (
        SELECT interval, pid, unnest(range(page::BIGINT, (page + pages)::BIGINT)) AS p
        FROM touches WHERE source <> 'possibly_others'
    )
"""


def without_nulls(value):
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) for v in value]
    return value


def test_every_field_is_that_of_the_report(trace):
    said = json.loads(run(["report", str(trace.folder), "--json"]).stdout)
    assert trace.report() == said
    assert trace.footprint == said["footprint"]
    assert trace.findings == said["findings"]
    lists = [name for name, rows in said.items() if isinstance(rows, list) and rows and isinstance(rows[0], dict)]
    assert {"working_set", "objects", "groups", "processes", "phases"} <= set(lists)
    for name in lists:
        rows = trace.figures(name).to_arrow_table().to_pylist()
        assert without_nulls(rows) == without_nulls(said[name]), name


def test_the_report_counts_what_the_tables_have(trace):
    touches = trace.sql(TOUCHES).fetchall()[0][0]
    said = trace.report()
    assert touches * 0.998 <= trace.footprint["page_touches"] + said["own_memory"]["page_touches"] <= touches
    assert trace.intervals.count("*").fetchall()[0][0] == said["trace"]["intervals"]
    assert trace.working_set().count("*").fetchall()[0][0] == said["trace"]["intervals"]
    assert trace.working_set().max("pages").fetchall()[0][0] == trace.footprint["peak_working_set_pages"]


def test_tables_are_arrow_pandas_and_polars(trace):
    arrow = trace.objects.to_arrow_table()
    assert isinstance(arrow, pa.Table)
    assert isinstance(trace.objects.df(), pd.DataFrame)
    assert isinstance(trace.objects.pl(), pl.DataFrame)
    assert arrow.num_rows == len(trace.objects.df()) == trace.objects.pl().height > 0
    assert set(trace.tables) <= set(varve.TABLES)
    # None that this package does not know.
    assert {file.stem for file in trace.folder.glob("*.parquet")} == set(trace.tables)
    for name in trace.tables:
        assert trace.table(name).columns
    largest = trace.sql("SELECT max(bytes) FROM objects WHERE kind = ?", ["mapping"]).fetchall()[0][0]
    assert largest >= PAGES << 12


def test_phases_have_their_pages(trace):
    load, rest = trace.report(phase="load"), trace.report(phase="rest")
    assert PAGES <= load["footprint"]["touched_pages"] < PAGES + 2500
    assert rest["footprint"]["touched_pages"] < PAGES
    named = dict(trace.marks.project("name, kind").fetchall())
    assert named == {"load": "phase", "half": "event", "rest": "phase"}
    assert trace.working_set(phase="load").count("*").fetchall()[0][0] < trace.working_set().count("*").fetchall()[0][0]


def test_the_map_is_a_picture(trace, tmp_path):
    picture = trace.heatmap(phase="load")
    assert picture._repr_png_().startswith(b"\x89PNG")
    picture.save(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes() == picture.png
    assert trace._repr_png_().startswith(b"\x89PNG")


def test_what_is_wrong_is_said(trace, tmp_path):
    with pytest.raises(varve.VarveError, match="no table of a trace"):
        trace.table("nothing")
    with pytest.raises(varve.VarveError, match="not in this trace"):
        trace.table("operations")
    with pytest.raises(varve.VarveError, match="no list"):
        trace.figures("footprint")
    with pytest.raises(varve.VarveError, match=r"no phase `lod`"):
        trace.report(phase="lod")
    with pytest.raises(varve.VarveError, match="is no trace"):
        varve.open(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[]", "not of a trace"),
        (b'{"format": "other"}', "not of a trace"),
        (b'{"format": "varve-trace", "version": 99}', "version 99"),
        (b'{"format": "varve-trace", "version": 1, "state": "recording"}', "being recorded"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path, content, says):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(varve.VarveError, match=says):
        varve.open(tmp_path)


def test_a_damaged_table_is_refused(trace, tmp_path):
    copy = tmp_path / "a 'quoted' name"
    shutil.copytree(trace.folder, copy)
    assert varve.open(copy).touches.count("*").fetchall() == trace.touches.count("*").fetchall()
    table = copy / "touches.parquet"
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(varve.VarveError, match=r"touches\.parquet"):
        varve.open(copy)


def test_folders_above_a_trace_are_no_columns(trace, tmp_path):
    copy = tmp_path / "pid=5" / "a*[b]?" / "t.varve"
    shutil.copytree(trace.folder, copy)
    opened = varve.open(copy)
    for name in trace.tables:
        assert opened.table(name).columns == trace.table(name).columns
    asked = "SELECT DISTINCT pid FROM touches ORDER BY pid"
    assert opened.sql(asked).fetchall() == trace.sql(asked).fetchall()


def test_a_table_that_is_another_is_refused(trace, tmp_path):
    def broken(name, change):
        copy = tmp_path / name
        shutil.copytree(trace.folder, copy)
        change(copy / "touches.parquet")
        with pytest.raises(varve.VarveError, match=r"touches\.parquet is damaged"):
            varve.open(copy)

    def turn_bit(path):
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)

    def link(path):
        path.unlink()
        path.symlink_to(trace.folder / "touches.parquet")

    def fifo(path):
        path.unlink()
        os.mkfifo(path)

    broken("of another trace", lambda path: shutil.copy(trace.folder / "objects.parquet", path))
    broken("a bit", turn_bit)
    broken("a link", link)
    broken("a FIFO", fifo)
    broken("none", lambda path: path.unlink())
    copy = tmp_path / "more"
    shutil.copytree(trace.folder, copy)
    shutil.copy(copy / "touches.parquet", copy / "operations.parquet")
    with pytest.raises(varve.VarveError, match=r"does not name operations\.parquet"):
        varve.open(copy)


@pytest.mark.parametrize("target", [[], {"command": [1, 2]}, {"command": "./prog"}, None])
def test_a_trace_names_itself_whatever_its_manifest_says(trace, tmp_path, target):
    copy = tmp_path / "t.varve"
    shutil.copytree(trace.folder, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "target": target}))
    said = repr(varve.open(copy))
    assert str(copy) in said
    assert ". / p" not in said


def test_a_query_that_is_none_is_said(trace):
    with pytest.raises(varve.VarveError, match=r"operations(.|\n)*hint: the trace has the tables"):
        trace.sql("SELECT * FROM operations")


def test_names_that_are_no_text_end_no_program():
    varve.event("\ud800")
    with varve.phase("\ud800"):
        pass
    for name in (None, b"load", 5):
        with pytest.raises(varve.VarveError, match="is a text"), varve.phase(name):
            pass
        with pytest.raises(varve.VarveError, match="is a text"):
            varve.event(name)
