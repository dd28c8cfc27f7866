"""Files that commands write: whole or not at all, and in the place of a regular file alone."""

import contextlib
import os
import secrets
import stat
from pathlib import Path

from varve._binary import VarveError

_HINT = "hint: name a file in a folder that you may write to; it may be new, or a regular file that is to be replaced"


def write_file(path: str, content: bytes, mode: int) -> None:
    """Write a file with these permissions. Raises VarveError; what was there before is then as it was."""
    target = Path(path)
    beside = target.with_name(f".varve-{secrets.token_hex(8)}.new") if target.name else target
    try:
        with contextlib.suppress(FileNotFoundError):
            # A link would lead elsewhere, and a FIFO lets its writer wait.
            if not stat.S_ISREG(target.lstat().st_mode):
                raise OSError("it is not a regular file")  # noqa: TRY301 said as the others are
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(handle, mode)
                os.fsync(handle)
            beside.rename(target)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise VarveError(f"{path} cannot be written: {why}\n{_HINT}") from error
