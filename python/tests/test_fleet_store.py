"""What is read of a store: traces that are whole, each once, as they lie there or compacted."""

import json
import shutil
import subprocess
import sys
import zlib

import made
import pyarrow.parquet as pq
from fleets import DAY_NS, START_NS, figures, fleet, report, run_id


def test_damaged_traces_are_skipped_counted_and_named(changed):
    folders = sorted(changed.rglob("*.varve"))
    expected = {}

    def broken(kind, change):
        folder = folders.pop()
        folder = change(folder) or folder
        expected[str(folder.relative_to(changed))] = kind

    def edit(folder, **values):
        path = folder / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    def turn_bit(folder):
        data = bytearray((folder / "touches.parquet").read_bytes())
        data[len(data) // 2] ^= 1
        (folder / "touches.parquet").write_bytes(data)

    def no_json(folder):
        (folder / "manifest.json").write_text("{")

    def no_table(folder):
        (folder / "sites.parquet").write_bytes(b"PAR1")

    def other_columns(folder):
        # The checksum is right: only reading it shows it.
        table = pq.read_table(folder / "objects.parquet").drop_columns(["address"])
        pq.write_table(table, folder / "objects.parquet")
        data = (folder / "objects.parquet").read_bytes()
        sums = json.loads((folder / "manifest.json").read_text())["checksums"]
        edit(folder, checksums={**sums, "objects": {"bytes": len(data), "crc32": zlib.crc32(data)}})
        return made.named(folder)

    broken("half_written", lambda folder: (folder / "manifest.json").unlink())
    broken("future_version", lambda folder: edit(folder, version=2))
    broken("unfinished", lambda folder: edit(folder, state="recording"))
    broken("damaged", no_json)
    broken("damaged", lambda folder: edit(folder, clock=None))
    broken("damaged", lambda folder: (folder / "objects.parquet").unlink())
    broken("damaged", no_table)
    broken("damaged", turn_bit)
    broken("damaged", other_columns)
    rest = len(folders)
    again = folders[0].parent.parent / "date=2026-10-01" / folders[0].name
    shutil.copytree(folders[0], again)
    expected[str(again.relative_to(changed))] = "duplicate"
    strange = changed / "service=api" / "build=1111" / "host=h" / "date=2026-09-22" / "strange.varve"
    shutil.copytree(folders[0], strange)
    expected[str(strange.relative_to(changed))] = "damaged"
    (changed / "service=link").symlink_to(changed / "service=api")

    found = report(changed)
    skipped = found["skipped"]
    assert {entry["path"]: entry["kind"] for entry in skipped["traces"]} == expected
    assert all(entry["why"] for entry in skipped["traces"])
    kinds = {"damaged": 7, "duplicate": 1, "future_version": 1, "half_written": 1, "unfinished": 1}
    assert (skipped["count"], skipped["kinds"]) == (11, kinds)
    assert found["runs"]["used"] == rest == sum(row["runs"] for row in found["views"]["services"]["rows"])
    for path in expected:
        shutil.rmtree(changed / path)
    assert figures(report(changed)) == figures(found)


def test_a_renamed_trace_is_no_other_run(changed):
    folders = sorted(changed.rglob("*.varve"))
    copied = folders[0].with_name("0123456789abcdef.varve")
    shutil.copytree(folders[0], copied)
    manifest = folders[1] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"made"', '"edited"'))
    found = report(changed)
    assert found["runs"]["used"] == len(folders) - 1
    assert found["skipped"]["kinds"] == {"damaged": 2}
    assert {entry["path"] for entry in found["skipped"]["traces"]} == {
        str(folder.relative_to(changed)) for folder in (copied, folders[1])
    }
    assert "one of them was changed" in found["skipped"]["traces"][0]["why"]


def test_compaction_changes_no_answer(changed):
    before = report(changed)
    done = json.loads(fleet("compact", changed, "--group", 7, "--json").stdout)
    assert [part["runs"] for part in done["parts"]] == [7, 7, 6]
    after = report(changed)
    assert figures(after) == figures(before)
    assert (after["runs"]["compacted"], after["skipped"]["count"]) == (20, 0)
    # Again there is nothing to do, and a new trace is read beside what is compacted.
    assert json.loads(fleet("compact", changed, "--json").stdout)["parts"] == []
    late = made.Made("api", "2222", "host0", "2026-09-24", run_id("late"), 77, start_unix_ns=START_NS + 2 * DAY_NS)
    made.write(changed, late)
    mixed = report(changed)
    assert (mixed["runs"]["used"], mixed["runs"]["compacted"]) == (21, 20)
    fleet("compact", changed)
    assert figures(report(changed)) == figures(mixed)
    for folder in changed.glob("service=*"):
        shutil.rmtree(folder)
    alone = report(changed)
    assert figures(alone) == figures(mixed)
    assert alone["runs"]["used"] == 21
    only = report(changed, "--service", "api", "--until", "2026-09-22")
    assert only["runs"]["used"] == 5


def test_a_run_that_two_parts_have_counts_once(changed):
    before = report(changed)
    fleet("compact", changed)
    (part,) = (changed / "compact").iterdir()
    kept = changed / "kept"
    part.rename(kept)
    fleet("compact", changed, "--group", 5)
    kept.rename(changed / "compact" / part.name)
    assert figures(report(changed)) == figures(before)


def test_damaged_parts_are_named_and_their_traces_read(changed):
    before = report(changed)
    fleet("compact", changed)
    (part,) = (changed / "compact").iterdir()
    data = bytearray((part / "run_sites.parquet").read_bytes())
    data[len(data) // 2] ^= 1
    (part / "run_sites.parquet").write_bytes(data)
    found = report(changed)
    assert figures(found) == figures(before)
    assert found["skipped"]["kinds"] == {"damaged": 1}
    assert found["skipped"]["traces"][0]["path"] == f"compact/{part.name}"


def test_a_killed_compaction_is_taken_up_again(changed):
    before = report(changed)
    process = subprocess.Popen(
        [sys.executable, "-m", "varve.fleet", "compact", str(changed), "--group", "2"],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert "wrote compact/" in process.stderr.readline()
        process.kill()
    parts = [folder for folder in (changed / "compact").iterdir() if (folder / "compact.json").exists()]
    assert 1 <= len(parts) < 10
    # One that was cut short has no manifest.
    shutil.copytree(parts[0], changed / "compact" / "v1-00000000deadbeef")
    (changed / "compact" / "v1-00000000deadbeef" / "compact.json").unlink()
    assert figures(report(changed)) == figures(before)
    fleet("compact", changed, "--group", 2)
    found = report(changed)
    assert figures(found) == figures(before)
    assert found["runs"]["compacted"] == 20
    assert not (changed / "compact" / "v1-00000000deadbeef").exists()
    assert not list((changed / "compact").rglob("*.new"))


def test_tables_that_are_not_read_are_named(changed):
    for folder in sorted(changed.rglob("*.varve"))[:2]:
        data = bytearray((folder / "samples.parquet").read_bytes())
        data[len(data) // 2] ^= 1
        (folder / "samples.parquet").write_bytes(data)
    assert sum(row["runs"] for row in report(changed)["views"]["services"]["rows"]) == 18
    done = fleet("query", changed, "services", "--json")
    assert "note: the tables intervals, objects, samples, sites, touches are not read: a trace that is" in done.stderr
    found = json.loads(done.stdout)
    assert (found["runs"], sum(row["runs"] for row in found["rows"])) == (20, 20)
    assert found["unread_tables"] == ["intervals", "objects", "samples", "sites", "touches"]
    assert json.loads(fleet("query", changed, "savings", "--json").stdout)["unread_tables"] == ["samples"]
    # What is compacted was read whole.
    fleet("compact", changed)
    for folder in changed.glob("service=*"):
        shutil.rmtree(folder)
    done = fleet("query", changed, "services", "--json")
    assert (done.stderr, json.loads(done.stdout)["unread_tables"]) == ("", [])
