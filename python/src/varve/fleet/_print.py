"""Tables for a terminal."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_WIDEST = 60
_STEP = 1024


def plain(text: str) -> str:
    """Give a text without what a terminal would take for a command: names in traces are anybody's."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)


def cell(column: str, value: object) -> str:
    """Give a value as a person reads it, by the unit that its column's name ends in."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int):
        return plain(str(value))
    if column.endswith("_unix_ns"):
        return moment(value)
    unit = column.rpartition("_")[2]
    if unit == "permille":
        return f"{value / 10:.1f} %"
    return size(value) if unit == "bytes" else duration(value) if unit == "ns" else f"{value:,}"


def size(value: int) -> str:
    """Give bytes with a unit."""
    amount, unit = float(value), 0
    while abs(amount) >= _STEP and unit + 1 < len(_UNITS):
        amount /= _STEP
        unit += 1
    return f"{value} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def duration(value: int) -> str:
    """Give nanoseconds with a unit."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:,.1f} {unit}"
    return f"{value} ns"


def moment(value: int) -> str:
    """Give nanoseconds since 1970 as a date and time; 0 is not known."""
    return f"{datetime.fromtimestamp(value // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC" if value else "-"


def shortened(text: str, width: int) -> str:
    """Cut a text that is wider."""
    return text if len(text) <= width else text[: width - 1] + "…"


def traces(count: int) -> str:
    """Give a number of traces."""
    return f"{count:,} {'trace' if count == 1 else 'traces'}"


def heading(column: str) -> str:
    """Give a column's name without its unit. A share of something is called one."""
    name = column.removesuffix("_bytes").removesuffix("_unix_ns").removesuffix("_ns")
    if name.endswith("_permille"):
        name = name.removesuffix("_permille")
        name = name if name.endswith("share") else f"{name}_share"
    return name.replace("_", " ")


def print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], omitted: int, out: TextIO) -> None:
    """Print a table: numbers to the right, long names cut."""
    cells = [[cell(column, row[column]) for column in columns] for row in rows]
    cells = [[shortened(text, _WIDEST) for text in line] for line in cells]
    names = [heading(column) for column in columns]
    widths = [max([len(name), *(len(line[at]) for line in cells)]) for at, name in enumerate(names)]
    right = [any(isinstance(row[column], int) for row in rows) for column in columns]
    for line in (names, *cells):
        parts = [
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, right, strict=True)
        ]
        print("  ".join(parts).rstrip(), file=out)
    if not rows:
        print("(none)", file=out)
    if omitted:
        print(f"({omitted:,} more)", file=out)


def print_report(made: Mapping[str, Any], out: TextIO) -> None:
    """Print the document of a report."""
    runs, skipped = made["runs"], made["skipped"]
    print(f"{plain(made['store'])}: {traces(runs['used'])}", file=out)
    print(remark(runs, skipped), file=out)
    for view in made["views"].values():
        print(f"\n{view['title'].rstrip('.')}", file=out)
        print_rows(view["columns"], view["rows"], view["omitted"], out)


def remark(runs: Mapping[str, int], skipped: Mapping[str, Any]) -> str:
    """Say what no figure has."""
    parts = [f"{runs['incomplete']:,} incomplete, which are in no figure of sites"]
    parts.append(f"{runs['without_touches']:,} whose touched pages are not all known, in no figure but false sharing")
    parts.append(f"{runs['without_samples']:,} without samples")
    kinds = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in skipped["kinds"].items())
    parts.append(f"skipped: {kinds}" if kinds else "none skipped")
    return "; ".join(parts)
