"""What is pushed to S3 is what `varve push` puts into a folder: whole, once, and gone on with."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from buckets import IMPATIENT, KEYS, client, objects
from fleets import fleet, report

from varve._binary import binary
from varve.fleet import _push as pushing
from varve.fleet._store import Storage


def push(server, place, *arguments, code=0, keys=KEYS, **more):
    """Push to a place in S3. Gives what was said."""
    environment = {**keys, "AWS_ENDPOINT_URL": server}
    return fleet("push", *arguments, "--to", f"s3://{place}", code=code, environment=environment, **more).stderr


def pushed_to_folder(folder, *arguments):
    """Push to a folder. Gives the contents of all files, by their names there."""
    subprocess.run([binary(), "push", *map(str, arguments), "--to", folder], check=True, capture_output=True)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def puts(proxy):
    return [line.rpartition("/")[2].split("?")[0] for line in proxy.seen if line.startswith("PUT")]


def edited(trace, folder, *, manifest=None, **tables):
    """Copy a trace; of each named table and of the manifest, what the functions make of it."""
    shutil.copytree(trace, folder)
    content = json.loads((folder / "manifest.json").read_text())
    for name, edit in tables.items():
        path = folder / f"{name}.parquet"
        table = pq.read_table(path)
        pq.write_table(pa.Table.from_pylist(edit(table.to_pylist()), table.schema), path, compression="zstd")
        data = path.read_bytes()
        content["checksums"][name] = {"bytes": len(data), "crc32": zlib.crc32(data)}
    if manifest is not None:
        manifest(content)
    (folder / "manifest.json").write_text(json.dumps(content))
    return folder


def each(**values):
    return lambda rows: [{**row, **values} for row in rows]


def without_build_id(inode):
    def edit(rows):
        program = os.path.realpath(sys.executable)
        about = os.stat(program).st_ino  # noqa: PTH116
        return [{**row, "path": program, "inode": about + inode, "build_id": None} for row in rows]

    return edit


def become(rows):
    """Make the process become another program when it began."""
    return [*rows, {**rows[-1], "exe": "/opt/a b/ü~.sh", "file": None}]


CASES = {
    "as it is": {},
    "names of one's own": {"names": ["--service", "../a b~ü", "--build", "1/2", "--host", ".."]},
    "no build id, the file is there": {
        "mappings": without_build_id(0),
        "processes": each(exe=os.path.realpath(sys.executable), file=None),
    },
    "no build id, the file is another": {
        "mappings": without_build_id(1),
        "processes": each(exe=os.path.realpath(sys.executable), file=None),
    },
    "no mappings": {"mappings": lambda _: []},
    "a program that becomes another": {"processes": become},
    "a file behind a name": {"processes": each(exe="/proc/self/exe", file="/none")},
    "a program without a name": {"processes": each(exe="/", file=None)},
    "a program above": {"processes": each(exe="/usr/bin/..", file=None)},
    "a command alone": {"manifest": lambda m: m["target"].update(pid=1, command=["./b/in me", "x"])},
    "nothing": {"manifest": lambda m: m["target"].update(pid=1, command=[])},
    "before 2001": {"manifest": lambda m: m["clock"].update(start_unix_ns=951_782_400_000_000_000)},
    "no nanoseconds": {"manifest": lambda m: m["clock"].update(unit="ticks", start_unix_ns=0)},
}


@pytest.mark.parametrize("case", CASES)
def test_names_and_contents_are_those_of_a_folder(server, empty_bucket, recorded, tmp_path, case):
    changes = dict(CASES[case])
    names = changes.pop("names", [])
    trace = edited(recorded.trace.folder, tmp_path / "t.varve", **changes)
    local = pushed_to_folder(tmp_path / "store", trace, *names)
    assert len(local) > 10
    said = push(server, f"{empty_bucket}/a/b", trace, *names)
    assert said.startswith(f"varve: pushed {trace} to s3://{empty_bucket}/a/b/service=")
    assert objects(server, f"{empty_bucket}/a/b") == local


def test_the_binary_hands_over(server, empty_bucket, recorded):
    trace = recorded.trace.folder
    done = subprocess.run(
        [binary(), "push", trace, "--service=a b", "--to", f"s3://{empty_bucket}/a"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **KEYS, "AWS_ENDPOINT_URL": server, "VARVE_PYTHON": sys.executable},
    )
    assert f"varve: pushed {trace} to s3://{empty_bucket}/a/service=a%20b/build=" in done.stderr
    assert any(name.endswith("/manifest.json") for name in objects(server, f"{empty_bucket}/a"))


def test_pushing_twice_changes_nothing_and_says_so(proxy, empty_bucket, recorded):
    trace = recorded.trace.folder
    push(proxy.url, empty_bucket, trace)
    assert puts(proxy)[-1] == "manifest.json"
    assert len(puts(proxy)) == len(recorded.trace.tables) + 1
    proxy.seen.clear()
    said = push(proxy.url, empty_bucket, trace, trace)
    assert said.count("is there already") == 2
    assert len(proxy.seen) == 2
    assert not puts(proxy)


def test_a_push_that_is_killed_is_gone_on_with(proxy, server, empty_bucket, recorded, tmp_path):
    trace, tables = recorded.trace.folder, len(recorded.trace.tables)
    local = pushed_to_folder(tmp_path / "store", trace)
    proxy.rules = [("stall", "touches.parquet", 1)]
    environment = {**KEYS, "AWS_ENDPOINT_URL": proxy.url}
    killed = subprocess.Popen(
        [sys.executable, "-m", "varve.fleet", "push", trace, "--to", f"s3://{empty_bucket}/a"],
        env={**os.environ, **environment},
    )
    try:
        until = time.monotonic() + 600
        # All others are there, and the one that does not get through is on its way.
        while len(objects(server, f"{empty_bucket}/a")) < tables - 1 or not proxy.failed:
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        killed.kill()
        killed.wait(600)
    found = report(f"s3://{empty_bucket}/a", environment={**KEYS, "AWS_ENDPOINT_URL": server})
    assert (found["skipped"]["kinds"], found["runs"]["used"]) == ({"half_written": 1}, 0)
    # One of them is of the right length, and not what was sent.
    name = next(name for name in local if name.endswith("sites.parquet"))
    with client(server).open_output_stream(f"{empty_bucket}/a/{name}") as stream:
        stream.write(bytes(len(local[name])))
    proxy.seen.clear()
    said = push(proxy.url, f"{empty_bucket}/a", trace)
    assert f"; {tables - 2} of its tables were there" in said
    assert puts(proxy)[-1] == "manifest.json"
    assert sorted(puts(proxy)) == ["manifest.json", "sites.parquet", "touches.parquet"]
    assert objects(server, f"{empty_bucket}/a") == local


def test_a_table_that_went_comes_back(proxy, empty_bucket, server, recorded):
    trace = recorded.trace.folder
    push(server, empty_bucket, trace)
    whole = objects(server, empty_bucket)
    for name in whole:
        if name.endswith("objects.parquet"):
            client(server).delete_file(f"{empty_bucket}/{name}")
    push(proxy.url, empty_bucket, trace)
    assert puts(proxy) == ["objects.parquet", "manifest.json"]
    assert objects(server, empty_bucket) == whole


def test_a_server_that_fails_for_a_while_gets_all(proxy, server, empty_bucket, recorded, tmp_path):
    local = pushed_to_folder(tmp_path / "store", recorded.trace.folder)
    proxy.rules = [("fail", "list-type", 1), ("fail", "touches.parquet", 2), ("stall", "sites.parquet", 1),
                   ("fail", "manifest.json", 2)]  # fmt: skip
    push(proxy.url, f"{empty_bucket}/a", recorded.trace.folder, keys=IMPATIENT)
    assert proxy.failed == 6
    assert objects(server, f"{empty_bucket}/a") == local


def test_a_server_that_fails_for_good_is_said_once(proxy, server, empty_bucket, recorded):
    proxy.rules = [("fail", "touches.parquet", 1 << 30)]
    trace = recorded.trace.folder
    # Six tries, and pauses of 31 s at most.
    said = push(proxy.url, empty_bucket, trace, trace, code=1)
    assert re.search(r"(?m)^error: s3://\S+/touches.parquet cannot be read or written: .*HTTP status 503", said), said
    assert said.count("error: ") == 1
    assert "hint: what may pass was tried 6 times" in said
    assert "varve: 1 more trace was not tried" in said
    assert proxy.failed == pushing.TRIES
    assert not [name for name in objects(server, empty_bucket) if name.endswith("manifest.json")]


def test_what_is_damaged_or_no_trace_stays_out_and_the_others_go_in(server, empty_bucket, recorded, tmp_path):
    trace = recorded.trace.folder
    made_folders = {}

    def spoilt(why, spoil, manifest=None):
        folder = edited(trace, tmp_path / f"{len(made_folders)}.varve", manifest=manifest)
        spoil(folder)
        made_folders[folder] = why

    def replaced(name, make):
        def spoil(folder):
            (folder / name).rename(tmp_path / f"{folder.name}-{name}")
            make(folder / name)

        return spoil

    def linked(path):
        path.symlink_to(tmp_path / f"{path.parent.name}-{path.name}")

    nothing = replaced("losses.parquet", lambda path: shutil.copy(trace / path.name, path))
    outside = {"../evil": {"bytes": 4, "crc32": zlib.crc32(b"evil")}}
    (tmp_path / "evil.parquet").write_bytes(b"evil")
    spoilt("sites.parquet is damaged: it is a symbolic link", replaced("sites.parquet", linked))
    spoilt("manifest.json: it is a symbolic link", replaced("manifest.json", linked))
    spoilt("sites.parquet is damaged: it is no regular file", replaced("sites.parquet", os.mkfifo))
    spoilt("sites.parquet is damaged: it is no regular file", replaced("sites.parquet", os.mkdir))
    spoilt("faults.parquet is damaged: it is missing", lambda folder: (folder / "faults.parquet").unlink())
    spoilt(
        "touches.parquet is damaged: it has 9 bytes",
        lambda folder: (folder / "touches.parquet").write_bytes(b"123456789"),
    )
    spoilt(
        "touches.parquet is damaged: it has more", lambda folder: (folder / "touches.parquet").open("ab").write(b"1")
    )
    spoilt("manifest.json is damaged: ", lambda folder: (folder / "manifest.json").write_text('{"format": "va'))
    spoilt("manifest.json is damaged: ", lambda folder: (folder / "manifest.json").write_text("[" * 100_000))
    spoilt("has no manifest.json", lambda folder: (folder / "manifest.json").unlink())
    spoilt("'../evil', which no trace has", nothing, lambda m: m["checksums"].update(outside))
    spoilt("no checksum of the table mappings", nothing, lambda m: m["checksums"].pop("mappings"))
    spoilt("is not in order", nothing, lambda m: m.update(state="recording"))
    spoilt("it has version 9", nothing, lambda m: m.update(version=9))
    spoilt("manifest.json is damaged: ", nothing, lambda m: m["clock"].update(start_unix_ns=-1))
    spoilt("a name that is no text", nothing, lambda m: m["target"].update(pid=1, command=["\ud800"]))
    spoilt("cannot open ", shutil.rmtree)
    said = push(server, f"{empty_bucket}/a", *made_folders, trace, code=1)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(made_folders), said
    for error, (folder, why) in zip(errors, made_folders.items(), strict=True):
        assert str(folder) in error
        assert why in error
    assert len([name for name in objects(server, f"{empty_bucket}/a") if name.endswith("manifest.json")]) == 1


def test_arguments_that_are_wrong_are_refused(recorded, tmp_path):
    trace = recorded.trace.folder
    for arguments, why in (
        (["push", trace, "--to", tmp_path], "is not in S3"),
        (["push", trace, "--to", "s3://"], "names no bucket"),
        (["push", trace, "--to", "s3://b/c", "--host", ""], "it is empty"),
        (["push", trace, "--to", "s3://b/c", "--host", "/" * 70], "it is longer than 200 bytes"),
        (["push", "--to", "s3://b/c"], "TRACE"),
    ):
        assert why in fleet(*arguments, code=2).stderr


@pytest.fixture
def storage(server, empty_bucket, monkeypatch):
    """Give a store in this process."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, value)
    return Storage(f"s3://{empty_bucket}/a")


