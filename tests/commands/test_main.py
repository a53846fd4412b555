"""How the command line ends before its subcommand has begun."""

import importlib
from types import ModuleType

import pytest

from asyncrl.commands.main import main


def test_ctrl_c_while_a_subcommand_is_imported_is_an_exit_code_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(name: str) -> ModuleType:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert main(["train", "recipe.yaml"]) == 130
