"""Options of ``python -m varve.fleet``, and what they start."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from varve import _temporary
from varve._binary import VarveError
from varve._new_file import write_file
from varve.fleet import _signals
from varve.fleet._engine import VERSION, Engine, Text, texts
from varve.fleet._store import Selection, Storage, encoded

if TYPE_CHECKING:
    from varve.fleet._store import Skipped


_MAX_NUMBER = (1 << 63) - 1
_MAX_THREADS = 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Gives the exit code: 0, or 2 where it could not be done; 1 where a trace is not pushed."""
    _signals.listen()
    try:
        return _run(arguments)
    except _signals.Stopped as stopped:
        return stopped.code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 nobody is shown a traceback
        # An engine may make another error of the signal.
        if (code := _signals.code()) is not None:
            return code
        _say(f"this must not happen: {error!r}\nhint: tell the maintainers what you did, and where the store came from")
        return 2
    finally:
        _temporary.remove_all()


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        done: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has enough; the interpreter's own flush would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (VarveError, OSError) as error:
        if (code := _signals.code()) is not None:
            return code
        _say(str(error))
        return 2
    return done


def _say(text: str) -> None:
    """Print a sentence and its hint; both may have names of anybody's."""
    from varve.fleet._print import plain  # noqa: PLC0415

    what, _, hint = text.partition("\nhint: ")
    print(f"varve fleet: {_lines(plain, what)}", file=sys.stderr)
    if hint:
        print(f"hint: {_lines(plain, hint)}", file=sys.stderr)


def _lines(plain: Callable[[str], str], text: str) -> str:
    # Engines show where in a query an error is.
    return "\n".join(plain(line) for line in text.splitlines())


class _Parser(argparse.ArgumentParser):
    """Says in a sentence what is wrong, and where to look."""

    def error(self, message: str) -> NoReturn:
        """Say it, and end."""
        # What a `type` below raises comes as "argument --limit: it must ...".
        what = re.sub(r"^argument ([^:]+): ", r"\1: ", message)
        _say(f"{what}\nhint: `{self.prog} --help` lists the arguments")
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="varve fleet", description="Asks the traces of a store, and puts traces into one (docs/fleet.md)."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    common = _Parser(add_help=False)
    common.add_argument("store", metavar="STORE", help="a folder, or s3://BUCKET/PREFIX")
    common.add_argument("--engine", choices=("duckdb", "spark"), default="duckdb", help="what answers (duckdb)")
    common.add_argument("--master", metavar="URL", help="Spark's master, such as spark://HOST:7077 (local[*])")
    common.add_argument("--memory", metavar="SIZE", type=_size, default="2GiB", help="memory of DuckDB at most (2GiB)")
    common.add_argument("--threads", metavar="N", type=_threads, help="CPUs that DuckDB uses (all)")
    common.add_argument("--since", metavar="DATE", type=_day, help="traces of this UTC day and later")
    common.add_argument("--until", metavar="DATE", type=_day, help="traces of this UTC day and earlier")
    common.add_argument("--service", metavar="NAME", type=_text, help="traces of this service")
    common.add_argument("--json", action="store_true", help="write JSON")

    report = commands.add_parser("report", parents=[common], help="answer all views")
    report.add_argument("--html", metavar="FILE", help="write a page, which needs no network")
    report.add_argument("--limit", metavar="N", type=_count, default=100, help="rows of each view at most (100)")
    report.set_defaults(run=_report)

    query = commands.add_parser("query", parents=[common], help="answer one view, or a query of your own")
    query.add_argument("view", metavar="VIEW", help=f"{', '.join(texts('views'))}, or a file with a query (-: stdin)")
    query.add_argument("--limit", metavar="N", type=_count, help="rows at most (all)")
    query.set_defaults(run=_query)

    compact = commands.add_parser("compact", parents=[common], help="make few files of many")
    compact.add_argument("--group", metavar="N", type=_count, default=2048, help="traces of a part at most (2048)")
    compact.set_defaults(run=_compact)

    push = commands.add_parser(
        "push",
        help="put traces into a store in S3",
        description="Puts traces into a store in S3, as `varve push` does, which calls it. What was cut off is gone on "
        "with by the same command, and a trace that is there already is left alone. The exit code is 0 where all "
        "traces are in the store; 1 where one is not; 2 where the arguments are wrong.",
    )
    push.add_argument("traces", metavar="TRACE", nargs="+", help="trace folders")
    push.add_argument("--to", metavar="STORE", required=True, help="s3://BUCKET/PREFIX; the bucket must be there")
    push.add_argument("--service", metavar="NAME", type=_name, help="what the program is called (its file's name)")
    push.add_argument("--build", metavar="NAME", type=_name, help="which build it is (its build id, or htlhash)")
    push.add_argument("--host", metavar="NAME", type=_name, help="where it was recorded (this machine)")
    push.set_defaults(run=_push)
    return parser