@pytest.mark.parametrize("size", [1, (1 << 20) - 1, 1 << 20, (3 << 20) + 5, 25 << 20])
def test_a_file_that_changes_meanwhile_is_never_of_the_right_length(storage, tmp_path, size):
    path = tmp_path / "touches.parquet"
    good = os.urandom(size)
    for name, content, is_good in (
        ("good", good, True),
        ("other", good[:-1] + bytes([good[-1] ^ 1]), False),
        ("first", bytes([good[0] ^ 1]) + good[1:], False),
        ("long", good + b"1", False),
        ("longer", good + good, False),
        ("short", good[:-1], False),
    ):
        path.write_bytes(content)
        with path.open("rb") as file:
            table = pushing._Table("touches", str(path), file, size, zlib.crc32(good))  # noqa: SLF001
            if is_good:
                storage.send(name, table.pieces())
                assert storage.read(name) == good
            else:
                with pytest.raises(pushing.UnfitError, match="is damaged"):
                    storage.send(name, table.pieces())
                assert storage.sizes("").get(name, 0) < size


def test_names_that_are_too_long_stay_distinct():
    """As the binary has it (`crates/varve/src/commands/push/naming.rs`)."""
    assert pushing.short("a" * 200) == "a" * 200
    assert pushing.short("\u6f22" * 60) == "%E6%BC%A2" * 20 + "-f2bb5ab56076df21"
    assert pushing.short("\u6f22" * 60) != pushing.short("\u6f22" * 61)
    assert len(pushing.short("x/" * 1000)) <= pushing.MAX_NAME


