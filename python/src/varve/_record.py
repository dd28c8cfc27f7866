"""Recording, with the binary."""

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from varve import _marks
from varve._binary import VarveError, binary
from varve._trace import Trace

# What the recorder says as it begins to record a process that runs already.
_BEGUN = b"varve: recording process"
_KEPT_LINES = 1000


class _Child:
    """The recorder of a command."""

    def __init__(self, command: list[str]) -> None:
        self._popen = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert self._popen.stderr is not None
        self.stderr: IO[bytes] = self._popen.stderr

    def wait(self, timeout: float | None) -> int | None:
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def end(self) -> None:
        self._popen.send_signal(signal.SIGINT)


class _Orphan:
    """The recorder of a process that runs already, which may be this one: a recorder holds none of its parents."""

    # The shell says the recorder's number and ends; then the recorder begins.
    # Its own output is none of the pipe by which the shell says the number: that pipe is read to its end.
    _SCRIPT = 'exec 3<&0; { read -r _ <&3; exec "$@" 3<&-; } >/dev/null & echo $!'

    def __init__(self, command: list[str]) -> None:
        reading, writing = os.pipe()
        stderr, its_stderr = os.pipe()
        try:
            shell = ["/bin/sh", "-c", self._SCRIPT, "sh", *command]
            said = subprocess.run(shell, stdin=reading, stdout=subprocess.PIPE, stderr=its_stderr, check=True)
            self._handle = os.pidfd_open(int(said.stdout))
            os.write(writing, b"\n")
        finally:
            for end in (reading, writing, its_stderr):
                os.close(end)
        self.stderr: IO[bytes] = os.fdopen(stderr, "rb")

    def wait(self, timeout: float | None) -> int | None:
        # Readable when it has ended.
        if not select.select([self._handle], [], [], timeout)[0]:
            raise TimeoutError
        return None

    def has_ended(self) -> bool:
        return bool(select.select([self._handle], [], [], 0)[0])

    def end(self) -> None:
        # Shells have those in the background ignore SIGINT.
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGTERM)

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            os.close(handle)


class Recording:
    """A recording, within a ``with``. Its trace can be read behind it."""

    def __init__(self, arguments: list[str], output: Path | None, *, pid: int | None) -> None:
        """See `record`, which makes one."""
        self._arguments = arguments
        self._pid = pid
        self._is_own = pid == os.getpid()
        self._holds: tempfile.TemporaryDirectory[str] | None = None
        if output is None:
            self._holds = tempfile.TemporaryDirectory(prefix="varve-")
            output = Path(self._holds.name) / "run.varve"
        #: Where the trace is written; a temporary folder, which goes with this object, where none was named.
        self.output = output
        #: What the recorder said.
        self.messages: list[str] = []
        #: The exit code of the program that was recorded; none for one that ran already.
        self.returncode: int | None = None
        self._process: _Child | _Orphan | None = None
        self._reader: threading.Thread | None = None
        self._begun = threading.Event()
        self._has_begun = False
        self._trace: Trace | None = None

    def __enter__(self) -> Self:
        """Begin: the program runs, or the recording of the one that runs has begun."""
        command = [binary(), "record", "--force", "-o", str(self.output), *self._arguments]
        if self._pid is None:
            self._process = _Child(command)
        else:
            self._process = _Orphan(command)
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        if self._pid is not None:
            self._begun.wait()
            if not self._has_begun:
                raise VarveError("\n".join(self.messages) or "the recording did not begin")
        if self._is_own:
            _marks.begin_to_hear()
        return self

    def _read(self, stderr: IO[bytes]) -> None:
        with stderr:
            for line in stderr:
                if line.startswith(_BEGUN):
                    self._has_begun = True
                    self._begun.set()
                if len(self.messages) < _KEPT_LINES:
                    self.messages.append(line.decode(errors="replace").rstrip("\n"))
        self._begun.set()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the program ends, for so many seconds at most; its exit code.

        Raises TimeoutError.
        """
        assert self._process is not None, "only within the `with`"
        self.returncode = self._process.wait(timeout)
        if self._reader is not None:
            self._reader.join()
        return self.returncode

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End: a program that the recorder started is waited for; one that ran already runs on.

        After an exception the recorder is told to end, as by Ctrl-C.
        """
        assert self._process is not None
        if self._is_own:
            _marks.end_to_hear()
        if self._pid is not None or error is not None:
            self._process.end()
        self.wait()
        if error is None and not (self.output / "manifest.json").is_file():
            raise VarveError("\n".join(self.messages) or "nothing was recorded")

    @property
    def trace(self) -> Trace:
        """The trace, once the recording has ended."""
        if self._process is None or not self._process.has_ended():
            raise VarveError("the trace is complete when the recording has ended: leave the `with` first")
        if self._trace is None:
            self._trace = Trace(self.output, holds=self._holds)
        return self._trace


def record(  # noqa: PLR0913
    command: Sequence[str | os.PathLike[str]] | None = None,
    *,
    pid: int | None = None,
    output: str | os.PathLike[str] | None = None,
    interval: str | None = None,
    overhead: str | None = None,
    options: Sequence[str] = (),
) -> Recording:
    """Record a command, or a process that runs, which may be this one, as long as the ``with`` lasts.

    command: the program and its arguments; pid: or the process. output: the trace folder, which is replaced;
    a temporary one without. interval, such as ``"50ms"``; overhead, such as ``"5%"``; options: more of
    ``varve record``'s. What is printed goes where it goes without a recorder.
    """
    if (command is None) == (pid is None):
        raise ValueError("a command or a pid")
    if isinstance(command, str):
        raise TypeError("a command is a list: the program and each of its arguments")
    arguments = list(options)
    if interval is not None:
        arguments += ["--interval", interval]
    if overhead is not None:
        arguments += ["--overhead", overhead]
    arguments += ["-p", str(pid)] if command is None else ["--", *(os.fspath(word) for word in command)]
    return Recording(arguments, None if output is None else Path(output), pid=pid)
