"""The page of a report: one file, no script, no network. Names in traces are anybody's, so all text is escaped."""

from collections.abc import Mapping
from html import escape
from typing import Any

from varve.fleet._print import cell, heading, plain, remark, shortened, traces

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #60646c; --line: #d9d9e0; --ground: #fcfcfd; --bar: #8ec8f6;
  --head: #f0f0f3 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #edeef0; --soft: #b0b4ba; --line: #363a3f; --ground: #111113; --bar: #104d87; --head: #212225 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 90rem; padding: 1.5rem; font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--ground) }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2.2rem 0 .2rem }
p { color: var(--soft); margin: .2rem 0 .6rem; max-width: 60rem } nav a { margin-right: 1rem; color: inherit }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px }
table { border-collapse: collapse; width: 100%; font-size: 13px }
th, td { padding: .25rem .5rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line) }
tr:last-child td { border-bottom: 0 }
th { background: var(--head); font-weight: 600; white-space: normal; vertical-align: bottom }
th::first-letter { text-transform: uppercase }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
td.name { max-width: 16rem; overflow: hidden; text-overflow: ellipsis; font: 12px ui-monospace, monospace }
td.build { max-width: 8rem }
td.long { min-width: 13rem; max-width: none; white-space: normal; overflow-wrap: anywhere }
td.bar { background: linear-gradient(to left, var(--bar) var(--part), transparent var(--part)) }
svg { display: block; width: 9rem; height: 1rem } svg line { stroke: var(--soft) }
svg rect { fill: var(--bar) } svg circle { fill: var(--ink) }
"""
# The column whose size bars show.
_BARS = {
    "savings": "cold_bytes",
    "cold_by_site": "fleet_cold_bytes",
    "regressions": "growth_bytes",
    "false_sharing": "share_permille",
}
# Columns of names that may be as long as a line, and how much of one is shown.
_LONG = {"site", "object", "code", "other_code"}
_WIDEST = 160
_NOTES = {
    "services": "Builds are in the order of their first day. Losses: what is missing in some of the incomplete runs, "
    "by the name of its counter.",
    "savings": "Sums over the hosts that were recorded. Cold: pages of objects that were touched, are there at the "
    "end, and were not touched in the last quarter: they could lie in slower memory. Cold share: of touched memory. "
    "Covered share: how much of touched memory lies in objects whose site is known. Nothing is said of the rest, which "
    "is most of the heap of processes that ran before the recorder. Never touched: takes address space and, as a rule, "
    "no memory, so that giving it up saves none. Cold and never touched are lower bounds; only pages that lie wholly "
    "within an object count. Data that lies in files or that processes share does not count.",
    "cold_by_site": "Per run, and summed over hosts. Cold: touched and then idle. Never touched: takes address space "
    "and, as a rule, no memory. A place is the distance in lines from the function's beginning: "
    "sites stay the same from build to build.",
    "working_set": "Quantiles over all intervals of all runs. They depend on the length of intervals. The drawing "
    "shows 10 % to 90 % (bar), the median (dot) and the largest (line), on one scale.",
    "regressions": "Medians over runs, where they grew by 5 % and 64 KiB or more. Clear: three of four runs after are "
    "above three of four before.",
    "hosts": "Medians over a host's runs that lie farther from the fleet's than ten times the hosts' median distance.",
    "false_sharing": "From samples: pairs of threads that took turns at different bytes of a line. What is not listed "
    "may exist.",
}


def page(made: Mapping[str, Any]) -> str:
    """Make the page of the document of a report."""
    views = made["views"]
    links = "".join(f'<a href="#{name}">{escape(heading(name))}</a>' for name in views)
    body = "".join(_section(name, view) for name, view in views.items())
    chosen = made["selected"]
    limits = [f"since {chosen['since']}"] if chosen["since"] else []
    limits += [f"until {chosen['until']}"] if chosen["until"] else []
    limits += [f"service {chosen['service']}"] if chosen["service"] is not None else []
    title = f"Varve fleet: {plain(made['store'])}"
    lead = f"{', '.join([traces(made['runs']['used']), *limits])}. {remark(made['runs'], made['skipped'])}."
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>{escape(plain(lead))}</p><nav>{links}</nav>{body}{_skipped(made['skipped'])}"
        "</body></html>\n"
    )


def _section(name: str, view: Mapping[str, Any]) -> str:
    rows, columns = view["rows"], view["columns"]
    note = f"<h2 id={name}>{escape(view['title'].rstrip('.').capitalize())}</h2><p>{escape(_NOTES[name])}</p>"
    if not rows:
        return f"{note}<p>None.</p>"
    numbers = {column for column in columns if any(_is_number(row[column]) for row in rows)}
    bar = _BARS.get(name)
    largest = max((row[bar] or 0 for row in rows), default=0) if bar else 0
    drawn = name == "working_set"
    head = "".join(
        f"<th{' class=number' if column in numbers else ''}>{escape(heading(column))}</th>" for column in columns
    )
    lines = []
    scale = max((row["max_bytes"] for row in rows), default=0) if drawn else 0
    for row in rows:
        cells = "".join(
            _cell(column, row[column], column in numbers, largest if column == bar else 0) for column in columns
        )
        lines.append(f"<tr>{cells}{_drawing(row, scale) if drawn else ''}</tr>")
    more = f"<p>{view['omitted']:,} more rows are left out.</p>" if view["omitted"] else ""
    head += "<th>distribution</th>" if drawn else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f"{note}<div class=wide>{table}</div>{more}"


def _cell(column: str, value: object, number: bool, largest: int) -> str:  # noqa: FBT001
    text = escape(cell(column, value))
    if not number:
        # A build id is as wide as five numbers, and its beginning tells it from others.
        kind = '"name build"' if column.endswith("build") else '"name long"' if column in _LONG else "name"
        short = escape(shortened(cell(column, value), _WIDEST))
        return f'<td class={kind} title="{text}">{short}</td>'
    if largest > 0 and isinstance(value, int):
        return f'<td class="number bar" style="--part:{100 * value / largest:.1f}%">{text}</td>'
    return f"<td class=number>{text}</td>"


def _drawing(row: Mapping[str, Any], scale: int) -> str:
    def at(column: str) -> float:
        return 2 + 176 * int(row[column]) / max(scale, 1)

    low, middle, high, end = at("p10_bytes"), at("median_bytes"), at("p90_bytes"), at("max_bytes")
    return (
        '<td><svg viewBox="0 0 180 16" role="img" aria-label="distribution">'
        f'<line x1="{low:.1f}" x2="{end:.1f}" y1="8" y2="8"/>'
        f'<rect x="{low:.1f}" y="3" width="{max(high - low, 1):.1f}" height="10"/>'
        f'<circle cx="{middle:.1f}" cy="8" r="3"/></svg></td>'
    )


def _skipped(skipped: Mapping[str, Any]) -> str:
    if not skipped["count"]:
        return ""
    lines = "".join(
        f"<tr><td class=name>{escape(plain(entry['path']))}</td><td>{escape(entry['kind'].replace('_', ' '))}</td>"
        f"<td>{escape(plain(entry['why']))}</td></tr>"
        for entry in skipped["traces"]
    )
    more = f"<p>{skipped['omitted']:,} more are not named.</p>" if skipped["omitted"] else ""
    return (
        f"<h2 id=skipped>Skipped</h2><p>{skipped['count']:,} are in no figure.</p><div class=wide><table><thead><tr>"
        f"<th>trace</th><th>kind</th><th>why</th></tr></thead><tbody>{lines}</tbody></table></div>{more}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
