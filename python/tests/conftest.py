"""Traces that the tests read."""

import sys

import pytest

import varve

pytest_plugins = ["pytester", "buckets"]

PAGES = 3000
PROGRAM = f"""
import mmap, time, varve
time.sleep(0.2)
with varve.phase("load"):
    memory = mmap.mmap(-1, {PAGES} << 12)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, {PAGES} << 12, 4096):
        memory[at] = 1
    time.sleep(0.15)
time.sleep(0.2)
varve.event("half")
with varve.phase("rest"):
    time.sleep(0.2)
time.sleep(0.2)
print("done")
raise SystemExit(3)
"""


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """Record a program whose memory is known."""
    folder = tmp_path_factory.mktemp("trace")
    command = [sys.executable, "-c", PROGRAM]
    with varve.record(command, output=folder / "t.varve", interval="50ms") as run:
        run.wait()
    return run


@pytest.fixture
def trace(recorded):
    """Give the trace of it."""
    return recorded.trace
