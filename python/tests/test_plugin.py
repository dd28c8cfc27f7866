"""Budgets of tests."""

import fnmatch

import pytest

TESTS = """
import time
import pytest

def touch(mib):
    memory = bytearray(mib << 20)
    for at in range(0, len(memory), 4096):
        memory[at] = 1
    time.sleep(0.05)

@pytest.mark.memory(max_touched="60MiB")
def test_much():
    touch(64)

@pytest.mark.memory(max_touched="60MiB", max_working_set="60MiB")
def test_little():
    touch(4)

@pytest.mark.memory(max_touched="60MiB")
def test_that_fails():
    assert 1 == 2

@pytest.mark.memory(max_object={"no such object": "1MiB"})
def test_that_cannot_be_judged():
    touch(1)

def test_without():
    touch(64)
"""


def test_budgets_are_judged(pytester):
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-v")
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines(["*test_much FAILED*", "*test_little PASSED*", "*test_without PASSED*"])
    result.stdout.fnmatch_lines(["memory of test_much:*", "broken*touched at most 60 MiB*"])
    result.stdout.fnmatch_lines(["*assert 1 == 2*"])
    result.stdout.fnmatch_lines(["*not judged*no such object*"])


def test_budgets_may_be_off(pytester):
    pytester.makepyfile(TESTS)
    pytester.runpytest_subprocess("--memory=off").assert_outcomes(passed=4, failed=1)


def test_what_cannot_be_recorded_does_not_pass(pytester, monkeypatch):
    monkeypatch.setenv("VARVE", "/bin/false")
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-k", "test_little")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*cannot be recorded*", "hint: --memory=off"])


@pytest.mark.parametrize("memory", ["on", "off"])
@pytest.mark.parametrize(
    ("mark", "why"),
    [
        ("max_tuched='1MiB'", "*takes max_touched*, and not `max_tuched`"),
        ("max_touched='1MiB', max_helt=1, intervall='1ms'", "*, and not `max_helt`, `intervall`"),
        ("", "*takes max_touched*: it has no budget"),
        ("interval='10ms'", "*: it has no budget"),
        ("'60MiB'", "*by their names, and not '60MiB' alone"),
        ("max_object='60MiB'", "*max_object is {name: size}, and not '60MiB'"),
        ("max_held=5", "*max_held is a share, from 0 to 1 or such as '5%', and not 5"),
        ("max_held='5'", "*and not '5'"),
        ("max_held='120%'", "*and not '120%'"),
        ("max_held=True", "*and not True"),
    ],
)
def test_a_mark_that_is_wrong_is_refused_and_what_is_wrong_is_named(pytester, memory, mark, why):
    pytester.makepyfile(f"import pytest\n@pytest.mark.memory({mark})\ndef test_it(): pass")
    result = pytester.runpytest_subprocess(f"--memory={memory}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert fnmatch.filter(result.stderr.lines, f"ERROR: *::test_it: *{why}")


def test_shares_are_taken_as_they_are_written(pytester):
    pytester.makepyfile("""
import pytest
@pytest.mark.memory(max_held="100%")
def test_percent(): pass
@pytest.mark.memory(max_held=1)
def test_all(): pass
@pytest.mark.memory(max_held=0.000001)
def test_little(): pass
""")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=2, failed=1)
    # Judged, and not refused for how Python writes the number.
    result.stdout.fnmatch_lines(["broken*held at most *"])


def test_processes_that_a_test_starts_do_not_count_and_the_mark_says_so(pytester):
    pytester.makepyfile("""
import subprocess, sys
import pytest
@pytest.mark.memory(max_touched="60MiB")
def test_it():
    subprocess.run([sys.executable, "-c", "bytearray(100 << 20)"], check=True)
""")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
    listed = " ".join(pytester.runpytest_subprocess("--markers").stdout.str().split())
    assert "processes that it starts do not count" in listed
