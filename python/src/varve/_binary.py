"""The binary that records and reports."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path


class VarveError(Exception):
    """What went wrong, with a hint where there is one."""


def binary() -> str:
    """Path of the binary: ``$VARVE``, or ``varve`` of the path."""
    named = os.environ.get("VARVE")
    found = shutil.which(named or "varve")
    if found is None:
        what = f"there is no program {named!r}, which VARVE names" if named else "there is no `varve` in PATH"
        raise VarveError(f"{what}\nhint: build it with `make build`, and name it in the variable VARVE")
    return str(Path(found).resolve())


def run(arguments: Sequence[str], *, permitted: Sequence[int] = (0,)) -> subprocess.CompletedProcess[bytes]:
    """Run the binary to its end. Raises VarveError with what it said where its exit code is not permitted."""
    done = subprocess.run([binary(), *arguments], capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode not in permitted:
        said = done.stderr.decode(errors="replace").strip() or f"varve ended with exit code {done.returncode}"
        raise VarveError(said)
    return done
