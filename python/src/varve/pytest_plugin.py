"""Memory budgets of tests: ``@pytest.mark.memory(max_touched="20MiB")``.

The process of the tests is recorded while the test runs, and ``varve check`` judges the trace. A page counts that is
touched meanwhile: also those of the interpreter and its libraries. Processes that the test starts do not count.
"""

import os
from collections.abc import Generator, Mapping
from decimal import Decimal

import pytest

from varve._binary import VarveError, run
from varve._record import record

_BUDGETS = (
    "max_touched", "max_working_set", "max_median_working_set", "max_resident", "max_page_touches", "max_held",
)  # fmt: skip
_BROKEN, _NOT_JUDGED = 1, 2


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--memory",
        choices=["on", "off"],
        default="on",
        help="judge the budgets of tests that are marked `memory` (recording them needs the rights of `varve record`)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers",
        "memory(max_touched, max_working_set, max_median_working_set, max_resident, max_page_touches, max_held, "
        "max_object={name: size}, interval): judge the memory that the test touches, by `varve check`; "
        "processes that it starts do not count",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse marks that say nothing or nothing known, whether budgets are judged or not."""
    wrong = []
    for item in items:
        mark = item.get_closest_marker("memory")
        if mark is not None and (why := _wrong(mark)):
            wrong.append(f"{item.nodeid}: {why}")
    if wrong:
        raise pytest.UsageError(*wrong)


def _wrong(mark: pytest.Mark) -> str | None:
    """Say what of a mark cannot be judged; None where all can."""
    takes = f"the mark `memory` takes {', '.join(_BUDGETS)}, max_object={{name: size}} and interval"
    if mark.args:
        return f"{takes}, by their names, and not {mark.args[0]!r} alone"
    unknown = [f"`{name}`" for name in mark.kwargs if name not in (*_BUDGETS, "max_object", "interval")]
    if unknown:
        return f"{takes}, and not {', '.join(unknown)}"
    objects = mark.kwargs.get("max_object", {})
    if not isinstance(objects, Mapping):
        return f"max_object is {{name: size}}, and not {objects!r}"
    if not objects and not set(mark.kwargs) & set(_BUDGETS):
        return f"{takes}: it has no budget"
    if "max_held" in mark.kwargs and not _is_share(mark.kwargs["max_held"]):
        return f"max_held is a share, from 0 to 1 or such as '5%', and not {mark.kwargs['max_held']!r}"
    return None


def _is_share(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return False
    return 0 <= share <= 1


def _options(mark: pytest.Mark) -> tuple[list[str], str]:
    given = dict(mark.kwargs)
    interval = str(given.pop("interval", "10ms"))
    objects = given.pop("max_object", {})
    options = [word for name, limit in given.items() for word in (f"--{name.replace('_', '-')}", _limit(limit))]
    options += [word for name, limit in objects.items() for word in ("--max-object", f"{name}={_limit(limit)}")]
    return options, interval


def _limit(limit: object) -> str:
    """Write the limit as `varve check` takes it: without the exponent of a small or a large number."""
    return format(Decimal(str(limit)), "f") if isinstance(limit, float) else str(limit)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Record the test, and judge it."""
    mark = pyfuncitem.get_closest_marker("memory")
    if mark is None or pyfuncitem.config.getoption("--memory") == "off":
        return (yield)
    options, interval = _options(mark)
    try:
        recording = record(pid=os.getpid(), interval=interval, options=["--no-follow"])
        recording.__enter__()
    except VarveError as error:
        pytest.fail(f"the memory of this test cannot be recorded: {error}\nhint: --memory=off", pytrace=False)
    try:
        result = yield
    except BaseException as error:
        recording.__exit__(type(error), error, error.__traceback__)
        raise
    try:
        recording.__exit__(None, None, None)
        judged = run(["check", str(recording.output), *options], permitted=(0, _BROKEN, _NOT_JUDGED))
    except VarveError as error:
        pytest.fail(f"the memory of this test cannot be judged: {error}", pytrace=False)
    if judged.returncode != 0:
        said = (judged.stdout + judged.stderr).decode(errors="replace").strip()
        pytest.fail(f"memory of {pyfuncitem.name}:\n{said}", pytrace=False)
    return result