def test_files_that_a_user_may_not_read_are_not_read_for_that_user(tmp_path):
    folder = tmp_path.resolve()
    program = folder / "program"
    program.write_text("text")
    own = os.geteuid()
    for mode in (0o600, 0o640, 0o604):
        program.chmod(mode)
        pushing.open_named(str(program), own).close()
        with pytest.raises(PermissionError):
            pushing.open_named(str(program), own + 1)
    program.chmod(0o644)
    folder.chmod(0o700)
    with pytest.raises(PermissionError):
        pushing.open_named(str(program), own + 1)
    (folder / "link").symlink_to(program)
    for other in ("/dev/null", str(folder), str(folder / "link")):
        with pytest.raises(OSError, match="no regular file"):
            pushing.open_named(other, own)


def test_a_build_without_an_id_has_its_hash(tmp_path):
    # As in push.rs.
    for size, expected in (
        (0, "af5570f5a1810b7af78caf4bc70a660f"),
        (100, "6f7e61d01e75215762f708a2727b9650"),
        (10_000, "29e3194e821b97b5565d43a5156ad97a"),
    ):
        path = tmp_path / "program"
        path.write_bytes(bytes(at % 251 for at in range(size)))
        with path.open("rb") as file:
            assert pushing.htl_hash(file, size) == expected


def test_what_was_pushed_is_what_is_asked(server, empty_bucket, recorded):
    for service in ("api", "cron"):
        push(server, f"{empty_bucket}/a", recorded.trace.folder, "--service", service)
    environment = {**KEYS, "AWS_ENDPOINT_URL": server}
    # The same trace in two places counts once.
    found = report(f"s3://{empty_bucket}/a", environment=environment)
    assert (found["runs"]["used"], found["skipped"]["kinds"]) == (1, {"duplicate": 1})


def test_a_bucket_that_is_not_there_is_to_be_made(server, recorded):
    said = push(server, "no-such-bucket/store", recorded.trace.folder, code=1)
    assert (
        said
        == "error: there is no bucket no-such-bucket\nhint: make it first, as with `aws s3 mb s3://no-such-bucket`\n"
    )
    environment = {**KEYS, "AWS_ENDPOINT_URL": server}
    for command in ("report", "compact"):
        done = fleet(command, "s3://no-such-bucket/store", code=2, environment=environment)
        assert "varve fleet: there is no bucket no-such-bucket\nhint: make it first" in done.stderr
