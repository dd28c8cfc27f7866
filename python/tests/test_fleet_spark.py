"""A real cluster of a master and two workers gives what DuckDB gives, row for row."""

import json
import shutil
import zlib

import made
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from buckets import HASTY, IMPATIENT, KEYS, client, copy
from fleets import START_NS, Program, fleet, made_store, push, report, run_id, spark_cluster

from varve.fleet._remote import Server, failure, said


@pytest.fixture(scope="module")
def store(tmp_path_factory, recorded):
    """Make a store of made and recorded traces, some of them damaged."""
    folder = made_store(tmp_path_factory.mktemp("store"), hosts=5)
    broken = sorted(folder.rglob("*.varve"))
    (broken[0] / "manifest.json").unlink()
    (broken[-1] / "objects.parquet").write_bytes(b"")
    made.write(
        folder, made.Made("api", "1111", "odd", "2026-09-23", run_id("odd"), 5, grown=3.0, start_unix_ns=START_NS)
    )
    made.write(folder, made.Made("tools", "3333", "more", "2026-09-24", "with others", 6, others=True))
    made.write(folder, made.Made("tools", "3333", "more", "2026-09-24", "lost", 6, complete=False, losses=("b", "a")))
    for at in range(4):
        push(recorded.trace.folder, folder, service="recorded", build="ab" if at < 2 else "cd", name=str(at))
    return folder


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """Start the cluster. It ends with the tests of this file."""
    with spark_cluster(2, tmp_path_factory.mktemp("workers")) as url:
        yield url


def test_both_engines_agree_row_for_row(store, master):
    fleet("compact", store, "--until", "2026-09-22", "--service", "api")
    plain = report(store)
    assert plain["skipped"]["kinds"] == {"damaged": 1, "half_written": 1}
    # Some are compacted, most are not.
    assert 0 < plain["runs"]["compacted"] < plain["runs"]["used"] / 2
    spread = report(store, "--engine", "spark", "--master", master)
    assert spread["engine"] == "spark"
    for name, view in plain["views"].items():
        assert spread["views"][name] == view, name
    assert {**spread, "engine": "", "views": {}} == {**plain, "engine": "", "views": {}}
    assert {row["losses"] for row in plain["views"]["services"]["rows"]} == {None, "a, b"}
    filled = {name for name, view in plain["views"].items() if view["rows"]}
    assert filled == set(plain["views"])


def test_what_spark_compacts_duckdb_reads(master, tmp_path):
    made_store(tmp_path, hosts=1)
    plain = report(tmp_path)
    done = fleet("compact", tmp_path, "--json", "--engine", "spark", "--master", master)
    assert [part["runs"] for part in json.loads(done.stdout)["parts"]] == [4]
    for folder in tmp_path.glob("service=*"):
        shutil.rmtree(folder)
    assert report(tmp_path)["views"] == plain["views"]


def test_a_master_that_is_not_there_is_said(store):
    environment = {
        "VARVE_SPARK": "spark.network.timeout=2s,spark.executor.heartbeatInterval=1s,spark.rpc.askTimeout=1s"
    }
    done = fleet("query", store, "services", "--engine", "spark", "--master", "spark://127.0.0.1:1", code=2,
                 environment=environment)  # fmt: skip
    assert "varve fleet: Spark" in done.stderr


def rewritten(folder, name, edit):
    """Change a table's file; its checksum is then that of what it became."""
    path = folder / f"{name}.parquet"
    edit(path)
    data = path.read_bytes()
    content = json.loads((folder / "manifest.json").read_text())
    content["checksums"][name] = {"bytes": len(data), "crc32": zlib.crc32(data)}
    (folder / "manifest.json").write_text(json.dumps(content))
    made.named(folder)


def column(name, values):
    """Give an edit that makes a column something else."""

    def edit(path):
        table = pq.read_table(path)
        table = table.set_column(table.schema.get_field_index(name), name, values(table[name]))
        pq.write_table(table, path, compression="zstd")

    return edit


def in_kernel(addresses):
    """Let every third address be one that no signed number is."""
    return pa.array(
        [(1 << 64) - 4096 if at % 3 == 0 else value for at, value in enumerate(addresses.to_pylist())], pa.uint64()
    )


