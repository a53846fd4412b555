"""An evaluation's own length, stop strings and grader reach its sets, and its room is checked."""

import json
from pathlib import Path

import pytest
from fakes.commands import Command
from fakes.newcomer import row, write_project

from asyncrl.controller.inputs import Inputs
from asyncrl.errors import InputError
from asyncrl.evaluation.asked_sets import benchmarks_of
from asyncrl.launch.preflight import read_evaluation_inputs, read_inputs
from asyncrl.recipe.file import load_recipe


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path)
    return tmp_path


def inputs_of(project: Path, *overrides: str) -> Inputs:
    inputs, _ = read_inputs(load_recipe(project / "recipe.yaml", list(overrides)))
    return inputs


def test_evaluations_and_rollouts_each_have_their_length_and_their_ends(project: Path) -> None:
    own = ("evaluation.max_new_tokens=50", "evaluation.stop=['+']", "rollout.stop=['=']")
    inputs = inputs_of(project, *own)
    assert (inputs.rollout_sampling().max_new_tokens, inputs.codec.stop.strings) == (16, ("=",))
    assert inputs.evaluation_sampling().max_new_tokens == 50
    assert inputs.evaluation_codec().stop.strings == ("+",)
    (heldout,) = read_evaluation_inputs(inputs.recipe, [], has_heldout=True).eval_sets
    assert (heldout.sampling.max_new_tokens, heldout.codec.stop.strings) == (50, ("+",))
    assert heldout.describe()["max_new_tokens"] == 50
    alike = inputs_of(project)
    assert alike.evaluation_codec() is alike.codec


def test_the_graders_of_held_out_rows_are_replaced_and_those_of_training_rows_stay(project: Path) -> None:
    (project / "heldout.jsonl").write_text(f"{row('5+1=', '6', verifier='numeric')}\n{row('6+1=', '7')}\n")
    assert [task.verifier.name for task in inputs_of(project).heldout_tasks] == ["numeric", "math"]
    own = ("evaluation.verifier=exact", "evaluation.verifier_options={fallbacks: [last_line]}")
    inputs = inputs_of(project, *own, f"evaluation.benchmarks=[{project}/heldout.jsonl]")
    graders = [(task.verifier.name, task.verifier.options) for task in inputs.heldout_tasks]
    assert graders == [("exact", {"fallbacks": ["last_line"]})] * 2
    assert {task.verifier.name for task in inputs.train_tasks} == {"math"}
    # A benchmark from a file of rows is graded as data.heldout is.
    assert {task.verifier.name for task in inputs.eval_sets[0].tasks} == {"exact"}
    assert [each.max_new_tokens for each in benchmarks_of(inputs.recipe)] == [16]


def test_a_grader_that_cannot_read_the_golds_is_refused_with_the_row(project: Path) -> None:
    with pytest.raises(InputError, match=r"heldout\.jsonl:1: .*"):
        inputs_of(project, "evaluation.verifier=choice")


def test_the_room_of_an_evaluation_is_checked(project: Path, command: Command) -> None:
    said = command("check", project / "recipe.yaml", "evaluation.max_new_tokens=128", code=2).err
    assert "evaluation.max_new_tokens is 128 but the context holds 128 tokens" in said
    small = ["check", str(project / "recipe.yaml"), "serving.max_total_tokens=90"]
    command(*small)
    said = command(*small, "evaluation.max_new_tokens=100", code=2).err
    assert "or more, or lower evaluation.max_new_tokens" in said


def test_a_held_out_prompt_is_shown_with_what_ends_its_answer(project: Path, command: Command) -> None:
    words = [str(project / "recipe.yaml"), "evaluation.max_new_tokens=50", "evaluation.stop=['+']"]
    shown = command("prompt", *words, "evaluation.verifier=exact", "--heldout").out
    assert f"{json.dumps('+')}, or after 50 tokens (evaluation.max_new_tokens)" in shown
    assert "verifier   exact" in shown
    assert "or after 16 tokens (rollout.max_new_tokens)" in command("prompt", *words).out
