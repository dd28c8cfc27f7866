"""Figures of a store are those of its traces."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import made
import pyarrow.parquet as pq
import pytest
from fleets import DAY_NS, START_NS, fleet, push, report, rows, run_id
from slowly import Slices, pages_by_interval

import varve
from varve._binary import binary
from varve.fleet._engine import texts
from varve.fleet._print import cell, heading

VIEWS = {"services", "savings", "cold_by_site", "working_set", "regressions", "hosts", "false_sharing"}
PAGE = 4096


def named(found, **values):
    chosen = [row for row in found if all(row[key] == value for key, value in values.items())]
    assert len(chosen) == 1, found
    return chosen[0]


def flushed(trace):
    """Count how often intervals were flushed into a trace that is being recorded."""
    return len(list((trace / "parts").glob("intervals-*.parquet")))


def test_untouched_memory_is_found_by_site(store):
    found = rows(store, "cold_by_site")
    for service in ("api", "cron"):
        pool = named(found, service=service, site="pool (server.c:37, in pool_init)")
        # Five runs with a pool of 4096 pages and five with 6144; half of it is touched, early.
        assert (pool["place"], pool["builds"], pool["hosts"], pool["runs"]) == ("+4", 2, 5, 10)
        assert pool["live_bytes"] == 5120 * PAGE
        assert pool["never_touched_bytes"] == pool["cold_bytes"] == 2560 * PAGE
        assert pool["fleet_never_touched_bytes"] == pool["fleet_cold_bytes"] == 5 * 2560 * PAGE
        log = named(found, service=service, site="log (server.c:27, in log_init)")
        assert (log["never_touched_bytes"], log["cold_bytes"]) == (4 * PAGE, 1020 * PAGE)
    savings = named(rows(store, "savings"), service="api")
    # What the view by site sums up, but for the rounding of means.
    for name in ("cold_bytes", "never_touched_bytes"):
        by_site = sum(row[f"fleet_{name}"] for row in found if row["service"] == "api")
        assert abs(savings[name] - by_site) < 1000
    # All that is touched lies in objects whose sites are known.
    assert savings["covered_permille"] == 1000
    assert savings["cold_permille"] == savings["cold_bytes"] * 1000 // savings["touched_bytes"]


def test_what_could_be_saved_is_private_memory_that_was_touched(tmp_path):
    """Data in files, shared memory and what was never touched save nothing; what nobody knows of is said."""
    folder = made.write(tmp_path, made.Made("api", "1", "h", "2026-09-22", "with others", 1, others=True))
    (tmp_path / "own.sql").write_text("SELECT * FROM run_sites")
    sites = rows(tmp_path, tmp_path / "own.sql")

    def site(name):
        return named(sites, name=made.OTHERS[name][1])

    def touched(name):
        return made.OTHERS[name][5] * PAGE

    # A process that ends takes its memory along: it was there at the end, and cold.
    assert (site("kept")["kind"], site("kept")["objects"]) == ("heap", 2)
    assert site("kept")["cold_bytes"] == site("kept")["touched_bytes"] == 2 * touched("kept")
    assert (site("freed")["cold_bytes"], site("freed")["touched_bytes"]) == (0, 2 * touched("freed"))
    brief = named(sites, name=made.BRIEF[1])
    assert (brief["cold_bytes"], brief["touched_bytes"]) == (0, made.BRIEF[5] * PAGE)
    # What processes may share counts once.
    for name, kind in (("constant", "constant"), ("static", "static"), ("ring", "shared")):
        assert (site(name)["kind"], site(name)["objects"]) == (kind, 1)
        assert site(name)["cold_bytes"] == site(name)["touched_bytes"] == touched(name)
    server = [of for of in sites if of["name"].split(" ")[0] in made.SITES]
    cold = sum(of["cold_bytes"] for of in server) + 2 * touched("kept") + touched("static")
    (savings,) = rows(tmp_path, "savings")
    assert savings["cold_bytes"] == cold
    private = [of for of in sites if of["kind"] in {"heap", "mapping", "static"}]
    assert savings["never_touched_bytes"] == sum(of["never_touched_bytes"] for of in private)
    assert savings["live_bytes"] == sum(of["live_bytes"] for of in private)
    by_site = rows(tmp_path, "cold_by_site")
    assert {row["kind"] for row in by_site} == {"heap", "static"}
    # Of each touched page the sites know of, or not: anonymous memory has no site.
    pages = set()
    for row in pq.read_table(folder / "touches.parquet").to_pylist():
        pages.update((row["pid"], page) for page in range(row["page"], row["page"] + row["pages"]))
    unknown = 2 * sum(touched(name) for name in ("constant", "ring", "anonymous"))
    assert savings["touched_bytes"] == len(pages) * PAGE
    assert savings["covered_permille"] == (len(pages) * PAGE - unknown) * 1000 // (len(pages) * PAGE)
    assert savings["cold_permille"] == cold * 1000 // (len(pages) * PAGE)


# A page that is touched where an interval ends may be one that others have touched, as far as is known: all are touched
# in a whole interval. What was touched in the last quarter of a recording is not cold: the last third has none of that.
KEEPS = """
import glob, mmap, os, sys, time
trace, start = sys.argv[1:]
def flushed():
    return len(glob.glob(trace + "/parts/intervals-*.parquet"))