def inverted(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 4 : len(data) // 2] = bytes(255 - byte for byte in data[len(data) // 4 : len(data) // 2])
    path.write_bytes(data)


@pytest.fixture(scope="module")
def remote(store, server, tmp_path_factory):
    """Copy the store into a bucket, with more traces that are damaged and a part of the compacted store that is."""
    folder = tmp_path_factory.mktemp("remote") / "store"
    shutil.copytree(store, folder, ignore=shutil.ignore_patterns("compact"))
    fleet("compact", folder, "--until", "2026-09-22", "--service", "api", "--group", "2")
    parts = sorted((folder / "compact").iterdir())
    assert len(parts) > 1
    (parts[0] / "run_sites.parquet").write_bytes(b"PAR1")
    traces = sorted((folder / "service=cron").rglob("*.varve"))
    rewritten(traces[0], "samples", column("address", in_kernel))
    rewritten(traces[1], "touches", column("page", lambda of: pa.array(["x"] * len(of))))
    rewritten(traces[2], "objects", lambda path: pq.write_table(pq.read_table(path).drop(["born_ns"]), path))
    rewritten(traces[3], "samples", inverted)
    rewritten(traces[4], "sites", lambda path: path.write_bytes(b"no table"))
    inverted(traces[5] / "touches.parquet")
    (traces[6] / "intervals.parquet").unlink()
    client(server).create_dir("spark-store")
    copy(folder, server, "spark-store/fleet")
    return "s3://spark-store/fleet"


def test_workers_that_read_s3_agree_with_duckdb_row_for_row(remote, server, master):
    environment = {**KEYS, "AWS_ENDPOINT_URL": server}
    plain = report(remote, environment=environment)
    assert plain["skipped"]["kinds"] == {"damaged": 8, "half_written": 1}
    assert 0 < plain["runs"]["compacted"] < plain["runs"]["used"] / 2
    spread = report(remote, "--engine", "spark", "--master", master, environment=environment)
    for name, view in plain["views"].items():
        assert spread["views"][name] == view, name
    assert {**spread, "engine": "", "views": {}} == {**plain, "engine": "", "views": {}}
    assert {name for name, view in plain["views"].items() if view["rows"]} == set(plain["views"])


def test_what_spark_compacts_in_s3_duckdb_reads(server, empty_bucket, master, tmp_path):
    environment = {**KEYS, "AWS_ENDPOINT_URL": server}
    made_store(tmp_path, hosts=1)
    copy(tmp_path, server, f"{empty_bucket}/a")
    place = f"s3://{empty_bucket}/a"
    done = fleet("compact", place, "--json", "--engine", "spark", "--master", master, environment=environment)
    assert [part["runs"] for part in json.loads(done.stdout)["parts"]] == [4]
    again = report(place, environment=environment)
    assert (again["runs"]["compacted"], again["views"]) == (4, report(tmp_path)["views"])


def test_a_server_that_fails_workers_for_a_while_is_asked_again(remote, proxy, master):
    environment = {**IMPATIENT, "AWS_ENDPOINT_URL": proxy.url}
    arguments = ("query", remote, "working_set", "--json")
    plain = json.loads(fleet(*arguments, environment=environment).stdout)
    # Only workers read tables.
    proxy.rules = [("fail", "touches.parquet", 2), ("stall", "intervals.parquet", 1)]
    done = fleet(*arguments, "--engine", "spark", "--master", master, environment=environment)
    assert json.loads(done.stdout) == plain
    assert proxy.failed == 3


@pytest.mark.parametrize("kind", ["fail", "stall"])
def test_a_server_that_fails_workers_for_good_is_said(remote, proxy, master, kind):
    proxy.rules = [(kind, "touches.parquet", 1 << 30)]
    environment = {**HASTY, "AWS_ENDPOINT_URL": proxy.url}
    done = fleet("query", remote, "working_set", "--engine", "spark", "--master", master, code=2,
                 environment=environment)  # fmt: skip
    assert f"varve fleet: {remote}/service=" in done.stderr
    assert "touches.parquet cannot be read or written: " in done.stderr
    assert "hint: what may pass was tried 3 times" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_what_a_worker_says_of_the_server_is_found_again():
    text = said("s3://b/k", 'it said "no\n\\"', 3)
    assert failure(f'org.apache.spark: OSError: varve-storage-failed{json.dumps(text)}\n at x("y")') == text
    assert failure("org.apache.spark: it said nothing") is None


def test_keys_go_along_where_the_environment_has_them_and_are_not_shown():
    server = Server("here", None, 1.0, 3)
    assert server.with_keys({"AWS_ACCESS_KEY_ID": "a"}) == server
    keyed = server.with_keys(
        {"AWS_ACCESS_KEY_ID": "aaaa", "AWS_SECRET_ACCESS_KEY": "bbbb", "AWS_SESSION_TOKEN": "cccc"}
    )
    assert keyed.keys == ("aaaa", "bbbb", "cccc")
    assert not any(word in repr(keyed) for word in keyed.keys)


def test_servers_of_tests_that_end_are_seen():
    program = Program(["sh", "-c", "echo begins; exit 3"])
    try:
        program.wait_for("begins")
        with pytest.raises(AssertionError, match="it ended"):
            program.wait_for("never")
    finally:
        program.stop()
