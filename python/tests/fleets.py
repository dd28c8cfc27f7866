"""Stores for tests, and the command that reads them."""

import contextlib
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import made
import pyspark
import pytest

SERVICES = ("api", "cron")
DAY_NS = 86_400_000_000_000
# Java programs that run for seconds: what compiles longest does not pay.
JAVA = {"SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"}
START_NS = 1_790_000_000_000_000_000


def made_store(folder, *, hosts=5, **more):
    """Make two services with two builds on some hosts; of the second build, the pool is half as large again."""
    for service in SERVICES:
        for at, build in enumerate(("1111", "2222")):
            for host in range(hosts):
                name = f"{service} {build} {host}"
                made.write(
                    folder,
                    made.Made(
                        service=service, build=build, host=f"host{host}", date=f"2026-09-{22 + at}", id=run_id(name),
                        seed=len(service) * 1000 + at * 100 + host, grown=1.5 if at else 1.0, moved=at * 7,
                        start_unix_ns=START_NS + at * DAY_NS + host, **more,
                    ),
                )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """Make a store of known traces. Tests that change it copy it."""
    return made_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def changed(store, tmp_path):
    """Copy it."""
    shutil.copytree(store, tmp_path / "store")
    return tmp_path / "store"


def run_id(name):
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def push(trace, store, *, service, build="ab12", host="here", date="2026-09-22", name="0"):
    """Copy a trace to where `varve push` puts it, the manifest last."""
    folder = store / f"service={service}" / f"build={build}" / f"host={host}" / f"date={date}" / f"{name}.new"
    folder.mkdir(parents=True)
    for file in sorted(Path(trace).glob("*.parquet")):
        shutil.copy(file, folder)
    manifest = json.loads((Path(trace) / "manifest.json").read_text())
    manifest["notes"].append(f"{service} {host} {name}")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return made.named(folder)


def fleet(*arguments, code=0, environment=None, timeout=900):
    """Run the command to its end. The limit is a guard only: the machine may have much else to do."""
    done = subprocess.run(
        [sys.executable, "-m", "varve.fleet", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **JAVA, **(environment or {})},
    )
    assert done.returncode == code, done.stderr
    return done


def report(store, *arguments, **more):
    return json.loads(fleet("report", store, "--json", "--limit", 100_000, *arguments, **more).stdout)


def figures(made_report):
    return {name: view["rows"] for name, view in made_report["views"].items()}


def rows(store, view, *arguments):
    return json.loads(fleet("query", store, view, "--json", *arguments).stdout)["rows"]


class Program:
    """A server of a test: its lines are read, and it is stopped."""

    def __init__(self, command, environment=None):
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})}, start_new_session=True,
        )  # fmt: skip
        self._lines = queue.Queue()
        self.seen = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, words, timeout=600):
        """Wait for a line with these words."""
        while True:
            line = self._lines.get(timeout=timeout)
            if line is None:
                raise AssertionError("it ended:\n" + "".join(self.seen))
            self.seen.append(line)
            if words in line:
                return line

    def kill(self):
        self._process.kill()
        return self._process.wait(600)

    def stop(self):
        self._process.terminate()
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(120)
        self._reader.join(120)


@contextlib.contextmanager
def spark_cluster(workers, folder):
    """Start a standalone master and workers of one core each on loopback. Gives the master's URL."""
    home = Path(pyspark.__file__).parent
    environment = {**JAVA, "SPARK_HOME": str(home), "SPARK_WORKER_DIR": str(folder)}
    start = [str(home / "bin" / "spark-class")]
    programs = []
    try:
        master = Program(
            [
                *start,
                "org.apache.spark.deploy.master.Master",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--webui-port",
                "0",
            ],
            environment,
        )
        programs.append(master)
        line = master.wait_for("Starting Spark master at ")
        url = line.split("Starting Spark master at ")[1].strip()
        for _ in range(workers):
            programs.append(
                Program(
                    [*start, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1",
                     "--memory", "2g", "--webui-port", "0", url],
                    environment,
                )
            )  # fmt: skip
            programs[-1].wait_for("Successfully registered with master")
        yield url
    finally:
        for program in reversed(programs):
            program.stop()
