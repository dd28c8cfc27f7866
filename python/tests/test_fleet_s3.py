"""A store in S3: a real server, one that fails, and one that stalls."""

import json

import pytest
from buckets import HASTY, IMPATIENT, KEYS, copy
from fleets import fleet, made_store, report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a store, one trace of which is damaged and one half-written."""
    made = made_store(tmp_path_factory.mktemp("store"), hosts=3)
    folders = sorted(made.rglob("*.varve"))
    (folders[0] / "manifest.json").unlink()
    data = bytearray((folders[1] / "touches.parquet").read_bytes())
    data[len(data) // 2] ^= 1
    (folders[1] / "touches.parquet").write_bytes(data)
    return made


@pytest.fixture
def bucket(server, folder, empty_bucket):
    """Copy the store into a bucket of its own. Gives its name."""
    copy(folder, server, f"{empty_bucket}/fleet/store")
    return empty_bucket


def views(store, **more):
    found = report(store, **more)
    return {name: view["rows"] for name, view in found["views"].items()}, found["skipped"]


def test_a_bucket_is_read_and_compacted_as_a_folder_is(server, bucket, folder):
    environment = {**KEYS, "AWS_ENDPOINT_URL": server}
    place = f"s3://{bucket}/fleet/store"
    local = views(folder)
    assert local[1]["kinds"] == {"damaged": 1, "half_written": 1}
    assert views(place, environment=environment) == local
    done = fleet("compact", place, "--group", 6, "--json", environment=environment)
    assert [part["runs"] for part in json.loads(done.stdout)["parts"]] == [5, 5]
    again = report(place, environment=environment)
    assert again["runs"]["compacted"] == again["runs"]["used"] == 10
    assert {name: view["rows"] for name, view in again["views"].items()} == local[0]
    only = report(place, "--service", "api", environment=environment)
    assert only["runs"]["used"] == 4
    done = fleet("report", place, "--service", "apu", code=2, environment=environment)
    assert done.stderr == "varve fleet: the store has no service apu\nhint: it has api, cron\n"


def test_a_server_that_fails_for_a_while_is_asked_again(proxy, bucket, folder):
    proxy.rules = [("fail", "touches.parquet", 2), ("fail", "manifest.json", 2), ("stall", "objects.parquet", 1)]
    environment = {**IMPATIENT, "AWS_ENDPOINT_URL": proxy.url}
    assert views(f"s3://{bucket}/fleet/store", environment=environment) == views(folder)
    assert proxy.failed == 5


@pytest.mark.parametrize(("kind", "words"), [("fail", "list-type"), ("stall", "list-type"), ("fail", "sites.parquet")])
def test_a_server_that_fails_or_stalls_for_good_is_said(proxy, bucket, kind, words):
    proxy.rules = [(kind, words, 1 << 30)]
    environment = {**HASTY, "AWS_ENDPOINT_URL": proxy.url}
    done = fleet("report", f"s3://{bucket}/fleet/store", code=2, environment=environment)
    assert f"varve fleet: s3://{bucket}/fleet/store" in done.stderr
    assert "hint: what may pass was tried 3 times" in done.stderr
    assert done.stdout == ""
    assert proxy.failed >= 3


def test_a_compaction_that_cannot_write_leaves_no_part(proxy, bucket, folder):
    environment = {**KEYS, "AWS_ENDPOINT_URL": proxy.url}
    place = f"s3://{bucket}/fleet/store"
    proxy.rules = [("fail", "run_lines.parquet", 1 << 30)]
    done = fleet("compact", place, code=2, environment=environment)
    assert "run_lines.parquet cannot be read or written" in done.stderr
    assert proxy.failed
    proxy.rules = []
    found = report(place, environment=environment)
    assert found["runs"]["compacted"] == 0
    assert {name: view["rows"] for name, view in found["views"].items()} == views(folder)[0]
