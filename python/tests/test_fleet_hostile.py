"""What others put into a store, and what others do meanwhile, spoils no report."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import zlib
from pathlib import Path

import made
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fleets import figures, fleet, report, rows, run_id

from varve.fleet._duckdb import DuckDB
from varve.fleet._session import Opened, Session
from varve.fleet._store import Selection, Storage, read_runs


def write(store, name="0", **more):
    about = {"service": "api", "build": "1", "host": "h", "date": "2026-09-22", "seed": 1, "samples": 100, **more}
    return made.write(store, made.Made(id=run_id(name), **about))


def edited(folder, table, change):
    """Change rows of a table; the checksum is right."""
    path = folder / f"{table}.parquet"
    before = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist(change(before.to_pylist()), before.schema), path)
    data = path.read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["checksums"][table] = {"bytes": len(data), "crc32": zlib.crc32(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return made.named(folder)


def first(**values):
    return lambda found: [{**found[0], **values}, *found[1:]]


def manifested(folder, change):
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest).replace("Infinity", "1e999"))
    return made.named(folder)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def part_of(store):
    (part,) = (store / "compact").iterdir()
    return part


def resealed(part, name, table):
    """Replace a file of a part; the checksum is right."""
    pq.write_table(table, part / f"{name}.parquet")
    data = (part / f"{name}.parquet").read_bytes()
    about = json.loads((part / "compact.json").read_text())
    about["files"][name] = {"bytes": len(data), "crc32": zlib.crc32(data)}
    (part / "compact.json").write_text(json.dumps(about))


def test_the_path_of_a_store_is_no_column(tmp_path):
    store = tmp_path / "run=5" / "st*[x]?"
    for at in range(3):
        write(store, str(at), host=f"h{at}")
    before = rows(store, "savings")
    fleet("compact", store)
    assert rows(store, "savings") == before
    assert report(store)["runs"]["compacted"] == 3
    assert before[0]["runs"] == 3


def test_signs_of_patterns_in_names_are_names(tmp_path):
    for at, service in enumerate(("a*b", "a[b", "aXb", "a?b")):
        write(tmp_path, str(at), service=service)
    found = report(tmp_path)
    assert (found["runs"]["used"], found["skipped"]["count"]) == (4, 0)
    assert {row["service"] for row in found["views"]["savings"]["rows"]} == {"a*b", "a[b", "aXb", "a?b"}
    fleet("compact", tmp_path)
    again = report(tmp_path)
    assert figures(again) == figures(found)
    assert (again["runs"]["compacted"], again["skipped"]["count"]) == (4, 0)


MANIFESTS = {
    "endless": lambda m: m["checksums"]["touches"].update(bytes=float("inf")),
    "half": lambda m: m["checksums"]["touches"].update(crc32=1.5),
    "surrogate": lambda m: m["target"].update(command=["\ud800"]),
    "truth": lambda m: m["target"].update(exit_code=True),
    "ages": lambda m: m["clock"].update(start_ns=-(2**63) + 1, end_ns=2**63 - 1),
    "backwards": lambda m: m["clock"].update(start_ns=5, end_ns=4),
    "losses": lambda m: m.update(losses={"a": -(2**63) + 1, "b": -(2**63) + 1}),
    "kernel": lambda m: m["machine"].update(kernel=["6.1"]),
}
TABLES = {
    "page": ("touches", first(page=2**64 - 1)),
    "pages": ("touches", first(pages=2**32 - 1)),
    "many pages": ("touches", lambda found: [{**row, "pages": 2**28} for row in found]),
    "objects": ("objects", lambda found: [{**row, "bytes": 2**62} for row in found]),
    "large objects": ("objects", lambda found: [{**row, "bytes": 2**36} for row in found * 8]),
    "addresses": ("objects", first(address=2**62)),
    "born": ("objects", first(born_ns=2**64 - 1)),
    "end": ("intervals", first(end_ns=2**63)),
    "backwards": ("intervals", first(start_ns=10**12)),
    "intervals": ("intervals", lambda found: [{**row, "interval": 0} for row in found]),
    "sites": ("sites", lambda found: [{**row, "site": 0} for row in found]),
    "weights": ("samples", lambda found: [{**row, "weight_ns": 2**62} for row in found]),
    "times": ("samples", first(time_ns=2**64 - 1)),
}


def hostile(store):
    """Put one trace of each kind beside a good one. Gives the paths of those that are to be skipped."""
    write(store, "good")
    bad = []
    for name, change in MANIFESTS.items():
        bad.append(manifested(write(store, f"manifest {name}"), change))
    for name, (table, change) in TABLES.items():
        bad.append(edited(write(store, f"table {name}"), table, change))
    return {str(folder.relative_to(store)) for folder in bad}


def test_traces_that_cannot_be_true_are_skipped(tmp_path):
    bad = hostile(tmp_path)
    found = report(tmp_path, "--memory", "500MB")
    assert {entry["path"]: entry["kind"] for entry in found["skipped"]["traces"]} == dict.fromkeys(bad, "damaged")
    assert found["runs"]["used"] == 1
    done = fleet("compact", tmp_path, "--json")
    assert json.loads(done.stdout)["parts"][0]["runs"] == 1
    for path in bad:
        shutil.rmtree(tmp_path / path)
    assert figures(report(tmp_path)) == figures(found)


def test_both_engines_skip_the_same(tmp_path):
    bad = hostile(tmp_path)
    plain = rows_and_skipped(tmp_path)
    odd = write(tmp_path, "odd", service="a*[b").relative_to(tmp_path)
    spread = rows_and_skipped(tmp_path, "--engine", "spark")
    (pattern,) = [entry for entry in spread["skipped"]["traces"] if entry["path"] == str(odd)]
    assert "takes for a pattern" in pattern["why"]
    spread["skipped"]["traces"].remove(pattern)
    # The view reads no samples.
    unread = sum(table == "samples" for table, _ in TABLES.values())
    assert bad.issuperset(entry["path"] for entry in plain["skipped"]["traces"])
    assert plain["skipped"]["count"] == len(bad) - unread
    assert {entry["path"]: entry["why"] for entry in spread["skipped"]["traces"]} == {
        entry["path"]: entry["why"] for entry in plain["skipped"]["traces"]
    }
    assert spread["rows"] == plain["rows"]


def rows_and_skipped(store, *arguments):
    return json.loads(fleet("query", store, "savings", "--json", *arguments).stdout)


def test_names_that_are_no_text_and_deep_folders_are_skipped(tmp_path):
    good = write(tmp_path)
    shutil.copytree(good.parents[3], tmp_path / os.fsdecode(b"service=\xff\xfe"))
    at = os.open(good, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    try:
        found = report(tmp_path)
        assert found["runs"]["used"] == 1
        assert [(entry["kind"], entry["why"]) for entry in found["skipped"]["traces"]] == [
            ("damaged", "its name is no text")
        ]
        done = fleet("report", tmp_path, "--html", tmp_path / "page.html")
        assert "its name is no text" in done.stderr
    finally:
        # What removes folders goes down as deep as they are.
        subprocess.run(["rm", "-rf", good / "d"], check=True)


def test_errors_have_no_signs_for_the_terminal(tmp_path):
    strange = tmp_path / "\x1b]0;x\x07\x1b[31m"
    said = fleet("report", strange, code=2).stderr
    assert "there is no folder" in said
    write(tmp_path, service="\x1b[31m*")
    said += fleet("report", tmp_path).stderr + fleet("query", tmp_path, "\x1b[31m", code=2).stderr
    assert "\x1b" not in said
    assert "\x07" not in said


def test_the_page_is_written_whole_or_not_at_all(tmp_path):
    store = tmp_path / "store"
    folder = write(store)
    victim, link, fifo = (tmp_path / name for name in ("victim", "link.html", "fifo"))
    victim.write_text("kept")
    link.symlink_to(victim)
    os.mkfifo(fifo)
    for path in (link, fifo, tmp_path, tmp_path / "none" / "page.html"):
        said = fleet("report", store, "--html", path, code=2).stderr
        assert "cannot be written" in said
        assert "\nhint: " in said
    assert victim.read_text() == "kept"
    page = tmp_path / "page.html"
    page.write_text("before")
    limited = f"ulimit -f 1; exec {sys.executable} -m varve.fleet report {store} --html {page}"
    # No file may be longer than 1 KiB, as on a disk that is full; DuckDB's own file is as small as that nowhere.
    done = subprocess.run(["/bin/bash", "-c", limited], capture_output=True, check=False)
    assert done.returncode != 0
    assert page.read_text() == "before"
    assert not list(tmp_path.glob(".varve-*"))
    fleet("report", store, "--html", page)
    assert page.read_text().startswith("<!DOCTYPE")
    assert mode(page) == (0o644 if mode(folder) & 5 == 5 else 0o600)


def test_files_are_as_closed_as_the_most_closed_trace(tmp_path):
    store = tmp_path / "store"
    folders = [write(store, str(at), host=f"h{at}") for at in range(2)]
    for open_ones in (2, 1):
        for at, folder in enumerate(folders):
            folder.chmod(0o755 if at < open_ones else 0o700)
        fleet("report", store, "--html", tmp_path / "page.html")
        fleet("compact", store)
        expected = 0o644 if open_ones == 2 else 0o600
        part = part_of(store)
        assert mode(tmp_path / "page.html") == expected
        assert {mode(file) for file in part.iterdir()} == {expected}
        assert mode(part) == expected | (0o111 if open_ones == 2 else 0o100)
        if open_ones == 1:
            # A page of what is compacted is as closed as the part.
            for folder in folders:
                shutil.rmtree(folder)
            fleet("report", store, "--html", tmp_path / "page.html")
            assert mode(tmp_path / "page.html") == 0o600
        shutil.rmtree(store / "compact")


def test_parts_that_no_compaction_wrote_are_skipped(tmp_path):
    store = tmp_path / "store"
    for at in range(2):
        write(store, str(at), host=f"h{at}")
    before = report(store)
    fleet("compact", store)
    assert report(store)["runs"]["compacted"] == 2
    kept = tmp_path / "kept"
    shutil.copytree(part_of(store), kept)

    def without(name, column):
        table = pq.read_table(kept / f"{name}.parquet")
        at = table.column_names.index(column)
        return table.set_column(at, column, pa.nulls(len(table), table.schema.field(column).type))

    def with_run(number):
        table = pq.read_table(kept / "run_sites.parquet")
        at = table.column_names.index("run")
        return table.set_column(at, "run", pa.array([number] * len(table), pa.int64()))

    runs = pq.read_table(kept / "runs.parquet")
    cases = [
        ("runs", runs.slice(0, 0)),
        ("runs", runs.slice(0, 1)),
        ("runs", pa.concat_tables([runs.slice(0, 1), runs.slice(0, 1)])),
        ("runs", without("runs", "id")),
        ("runs", without("runs", "service")),
        ("runs", without("runs", "losses")),
        ("run_sites", with_run(2)),
        ("run_sites", with_run(-1)),
        ("run_sites", without("run_sites", "run")),
        ("run_sites", runs),
    ]
    for name, table in cases:
        part = part_of(store)
        shutil.rmtree(part)
        shutil.copytree(kept, part)
        resealed(part, name, table)
        found = report(store)
        assert figures(found) == figures(before), name
        assert found["skipped"]["kinds"] == {"damaged": 1}, name
    part = part_of(store)
    (part / "run_sites.parquet").write_bytes(b"garbage")
    about = json.loads((part / "compact.json").read_text())
    about["files"]["run_sites"] = {"bytes": 7, "crc32": zlib.crc32(b"garbage")}
    (part / "compact.json").write_text(json.dumps(about))
    assert figures(report(store)) == figures(before)


def test_a_compaction_removes_no_folder_of_somebody_else(tmp_path):
    write(tmp_path)
    foreign = [tmp_path / "compact" / "notes", tmp_path / "compact" / "v1-0123456789abcdef"]
    for folder in foreign:
        folder.mkdir(parents=True)
        (folder / "mine.txt").write_text("kept")
    left = tmp_path / "compact" / "v1-00000000deadbeef"
    left.mkdir()
    (left / "runs.parquet").write_text("half")
    fleet("compact", tmp_path)
    assert all((folder / "mine.txt").read_text() == "kept" for folder in foreign)
    assert not left.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_traces_of_other_users_are_skipped(tmp_path):
    tmp_path.chmod(0o755)
    # pytest's own folders, and those of its workers, are closed to others.
    for above in tmp_path.parents:
        if above.name.startswith(("pytest-", "popen-")):
            above.chmod(0o755)
    mine, folder, table = (write(tmp_path, name, host=name) for name in ("mine", "folder", "table"))
    for host in (mine, folder, table):
        host.chmod(0o755)
    folder.chmod(0o700)
    (table / "touches.parquet").chmod(0o600)
    write(tmp_path, "closed", service="closed")
    (tmp_path / "service=closed").chmod(0o700)
    (tmp_path / "compact").mkdir(mode=0o700)
    program = [sys.executable, "-m", "varve.fleet", "report", str(tmp_path), "--json"]
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *program]
    done = subprocess.run(nobody, capture_output=True, text=True, check=False, env={**os.environ, "HOME": "/"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["runs"]["used"] == 1
    assert {entry["path"] for entry in found["skipped"]["traces"]} == {
        str(path.relative_to(tmp_path)) for path in (folder, table, tmp_path / "service=closed", tmp_path / "compact")
    }
    assert found["skipped"]["kinds"] == {"unreadable": 4}


def test_traces_that_are_removed_meanwhile_spoil_nothing(tmp_path):
    folders = [write(tmp_path, str(at), host=f"h{at}") for at in range(5)]
    storage = Storage(str(tmp_path))
    found = storage.list()
    # As `--max-disk` does: with its empty folders.
    shutil.rmtree(folders[0].parents[1])
    runs, skipped = read_runs(storage, found, Selection(), [])
    assert len(runs) == 4
    shutil.rmtree(folders[1].parents[1])
    engine = DuckDB(memory="500MB", threads=1)
    examine, add = engine.examine, engine.add_traces

    def before_it_examines(*arguments):
        shutil.rmtree(folders[2].parents[1], ignore_errors=True)
        return examine(*arguments)

    def before_it_adds(*arguments):
        shutil.rmtree(folders[3].parents[1], ignore_errors=True)
        return add(*arguments)

    engine.examine, engine.add_traces = before_it_examines, before_it_adds
    session = Session(storage, engine, Opened([], frozenset(), runs, skipped), ["run_sites"], tmp_path)
    assert [run.id for run in session.runs] == [folders[4].stem]
    assert {(entry.path.rpartition("/")[2], entry.kind) for entry in session.skipped} == {
        (folder.name, "removed") for folder in folders[:4]
    }
    engine.close()


def test_folders_that_vanish_while_they_are_listed_are_none(tmp_path, monkeypatch):
    gone = write(tmp_path, "0", host="gone").parents[1]
    write(tmp_path, "1", host="here")
    scandir = os.scandir

    def vanishing(path):
        if str(path).endswith("host=gone"):
            shutil.rmtree(gone)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    found = Storage(str(tmp_path)).list()
    assert (len(found.traces), list(found.skipped)) == (1, [])


def test_numbers_and_sizes_have_bounds(tmp_path):
    write(tmp_path)
    for arguments, words in (
        (("--threads", "99999"), "threads are more than"),
        (("--threads", "99999999999"), "threads are more than"),
        (("--limit", "9223372036854775808"), "is not a whole number"),
        (("--limit", ""), "is not a whole number"),
        (("--since", ""), "is not a day"),
        (("--memory", "-1"), "is not a size"),
        (("--memory", "0"), "is not a size"),
        (("--memory", "1KB"), "is less than"),
        (("--engine", "x"), "invalid choice"),
    ):
        said = fleet("report", tmp_path, *(f"{arguments[0]}={word}" for word in arguments[1:]), code=2).stderr
        assert words in said
        assert "\nhint: " in said
        assert "_count" not in said
        assert "usage" not in said
    assert report(tmp_path, "--threads", "2")["runs"]["used"] == 1
    fleet("report", tmp_path, "--limit", str(2**63 - 1))
    said = fleet("report", "", code=2).stderr
    assert "is empty" in said
    assert "\nhint: " in said


def test_own_queries_give_rows_and_change_nothing(tmp_path):
    store = tmp_path / "store"
    write(store)
    fleet("compact", store)
    write(store, "1", host="h1")
    query = tmp_path / "q.sql"
    target = tmp_path / "written"
    for sql in (
        "",
        " ;",
        "CREATE TABLE x (y INT)",
        "DROP VIEW run_sites",
        f"COPY (SELECT * FROM runs) TO '{target}'",
        f"SELECT 1; COPY (SELECT 1) TO '{target}'",
        "SET threads = 1",
        "SELEC",
        f"ATTACH '{target}'",
        "SELECT * FROM read_text('/etc/hostname')",
    ):
        query.write_text(sql)
        said = fleet("query", store, query, code=2).stderr
        assert "Traceback" not in said
        assert not target.exists()
    assert "there is no query" in fleet("query", store, "/dev/null", code=2).stderr
    query.write_text(
        "-- mine\nSELECT count(*) AS n, sum(s.objects)::BIGINT AS o FROM runs JOIN run_sites s USING (run) -- end\n"
    )
    (row,) = rows(store, query)
    assert row["n"] == 86
    done = json.loads(fleet("query", store, query, "--json").stdout)
    assert (done["runs"], done["skipped"]["count"]) == (2, 0)


def left(folder):
    return list(Path(folder).glob("varve-fleet-*"))


def on_full_disk(folder, command):
    """Run a command that sees a file system of 64 KiB at a folder, in a mount namespace of its own."""
    script = f"mount -t tmpfs -o size=64k none {folder} && echo before > {folder}/page.html && {command}; echo $?; "
    script += f"cat {folder}/page.html; ls -A {folder}"
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=900
    )


def test_a_disk_that_is_full_leaves_the_page_that_was_there(tmp_path):
    store, folder = tmp_path / "store", tmp_path / "full"
    write(store)
    folder.mkdir()
    command = f"{sys.executable} -m varve.fleet report {store} --html {folder}/page.html"
    # The page has a few KiB: what lies beside it leaves it a page of memory.
    full = on_full_disk(folder, f"head -c 57344 /dev/zero > {folder}/other; {command}")
    code, *rest = full.stdout.splitlines()[-4:]
    assert (code, rest) == ("2", ["before", "other", "page.html"])
    assert f"varve fleet: {folder}/page.html cannot be written: No space left on device\nhint: " in full.stderr
    # There is room: so it was the disk.
    room = on_full_disk(folder, command)
    assert "<!DOCTYPE" in room.stdout
    assert room.stdout.splitlines()[-1] == "page.html"
    assert list(folder.iterdir()) == []


# The main thread waits for a lock that it holds: its handlers never run.
STUCK = """
import ctypes, sys
from varve._temporary import Folder
from varve.fleet import _signals

