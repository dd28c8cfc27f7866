"""Recordings begin, end, and do no harm."""

import os
import subprocess
import sys
import time

import pytest

import varve


def test_the_program_is_what_it_is_without_a_recorder(recorded, capfd):
    assert recorded.returncode == 3
    assert any("wrote" in line for line in recorded.messages)
    with varve.record([sys.executable, "-c", "print('out'); import sys; print('err', file=sys.stderr)"]) as run:
        run.wait()
    assert run.returncode == 0
    assert capfd.readouterr().out == "out\n"
    folder = run.output
    assert run.trace.footprint["touched_pages"] > 100
    run.trace.close()
    assert not folder.exists()


def test_who_names_phases_waits_for_no_engine():
    said = subprocess.check_output(
        [sys.executable, "-c", "import sys, varve; print('duckdb' in sys.modules, 'pyarrow' in sys.modules)"]
    )
    assert said == b"False False\n"


def test_this_process_and_its_phases():
    with varve.record(pid=os.getpid(), interval="20ms") as run:
        with varve.phase("here"):
            memory = bytearray(8 << 20)
            time.sleep(0.1)
        assert len(memory) == 8 << 20
        with pytest.raises(varve.VarveError, match="leave the `with`"):
            _ = run.trace
    assert run.returncode is None
    assert run.trace.report(phase="here")["footprint"]["touched_pages"] >= 2048
    # Nobody hears any more.
    with varve.phase("later"):
        pass
    assert run.trace.marks.project("name").fetchall() == [("here",)]


def test_a_process_that_runs_runs_on():
    with subprocess.Popen(["sleep", "600"]) as process:
        with varve.record(pid=process.pid, interval="20ms"):
            time.sleep(0.1)
        assert process.poll() is None
        process.kill()


def test_an_exception_ends_the_recording():
    began = time.monotonic()
    with pytest.raises(KeyError), varve.record(["sleep", "3600"]):
        raise KeyError
    # It did not come to its own end.
    assert time.monotonic() - began < 3600


def test_what_cannot_be_recorded_is_said(monkeypatch):
    with pytest.raises(varve.VarveError, match="no/such/program"), varve.record(["/no/such/program"]) as run:
        run.wait()
    with pytest.raises(varve.VarveError, match="4194399"), varve.record(pid=4194399):
        pass
    with pytest.raises(ValueError, match="a command or a pid"):
        varve.record()
    with pytest.raises(TypeError, match="list"):
        varve.record("sleep 1")
    monkeypatch.setenv("VARVE", "/no/such/varve")
    with pytest.raises(varve.VarveError, match="which VARVE names"), varve.record(["true"]):
        pass
