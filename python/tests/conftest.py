"""Traces that the tests read."""

import sys

import pytest

import varve

pytest_plugins = ["pytester", "buckets", "fleets"]

PAGES = 3000
# Phases lie some intervals apart, however long those get on a busy machine: the program sees in a page of its own
# that the recorder has cleared the accessed bit.
PROGRAM = f"""
import ctypes, mmap, time, varve

probe = mmap.mmap(-1, 4096)
start = f"{{ctypes.addressof(ctypes.c_char.from_buffer(probe)):08x}}-"

def referenced():
    lines = iter(open("/proc/self/smaps"))
    next(line for line in lines if line.startswith(start))
    return next(line for line in lines if line.startswith("Referenced:")).split()[1] != "0"

def two_intervals():
    for _ in range(2):
        probe[0] = 1
        while referenced():
            time.sleep(0.005)

two_intervals()
with varve.phase("load"):
    memory = mmap.mmap(-1, {PAGES} << 12)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, {PAGES} << 12, 4096):
        memory[at] = 1
    two_intervals()
two_intervals()
varve.event("half")
with varve.phase("rest"):
    two_intervals()
two_intervals()
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