def until_an_interval_has_passed(work):
    before, ppid = flushed(), os.getppid()
    while flushed() < before + 3:
        if os.getppid() != ppid:
            os._exit(1)
        work()
kept = mmap.mmap(-1, 2000 << 12, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
shared = mmap.mmap(-1, 1000 << 12)
def fill():
    for memory in (kept, shared):
        for at in range(0, len(memory), 4096):
            memory[at] = 1
for memory in (kept, shared):
    memory.madvise(mmap.MADV_NOHUGEPAGE)
until_an_interval_has_passed(fill)
until_an_interval_has_passed(lambda: time.sleep(0.01))
time.sleep((time.monotonic() - float(start)) / 2)
os._exit(0)
"""


def test_memory_that_a_program_keeps_to_its_end_is_cold(tmp_path):
    command = [sys.executable, "-c", KEEPS, str(tmp_path / "t.varve"), str(time.monotonic())]
    with varve.record(command, output=tmp_path / "t.varve", interval="50ms") as run:
        run.wait()
    push(tmp_path / "t.varve", tmp_path / "store", service="keeps")
    store = tmp_path / "store"
    (savings,) = rows(store, "savings")
    # It is touched in the beginning, and goes with the program.
    assert 2000 * PAGE <= savings["cold_bytes"] <= savings["touched_bytes"] - 1000 * PAGE
    assert savings["cold_permille"] <= savings["covered_permille"] < 1000
    (tmp_path / "own.sql").write_text("SELECT * FROM run_sites")
    sites = rows(store, tmp_path / "own.sql")
    for kind, pages in (("mapping", 2000), ("shared", 1000)):
        assert max(site["cold_bytes"] for site in sites if site["kind"] == kind) == pages * PAGE
    constants = {site["name"] for site in sites if site["kind"] == "constant"}
    assert constants
    # The recorder knows what is mapped without the right to write.
    table = {name: pq.read_table(tmp_path / "t.varve" / f"{name}.parquet") for name in ("objects", "mappings")}
    mapped = table["mappings"].to_pylist()
    for row in table["objects"].to_pylist():
        if row["kind"] == "static" and row["layer"] >= 6:
            perms = {
                of["perms"][1]
                for of in mapped
                if of["pid"] == row["pid"] and of["address"] <= row["address"] < of["address"] + of["bytes"]
            }
            assert (row["name"] in constants) <= ("w" not in perms), row


def test_how_much_is_known_of_a_process_that_ran_already_is_said(tmp_path):
    mib = 24
    program = f"""
import sys
memory = bytearray({mib} << 20)
print("ready", flush=True)
for _ in sys.stdin:
    for at in range(0, len(memory), 4096):
        memory[at] = 1
    print("touched", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            with varve.record(pid=process.pid, output=tmp_path / "t.varve", interval="50ms"):
                # An interval in which all of it is touched has begun and ended after three flushes.
                before, began = flushed(tmp_path / "t.varve"), time.monotonic()
                while flushed(tmp_path / "t.varve") < before + 3:
                    assert time.monotonic() < began + 300, "no interval ends"
                    process.stdin.write("touch\n")
                    process.stdin.flush()
                    assert process.stdout.readline() == "touched\n"
        finally:
            process.kill()
    push(tmp_path / "t.varve", tmp_path / "store", service="late")
    (savings,) = rows(tmp_path / "store", "savings")
    assert savings["touched_bytes"] >= mib << 20
    assert savings["covered_permille"] < 100


def test_losses_are_named_and_not_added_up(tmp_path):
    for at in range(3):
        of = made.Made("api", "1", "h", "2026-09-22", str(at), at, complete=at == 0, losses=("b", "a")[:at])
        made.write(tmp_path, of)
    (row,) = rows(tmp_path, "services")
    assert (row["incomplete_runs"], row["losses"]) == (2, "a, b")
    (tmp_path / "own.sql").write_text("SELECT losses FROM runs ORDER BY losses")
    assert [row["losses"] for row in rows(tmp_path, tmp_path / "own.sql")] == ["", "a, b", "b"]


def test_working_sets_are_those_of_the_touches(store):
    for row in rows(store, "working_set"):
        folders = sorted((store / f"service={row['service']}" / f"build={row['build']}").rglob("*.varve"))
        pages = sorted(count for folder in folders for count in pages_by_interval(folder))
        assert (row["runs"], row["intervals"]) == (len(folders), len(pages)) == (5, 5 * made.INTERVALS)
        for name, share in (("p10", 0.1), ("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1)):
            assert row[f"{name}_bytes"] == pages[math.ceil(share * len(pages)) - 1] * PAGE, name
        assert row["mean_interval_ns"] == made.INTERVAL_NS


def test_what_the_next_build_makes_larger_is_found_though_lines_moved(store):
    found = rows(store, "regressions")
    assert {row["site"] for row in found if row["kind"]} == {"pool (server.c, in pool_init)"}
    for service in ("api", "cron"):
        grown = named(found, service=service, figure="live", kind="heap")
        assert (grown["before_build"], grown["after_build"]) == ("1111", "2222")
        assert (grown["before_bytes"], grown["after_bytes"], grown["clear"]) == (4096 * PAGE, 6144 * PAGE, True)


def test_runs_without_figures_do_not_count_as_runs_without_the_site(changed):
    before = [row for row in rows(changed, "regressions") if row["kind"]]
    for at in range(12):
        lost = made.Made("api", "2222", "h", "2026-09-23", run_id(f"lost {at}"), at, complete=False)
        made.write(changed, lost)
    assert [row for row in rows(changed, "regressions") if row["kind"]] == before


def test_a_site_that_most_runs_lack_has_grown_from_nothing(tmp_path):
    for build, count in (("1111", 1), ("2222", 4)):
        for at in range(5):
            name = f"{build} {at}"
            prefix = "new " if at < count else ""
            day = 22 + (build == "2222")
            made.write(
                tmp_path, made.Made("api", build, f"h{at}", f"2026-09-{day}", run_id(name), at, prefix=prefix,
                                    start_unix_ns=START_NS + day)
            )  # fmt: skip
    found = [row for row in rows(tmp_path, "regressions") if row["figure"] == "live"]
    assert {row["site"].split(" ", 1)[0] for row in found} == {"new"}
    pool = named(found, site="new pool (server.c, in pool_init)")
    assert (pool["before_bytes"], pool["after_bytes"], pool["clear"]) == (0, 4096 * PAGE, True)


def test_a_host_that_differs_is_found(changed):
    assert rows(changed, "hosts") == []
    odd = made.Made("api", "1111", "odd", "2026-09-22", run_id("odd"), 5, grown=3.0, start_unix_ns=START_NS)
    made.write(changed, odd)
    found = rows(changed, "hosts")
    assert {row["host"] for row in found} == {"odd"}
    assert named(found, figure="never_touched")["hosts"] == 6


def test_false_sharing_is_found_by_line(store):
    found = rows(store, "false_sharing")
    assert len(found) == 2
    for row in found:
        assert (row["offset_bytes"], row["runs"], row["hosts"], row["share_permille"]) == (128, 10, 5, 100)
        assert row["object"].startswith("table (server.c:")
        assert "in count" in row["code"]
        # Each of the other 20 samples of a run is of the other thread.
        assert (row["events"], row["turns"]) == (200, 190)


def test_what_is_selected_is_what_counts(store):
    assert {row["build"] for row in rows(store, "services", "--until", "2026-09-22")} == {"1111"}
    assert {row["build"] for row in rows(store, "services", "--since", "2026-09-23")} == {"2222"}
    chosen = report(store, "--service", "api", "--since", "2026-09-22", "--until", "2026-09-22")
    assert chosen["runs"]["used"] == 5
    assert chosen["selected"] == {"since": "2026-09-22", "until": "2026-09-22", "service": "api"}
    assert {row["service"] for row in chosen["views"]["working_set"]["rows"]} == {"api"}
    # No traces of the days are no error; a service that is not there is.
    assert report(store, "--service", "api", "--since", "2027-01-01")["runs"]["used"] == 0
    for command in ("report", "compact"):
        said = fleet(command, store, "--service", "apu", code=2).stderr
        assert said == "varve fleet: the store has no service apu\nhint: it has api, cron\n"


def test_an_own_query_reads_runs_and_facts(store, tmp_path):
    (tmp_path / "own.sql").write_text(
        "SELECT r.host, sum(s.touched_bytes)::BIGINT AS bytes FROM run_sites s JOIN runs r USING (run) GROUP BY ALL;"
    )
    assert len(rows(store, tmp_path / "own.sql")) == 5
    (tmp_path / "own.sql").write_text("SELECT nothing FROM runs")
    assert "nothing" in fleet("query", store, tmp_path / "own.sql", code=2).stderr


def test_a_recorded_trace_agrees_with_its_report(recorded, tmp_path):
    push(recorded.trace.folder, tmp_path, service="recorded")
    said = recorded.trace.report()
    pages = pages_by_interval(recorded.trace.folder)
    found = named(rows(tmp_path, "working_set"), service="recorded")
    assert found["max_bytes"] == pages[-1] * PAGE
    # The report leaves out the recorder's own memory, and counts memory of several mappings once.
    assert said["footprint"]["peak_working_set_pages"] <= pages[-1]
    assert pages[-1] <= said["footprint"]["peak_working_set_pages"] * 1.02 + 600
    (tmp_path / "own.sql").write_text("SELECT * FROM run_sites")
    sites = rows(tmp_path, tmp_path / "own.sql")
    slices = Slices(recorded.trace.folder)
    compared = 0
    for site in sites:
        groups = [group for group in said["groups"] if (group["name"], group["kind"]) == (site["name"], site["kind"])]
        if [group["objects"] for group in groups] == [site["objects"]] == [1]:
            compared += 1
            (group,) = groups
            assert site["allocated_bytes"] == group["bytes"]
            # Its first and last page lie in it in part. What touched its pages before and after its life counts where
            # that was in a slice in which it lived: the report, which knows times, may count less.
            assert group["touched_pages"] - 2 <= site["touched_bytes"] // PAGE
            (object,) = [row for row in slices.objects if (row["name"], row["kind"]) == (site["name"], site["kind"])]
            assert site["touched_bytes"] == slices.touched(object) * PAGE, site
    assert compared >= 5


def test_what_the_command_pushes_the_command_finds(recorded, tmp_path):
    pushed = [binary(), "push", recorded.trace.folder, "--to", tmp_path / "store", "--service", "a/b"]
    subprocess.run(pushed, check=True)
    asked = [binary(), "fleet", "report", tmp_path / "store", "--json"]
    environment = {**os.environ, "VARVE_PYTHON": sys.executable}
    said = json.loads(subprocess.run(asked, check=True, capture_output=True, env=environment).stdout)
    assert (said["runs"]["used"], said["skipped"]["count"]) == (1, 0)
    assert [row["service"] for row in said["views"]["services"]["rows"]] == ["a/b"]
    environment["VARVE_PYTHON"] = "/nonexistent/python"
    refused = subprocess.run(asked, check=False, capture_output=True, text=True, env=environment)
    assert refused.returncode == 2
    assert "hint: " in refused.stderr


def test_incomplete_traces_are_in_no_figure_of_sites(tmp_path):
    for at in range(3):
        made.write(tmp_path, made.Made("api", "1", "h", "2026-09-22", run_id(str(at)), at, complete=at > 0))
    found = report(tmp_path)
    assert (found["runs"]["used"], found["runs"]["incomplete"]) == (3, 1)
    assert named(found["views"]["working_set"]["rows"], build="1")["runs"] == 3
    assert {row["runs"] for row in found["views"]["cold_by_site"]["rows"]} == {2}


def test_an_empty_store_has_empty_answers(tmp_path):
    found = report(tmp_path)
    assert set(found["views"]) == VIEWS
    assert found["schema"] == "varve-fleet-report/1"
    assert not any(view["rows"] for view in found["views"].values())
    assert "(none)" in fleet("report", tmp_path).stdout
    fleet("compact", tmp_path)


def test_the_page_is_whole_and_escapes_names(tmp_path):
    hostile = '<script>alert(1)</script>"\x1b[31m'
    for at in range(3):
        made.write(tmp_path, made.Made("a%3Cb%3E", "1", "h", "2026-09-22", run_id(str(at)), at, prefix=hostile))
    (tmp_path / "service=a%3Cb%3E" / "build=1" / "host=h" / "date=2026-09-22" / "%3Cimg%3E.varve").mkdir()
    (tmp_path / "service=a%3Cb%3E/build=1/host=h/date=2026-09-22/%3Cimg%3E.varve/x").touch()
    done = fleet("report", tmp_path, "--html", tmp_path / "page.html")
    assert done.stdout == ""
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "a&lt;b&gt;" in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<h2") == len(VIEWS) + 1
    printed = fleet("report", tmp_path).stdout
    assert "\x1b" not in printed
    assert "alert(1)" in printed


WIDTHS = """<script>document.title = "cut off: " + JSON.stringify([...document.querySelectorAll(".wide")]
  .filter(of => of.scrollWidth > of.clientWidth).map(of => [of.scrollWidth, of.clientWidth]))</script>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_no_table_of_the_page_is_cut_off(tmp_path):
    """Names as long as those of real programs, in a window of 1400 pixels."""
    before, after = "330d7a54e95609692aacb101ce3d8c8f15deda80", "a50d6825e71f1473372299161f75fe50e80452de"
    for at in range(16):
        build, day = (before, 22) if at < 8 else (after, 23)
        odd = at == 7
        made.write(
            tmp_path,
            made.Made("redis-server", build, f"eu-west-1-host{at % 8}", f"2026-09-{day}", str(at), at,
                      grown=400.0 if odd else 1.0 if at < 8 else 300.0, start_unix_ns=START_NS + day * DAY_NS,
                      prefix="a_name_of_a_template<std::vector<int>>::" + "x" * 200, complete=at != 1,
                      losses=("vanished_pages", "reclaim_scanned_pages")),
        )  # fmt: skip
    fleet("report", tmp_path, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    page, policies = re.subn('<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    assert policies == 1
    (tmp_path / "page.html").write_text(page.replace("</body>", WIDTHS + "</body>"))
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,2000", "--dump-dom"]
    done = subprocess.run(
        [*browser, f"file://{tmp_path}/page.html"], capture_output=True, text=True, check=True, timeout=600
    )
    assert "<title>cut off: []</title>" in done.stdout, re.findall("<title>.*</title>", done.stdout)
    assert page.count("<p>None.</p>") == 0


def test_wrong_options_are_said(store, tmp_path):
    assert "there is no folder" in fleet("report", tmp_path / "none", code=2).stderr
    assert "is after" in fleet("report", store, "--since", "2026-09-23", "--until", "2026-09-22", code=2).stderr
    assert "views are" in fleet("query", store, "nothing", code=2).stderr
    assert "is not a day" in fleet("report", store, "--since", "yesterday", code=2).stderr
    assert "is not a size" in fleet("report", store, "--memory", "much", code=2).stderr
    assert "--master" in fleet("report", store, "--master", "local", code=2).stderr


def test_columns_read_as_what_they_are():
    assert cell("start_unix_ns", START_NS) == "2026-09-21 14:13:20 UTC"
    assert cell("start_unix_ns", 0) == "-"
    assert cell("first_unix_ns", (1 << 63) - 1) == "2262-04-11 23:47:16 UTC"
    assert [heading(name) for name in ("start_unix_ns", "cold_bytes", "cold_permille", "share_permille")] == [
        "start", "cold", "cold share", "share",
    ]  # fmt: skip
    for name, view in texts("views").items():
        columns = view.sql.rpartition("SELECT")[2]
        assert "unused" not in columns, name


def test_a_package_that_is_only_imported_loads_no_engine():
    loaded = "import sys, varve; print([name for name in ('duckdb', 'pyarrow', 'pyspark') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert Path(varve.__file__).parent.joinpath("fleet", "sql", "v1", "views").is_dir()