def _report(options: argparse.Namespace) -> int:
    from varve.fleet._print import print_report  # noqa: PLC0415
    from varve.fleet._report import VIEWS, ask, document, needed  # noqa: PLC0415
    from varve.fleet._session import Session, Spool, open_store  # noqa: PLC0415

    found = texts("views")
    views = [found[name] for name in VIEWS]
    storage, selection = _storage(options), _selection(options)
    with Spool() as spool:
        opened = open_store(storage, selection, needed(views), spool)
        engine = _engine(options, storage)
        try:
            session = Session(storage, engine, opened, needed(views), spool)
            answers = [ask(session, view, options.limit) for view in views]
        finally:
            engine.close()
    _warn(session.skipped)
    made = document(options.store, options.engine, selection, opened, session, answers)
    if options.html is not None:
        from varve.fleet._page import page  # noqa: PLC0415

        # As closed as the most closed trace that is in it.
        write_file(options.html, page(made).encode(errors="replace"), 0o644 if session.is_shared else 0o600)
    if options.json:
        print(json.dumps(made, indent=1))
    elif options.html is None:
        print_report(made, sys.stdout)
    return 0


def _query(options: argparse.Namespace) -> int:
    from varve.fleet._print import print_rows  # noqa: PLC0415
    from varve.fleet._report import SCHEMA, ask, needed, skipped, tables_not_read  # noqa: PLC0415
    from varve.fleet._session import Session, Spool, open_store  # noqa: PLC0415

    found = texts("views")
    view = found[options.view] if options.view in found else _own(options.view, list(found))
    storage = _storage(options)
    with Spool() as spool:
        opened = open_store(storage, _selection(options), needed([view]), spool)
        engine = _engine(options, storage)
        try:
            session = Session(storage, engine, opened, needed([view]), spool)
            if options.view not in found:
                session.confine(view.sql)
            answer = ask(session, view, options.limit)
        finally:
            engine.close()
    _warn(session.skipped)
    unread = tables_not_read(needed([view])) if len(opened.compacted) < len(session.runs) else []
    if unread:
        tables = f"the table {unread[0]} is" if len(unread) == 1 else f"the tables {', '.join(unread)} are"
        print(f"varve fleet: note: {tables} not read: a trace that is damaged only there counts", file=sys.stderr)
    if options.json:
        made = {
            "schema": SCHEMA.replace("report", "query"),
            "views_version": VERSION,
            "view": view.name,
            "runs": len(session.runs),
            "skipped": skipped(session.skipped),
            "unread_tables": unread,
            "columns": list(answer.columns),
            "rows": list(answer.rows),
            "omitted": answer.omitted,
        }
        print(json.dumps(made, indent=1, default=str))
    else:
        print_rows(answer.columns, answer.rows, answer.omitted, sys.stdout)
    return 0


def _own(name: str, views: Sequence[str]) -> Text:
    try:
        sql = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise VarveError(
            f"`{name}` is neither a view nor a file: {error}\nhint: views are {', '.join(views)}"
        ) from error
    if not sql.strip():
        raise VarveError(f"there is no query in `{name}`\nhint: write one SELECT over runs and facts (docs/fleet.md)")
    # Those that it names are made.
    reads = tuple(fact for fact in texts("facts") if fact in sql)
    return Text(name, sql.strip().rstrip(";"), reads, name)


