"""`asyncrl keys`, whose output is docs/keys.md."""

from itertools import pairwise
from pathlib import Path

import pytest

from asyncrl import cli

PAGE = Path(__file__).parents[2] / "docs" / "keys.md"


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["keys"]) == 0
    assert PAGE.read_text(encoding="utf-8") == capsys.readouterr().out, "run `asyncrl keys > docs/keys.md`"


def test_one_key_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["keys", "replay.max_uses"]) == 0
    assert capsys.readouterr().out.startswith("- `replay.max_uses` (integer >= 2; default 2):\n  ")


def test_a_key_that_no_recipe_has_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["keys", "rollout.zzz"]) == 2
    assert capsys.readouterr().err.startswith("A recipe has no key rollout.zzz.")


def test_a_choice_follows_a_whole_sentence() -> None:
    # A wrapped line that begins with "word:" would become a choice in the middle of a sentence.
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    choices = [(before, line) for before, line in pairwise(lines) if line.startswith("  - ")]
    assert choices
    assert [line for before, line in choices if not before.endswith((".", ":"))] == []
