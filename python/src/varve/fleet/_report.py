"""The report of a store: every view, and what was left out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from varve.fleet._engine import FACTS, VERSION, Text
from varve.fleet._store import TABLES, Selection, Skipped

if TYPE_CHECKING:
    from varve.fleet._session import Opened, Session

SCHEMA = "varve-fleet-report/1"
#: The order of the report.
VIEWS = ("services", "savings", "cold_by_site", "working_set", "regressions", "hosts", "false_sharing")
# Skipped traces that are named one by one.
_NAMED = 1000


@dataclass(frozen=True)
class Rows:
    """The answer of a view."""

    view: Text
    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    #: Rows beyond the limit.
    omitted: int


def ask(session: "Session", view: Text, limit: int | None) -> Rows:
    """Answer a view. limit: rows at most; None: all."""
    table = session.query(view.sql)
    shown = table if limit is None else table.slice(0, limit)
    return Rows(view, table.column_names, shown.to_pylist(), table.num_rows - shown.num_rows)


def needed(views: Sequence[Text]) -> list[str]:
    """Facts that views read."""
    return sorted({name for view in views for name in view.reads} & set(FACTS))


def tables_not_read(facts: Sequence[str]) -> list[str]:
    """Give the tables of a trace that these facts do not read, which are then not checked."""
    return sorted(set(TABLES).difference(*(FACTS[name].tables for name in facts)))


def document(  # noqa: PLR0913, PLR0917 the parts of one document
    place: str, engine: str, selection: Selection, opened: "Opened", session: "Session", answers: Sequence[Rows]
) -> dict[str, Any]:
    """Give the report as JSON."""
    return {
        "schema": SCHEMA,
        "store": place,
        "engine": engine,
        "views_version": VERSION,
        "selected": {
            "since": selection.since and selection.since.isoformat(),
            "until": selection.until and selection.until.isoformat(),
            "service": selection.service,
        },
        "runs": {
            "used": len(session.runs),
            "compacted": len(opened.compacted),
            "incomplete": sum(not run.complete for run in session.runs),
            "without_touches": sum("superset" not in run.capabilities for run in session.runs),
            "without_samples": sum("samples" not in run.capabilities for run in session.runs),
        },
        "skipped": skipped(session.skipped),
        "views": {
            answer.view.name: {
                "title": answer.view.title,
                "columns": list(answer.columns),
                "rows": list(answer.rows),
                "omitted": answer.omitted,
            }
            for answer in answers
        },
    }


def skipped(entries: Sequence[Skipped]) -> dict[str, Any]:
    """Count and name what is not used."""
    order = sorted(entries, key=lambda entry: (entry.kind, entry.path))
    return {
        "count": len(order),
        "kinds": dict(sorted(Counter(entry.kind for entry in order).items())),
        "traces": [{"path": entry.path, "kind": entry.kind, "why": entry.why} for entry in order[:_NAMED]],
        "omitted": max(len(order) - _NAMED, 0),
    }
