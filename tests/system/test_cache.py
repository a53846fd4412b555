"""The folder of what asyncrl keeps for all runs of a user."""

import os
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.system.places import cache_folder


def test_it_is_in_the_home_of_the_user_unless_it_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder("tasks") == tmp_path / "home" / ".cache" / "asyncrl" / "tasks"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder("tasks") == tmp_path / "cache" / "asyncrl" / "tasks"


def test_a_user_without_a_home_is_told_which_variables_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose user id is in no /etc/passwd."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31)
    with pytest.raises(InputError, match="Set HOME, or XDG_CACHE_HOME"):
        cache_folder("tasks")
