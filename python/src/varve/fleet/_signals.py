"""Signals end the command, and its temporary folders go with it."""

import os
import signal
import threading
from types import FrameType

from varve import _temporary

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# How long the command may take to end in order.
_PATIENCE_S = 3.0


class Stopped(BaseException):
    """A signal said that the command is to end."""

    def __init__(self, number: int) -> None:
        """See `listen`."""
        super().__init__(number)
        #: As shells have it.
        self.code = 128 + number


_heard: list[int] = []


def code() -> int | None:
    """Give the exit code where a signal said that this is to end."""
    return 128 + _heard[0] if _heard else None


def listen() -> None:
    """End this process on signals.

    A handler runs when the main thread executes Python again. A query that does not come to that is ended by a thread,
    which hears of the signal by a pipe.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(reading, True)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in _ENDING:
        # Those that nohup or a shell has ignored stay so.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()


def _stop(number: int, _: FrameType | None) -> None:
    # Another one would interrupt what removes the folders.
    for ending in _ENDING:
        signal.signal(ending, signal.SIG_IGN)
    _heard.append(number)
    raise Stopped(number)


def _watch(reading: int) -> None:
    while True:
        for number in os.read(reading, 1):
            if number in _ENDING:
                threading.Event().wait(_PATIENCE_S)
                _temporary.remove_all()
                os._exit(128 + number)
