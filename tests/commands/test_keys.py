"""`asyncrl keys`."""

import re
from itertools import pairwise

from fakes.commands import Command

from asyncrl.recipe.keys import markdown, names


def test_every_key_and_section_is_printed(command: Command) -> None:
    printed = command("keys").out
    assert set(re.findall(r"^(?:- `|## )([a-z0-9_.]+)", printed, re.MULTILINE)) == names()


def test_one_key_is_printed_alone(command: Command) -> None:
    said = command("keys", "replay.max_uses").out
    assert said.startswith("- `replay.max_uses` (integer >= 2; default 2):\n  ")


def test_a_key_that_no_recipe_has_is_bad_input(command: Command) -> None:
    assert command("keys", "rollout.zzz", code=2).err.startswith("A recipe has no key rollout.zzz.")


def test_a_choice_follows_a_whole_sentence() -> None:
    # A wrapped line that begins with "word:" would become a choice in the middle of a sentence.
    lines = markdown().splitlines()
    choices = [(before, line) for before, line in pairwise(lines) if line.startswith("  - ")]
    assert choices
    assert [line for before, line in choices if not before.endswith((".", ":"))] == []