if sys.argv[1] == "watched":
    _signals.listen()
else:
    _signals._watch = lambda reading: None
    _signals.listen()
folder = Folder("varve-fleet-")
lock = ctypes.create_string_buffer(64)
take = ctypes.CDLL(None).pthread_mutex_lock
take(lock)
print("waits", flush=True)
take(lock)
"""


def wait_for_futex(pid):
    """Wait until the main thread waits for a lock, twice in a row: the interpreter's own is held for moments."""
    seen, deadline = 0, time.monotonic() + 600
    while seen < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
        number = Path(f"/proc/{pid}/syscall").read_text().split()[0]
        seen = seen + 1 if number in ("202", "98") else 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["watched", "not watched"])
def test_a_command_that_does_not_come_to_its_handlers_is_ended_and_leaves_nothing(tmp_path, kind, number):
    command = ["env", "--default-signal=INT,TERM,HUP", sys.executable, "-c", STUCK, kind]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "waits\n"
        assert len(left(tmp_path)) == 1
        wait_for_futex(process.pid)
        process.send_signal(number)
        if kind == "watched":
            assert process.wait(600) == 128 + number
            assert left(tmp_path) == []
        else:
            # Who ends the others is the watching thread.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()


# Longer than anybody waits.
ENDLESS = """SELECT sum(a.range * b.range % 7) AS s
    FROM range(10000000) a, range(10000000) b, (SELECT max(pages) FROM run_working_sets)"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_signals_end_a_query_and_leave_nothing(tmp_path, number):
    store, folder, query = tmp_path / "store", tmp_path / "tmp", tmp_path / "q.sql"
    write(store)
    folder.mkdir()
    query.write_text(ENDLESS)
    # Whoever runs the tests may ignore signals, and children inherit that.
    default = ["env", "--default-signal=INT,TERM,HUP"]
    command = [*default, sys.executable, "-m", "varve.fleet", "query", str(store), str(query), "--threads", "1"]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        deadline = time.monotonic() + 600
        while len(left(folder)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(number)
        # The query itself has no end: that it ends is what the signal did.
        _, said = process.communicate(timeout=600)
    assert said == ""
    if number == signal.SIGKILL:
        # What a killed one left, the next one removes; what is in use, or is no folder of a run, stays.
        assert len(left(folder)) == 2
        (folder / "varve-fleet-file").write_text("kept")
        (folder / "varve-fleet-link").symlink_to(store)
        fleet("query", store, "savings", environment={"TMPDIR": str(folder)})
        assert {path.name for path in left(folder)} == {"varve-fleet-file", "varve-fleet-link"}
    else:
        assert process.returncode == 128 + number
        assert left(folder) == []
