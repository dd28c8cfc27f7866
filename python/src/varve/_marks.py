"""Phases of a program, which the trace has in the table ``marks`` (docs/marks.md)."""

import ctypes
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from varve._binary import VarveError

# brk(0, word, name, length) changes nothing; the recorder's part in the kernel sees it.
_BRK = 12
_WORD = 0x56525600
_BEGIN, _END, _EVENT = 1, 2, 3


def _system_call() -> Callable[..., int] | None:
    if platform.system() != "Linux" or platform.machine() != "x86_64" or ctypes.sizeof(ctypes.c_void_p) != 8:  # noqa: PLR2004
        return None
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_size_t]
    return call


class _Heard:
    """Whether somebody records this process."""

    call: Callable[..., int] | None = None
    recordings = 0


if "VARVE_MARKS" in os.environ:
    _Heard.call = _system_call()


def begin_to_hear() -> None:
    """Make marks from now on: a recording of this process has begun."""
    _Heard.recordings += 1
    _Heard.call = _Heard.call or _system_call()


def end_to_hear() -> None:
    """Make no marks for that recording any more."""
    _Heard.recordings -= 1
    if _Heard.recordings == 0 and "VARVE_MARKS" not in os.environ:
        _Heard.call = None


def _say(what: int, name: bytes) -> None:
    call = _Heard.call
    if call is not None:
        call(_BRK, 0, _WORD + what, name, len(name))


def _bytes(name: str) -> bytes:
    if not isinstance(name, str):
        raise VarveError(f"the name of a phase or an event is a text, and not {name!r}")
    # What is half a character is no reason to end a program that names its phases.
    return name.encode(errors="replace")


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Name what this thread does within the ``with``. Costs a microsecond or two where nobody records."""
    said = _bytes(name)
    _say(_BEGIN, said)
    try:
        yield
    finally:
        _say(_END, said)


def event(name: str) -> None:
    """Say that something happened."""
    _say(_EVENT, _bytes(name))
