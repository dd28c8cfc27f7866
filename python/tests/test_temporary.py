"""Temporary folders of commands that run at the same time."""

import os
import tempfile
from pathlib import Path

from varve._temporary import Folder

PREFIX = "varve-test-"


def test_a_folder_that_another_command_removes_is_made_again(tmp_path, monkeypatch):
    """A folder without a lock looks like one that was left: it goes before it is opened, or before it is locked."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make, open_file, names = tempfile.mkdtemp, os.open, []

    def removed_before(**options):
        names.append(make(**options))
        if len(names) == 1:
            Path(names[0]).rmdir()
        return names[-1]

    def removed_after(path, *options, **more):
        handle = open_file(path, *options, **more)
        if len(names) == 2:
            Path(path).rmdir()
        return handle

    with monkeypatch.context() as change:
        change.setattr(tempfile, "mkdtemp", removed_before)
        change.setattr(os, "open", removed_after)
        folder = Folder(PREFIX)
    assert [str(path) for path in tmp_path.iterdir()] == [str(folder.path)] == names[2:]
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_used_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{PREFIX}left"
    left.mkdir(mode=0o700)
    with Folder(PREFIX) as used, Folder(PREFIX) as other:
        assert {used.path, other.path} == set(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []
