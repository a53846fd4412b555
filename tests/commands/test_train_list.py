"""`asyncrl train` alone lists the shipped recipes that run here."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes.commands import Command

from asyncrl.commands.train import lacks, recipe_list
from asyncrl.recipe.shipped import Header

SUMS = Header("sums", "Sums.", "1 minute on two cores", 1, 4)


def test_train_alone_lists_recipes_and_ends_with_2(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "asyncrl train RECIPE" in command("train", code=2).out


def test_the_quickest_is_first_and_each_has_its_command_time_and_memory() -> None:
    said = recipe_list(free_gib=64)
    first, last = said.index("asyncrl train r1_zero_arithmetic_cpu\n"), said.index("asyncrl train grpo_gsm8k")
    assert first < last
    assert (
        "additions of 2 to 4 digit numbers, with an optional scratchpad.\n    1 minute on two cores" in said
    )
    assert "16 GiB\n    asyncrl train grpo_gsm8k_qwen2.5_0.5b\n" in said
    assert "dapo_32b" not in said


def test_a_run_that_needs_another_names_both_commands() -> None:
    assert "asyncrl train sft_arithmetic_cpu\n    asyncrl train distill_arithmetic_cpu\n" in recipe_list(64)


def test_recipes_that_need_more_memory_than_is_free_are_said_apart() -> None:
    said = recipe_list(free_gib=5)
    assert "asyncrl train grpo_gsm8k" not in said
    assert "Not here: grpo_gsm8k_qwen2.5_0.5b, needs 16 GiB of memory." in said
    assert "asyncrl train r1_zero_arithmetic_cpu\n" in said


def test_a_module_that_is_not_installed_is_said_with_its_extra() -> None:
    assert lacks(SUMS, 8.0) is None
    assert lacks(SUMS, 3.0) == "needs 4 GiB of memory"
    said = lacks(replace(SUMS, module="no_such_module", extra="gym"), 8.0)
    assert said is not None and "the extra gym" in said and "GYM=1" in said
