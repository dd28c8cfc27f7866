"""Temporary folders that are gone when their process is, in whatever way it ends."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Self

_LIVING: set["Folder"] = set()


class Folder:
    """A folder of this user alone. Who uses it holds its lock: one that nobody holds was left by a killed process."""

    def __init__(self, prefix: str) -> None:
        """Make it, and remove what killed processes left with this prefix."""
        _remove_left(prefix)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            # Until it has its lock, another process may take it for one that was left, and remove it.
            try:
                self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            if os.fstat(self._handle).st_nlink > 0:
                break
            os.close(self._handle)
        _LIVING.add(self)

    def __enter__(self) -> Self:
        """Give it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it."""
        self.remove()

    def remove(self) -> None:
        """Remove it and what is in it, once."""
        if self not in _LIVING:
            return
        _LIVING.discard(self)
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def remove_all() -> None:
    """Remove the folders of this process."""
    for folder in list(_LIVING):
        folder.remove()


def _remove_left(prefix: str) -> None:
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(tempfile.gettempdir())):
            if entry.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    _remove_if_left(entry.path)


def _remove_if_left(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        about = os.fstat(handle)
        # Ours alone, as mkdtemp makes them: what others made is theirs.
        if about.st_uid == os.geteuid() and stat.S_IMODE(about.st_mode) == 0o700:  # noqa: PLR2004
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(handle)