def _compact(options: argparse.Namespace) -> int:
    from varve.fleet._compact import locked, write_part  # noqa: PLC0415
    from varve.fleet._engine import FACTS  # noqa: PLC0415
    from varve.fleet._session import Session, Spool, only, open_store  # noqa: PLC0415

    storage = _storage(options)
    written: list[dict[str, object]] = []
    with locked(storage):
        with Spool() as spool:
            opened = open_store(storage, _selection(options), [], spool)
        rest = [run for run in opened.runs if run.id not in opened.compacted]
        missed = list(opened.skipped)
        for at in range(0, len(rest), options.group):
            group = only(opened, rest[at : at + options.group])
            with Spool() as spool:
                engine = _engine(options, storage)
                try:
                    session = Session(storage, engine, group, list(FACTS), spool)
                    if session.runs:
                        path = write_part(storage, session, spool)
                        written.append({"path": path, "runs": len(session.runs)})
                        print(f"varve fleet: wrote {path}: {len(session.runs)} traces", file=sys.stderr)
                finally:
                    engine.close()
            missed += session.skipped[len(group.skipped) :]
    _warn(missed)
    if options.json:
        from varve.fleet._report import SCHEMA, skipped  # noqa: PLC0415

        schema = SCHEMA.replace("report", "compact")
        already = len(opened.compacted)
        print(
            json.dumps({"schema": schema, "parts": written, "already": already, "skipped": skipped(missed)}, indent=1)
        )
    elif not written:
        print("varve fleet: nothing to compact", file=sys.stderr)
    return 0


def _push(options: argparse.Namespace) -> int:
    from varve.fleet._push import TRIES, Names, push  # noqa: PLC0415

    if not options.to.startswith("s3://"):
        raise VarveError(f"{options.to} is not in S3\nhint: `varve push` puts traces into a folder")
    names = Names(options.service, options.build, options.host)
    return push(options.traces, Storage(options.to, tries=TRIES), names)


def _storage(options: argparse.Namespace) -> Storage:
    if options.master is not None and options.engine != "spark":
        raise VarveError("--master is for --engine spark\nhint: give --engine spark too")
    return Storage(options.store, copies=options.engine != "spark")


def _engine(options: argparse.Namespace, storage: Storage) -> Engine:
    if options.engine == "spark":
        from varve.fleet._spark import Spark  # noqa: PLC0415

        return Spark(master=options.master or "local[*]", server=storage.server)
    from varve.fleet._duckdb import DuckDB  # noqa: PLC0415

    return DuckDB(memory=options.memory, threads=options.threads)


def _selection(options: argparse.Namespace) -> Selection:
    if options.since and options.until and options.since > options.until:
        raise VarveError(f"--since {options.since} is after --until {options.until}\nhint: both days are included")
    return Selection(options.since, options.until, options.service)


def _warn(entries: "Sequence[Skipped]") -> None:
    from varve.fleet._print import plain  # noqa: PLC0415

    named = 20
    for entry in entries[:named]:
        print(f"varve fleet: skipped {plain(entry.path)}: {entry.kind}: {plain(entry.why)}", file=sys.stderr)
    if len(entries) > named:
        print(f"varve fleet: skipped {len(entries) - named} more (--json names them)", file=sys.stderr)


def _text(text: str) -> str:
    try:
        encoded(text)
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("it is no text") from None
    return text


def _name(text: str) -> str:
    most = 200
    if not 0 < len(encoded(_text(text))) <= most:
        raise argparse.ArgumentTypeError(f"it is longer than {most} bytes" if text else "it is empty")
    return text


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{text}` is not a day; write YYYY-MM-DD") from None


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) or not 1 <= int(text) <= _MAX_NUMBER:
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a whole number of 1 or more (9,223,372,036,854,775,807 at most)"
        )
    return int(text)


def _threads(text: str) -> int:
    if (value := _count(text)) > _MAX_THREADS:
        raise argparse.ArgumentTypeError(f"{text} threads are more than {_MAX_THREADS:,}")
    return value


def _size(text: str) -> str:
    least = 64 << 20
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
        "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40
    }  # fmt: skip
    found = re.fullmatch(r"([0-9]{1,9}(?:[.][0-9]{1,9})?) ?([kmgtKMGT][iI]?[bB])", text)
    if not found:
        raise argparse.ArgumentTypeError(f"`{text}` is not a size; write one as 500MiB or 2GiB")
    if float(found[1]) * units[found[2].upper()] < least:
        raise argparse.ArgumentTypeError(f"{text} is less than the 64MiB that DuckDB needs")
    return text
