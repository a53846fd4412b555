"""The responses of `critic.warmup_run`: which ones are learned, and what is refused before work starts."""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fakes.audited_run import write_audited_run
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.journal.starts import RunEnd, record_end
from asyncrl.journal.writer import Journal
from asyncrl.recipe import Recipe
from asyncrl.records import Task
from asyncrl.tasks.recorded import read_recorded_tasks

STEPS = [
    {1: [("\\boxed{2}", "correct"), ("\\boxed{7}", "wrong")], 2: [("?", "fault"), ("\\boxed{3}", "correct")]},
    {
        3: [("\\boxed{4}", "correct"), ("x", "no_answer")],
        4: [("\\boxed{6}", "wrong"), ("\\boxed{5}", "correct")],
    },
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    found = write_audited_run(tmp_path, STEPS)
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model/tokenizer.json").write_text("{}")
    journal = Journal(found / "journal.sqlite")
    record_end(journal, RunEnd(version=2, reason="num_steps"))
    journal.close()
    return found


def warmed(run: Path, **sections: Any) -> Recipe:
    critic = {"warmup_run": str(run), "warmup_steps": 1, "learning_rate": 1e-4} | sections.pop("critic", {})
    rollout = {"groups_per_batch": 2, "samples_per_group": 2} | sections.pop("rollout", {})
    folder = run.parents[1]
    place = {"run_folder": str(folder / "next"), "algorithm": {"advantage": "gae"}}
    return make_recipe(folder / "model", critic=critic, rollout=rollout, **place, **sections)


def read(recipe: Recipe, context_tokens: int = 64) -> list[Task]:
    return read_recorded_tasks(recipe, Path(recipe.model.path), context_tokens)


def change(run: Path, statement: str) -> None:
    with sqlite3.connect(run / "journal.sqlite") as db:
        db.execute(statement)
    db.close()


def test_whole_groups_come_in_the_order_of_admission_with_tokens_and_rewards(run: Path) -> None:
    first, second = read(warmed(run))
    # Group 1 has a fault, whose reward is not known.
    assert [first.reference.group_id, second.reference.group_id] == [0, 2]
    right, wrong = first.reference.responses
    assert (right.score.outcome, right.score.reward, wrong.score.reward) == ("correct", 1.0, 0.0)
    assert right.text == "\\boxed{2}" and len(right.tokens) == len(right.behavior_logprobs) > 0
    assert first.prompt == "1+1=" and first.prompt_tokens == first.reference.prompt_tokens


def test_a_response_of_several_turns_is_passed_over_for_a_later_one_and_its_prompt(run: Path) -> None:
    prompt = read(warmed(run))[0].prompt_tokens
    change(run, "INSERT INTO observations VALUES ('00000000-00', 3, 0, 'stop', x'09000000', '[]')")
    change(run, "UPDATE trajectories SET prompt_tokens = x'07000000' WHERE trajectory_id = '00000000-00'")
    first = read(warmed(run, rollout={"samples_per_group": 1}))[0]
    assert first.reference.group_id == 0
    assert [each.text for each in first.reference.responses] == ["\\boxed{7}"]
    assert first.prompt_tokens == prompt != (7,)


def test_a_run_whose_warm_up_is_over_needs_the_earlier_one_no_more(run: Path) -> None:
    recipe = warmed(run)
    # It has taken two batches, and its warm-up is one.
    shutil.copytree(run, recipe.folder())
    change(run, "UPDATE trajectories SET prompt_tokens = x''")
    assert read(recipe) == []


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("UPDATE trajectories SET prompt_tokens = x''", "has the tokens of 0 groups with 2 graded responses"),
        (
            "UPDATE trajectories SET reward = NULL",
            "has the tokens of 0 groups with 2 graded responses or more, and",
        ),
        (
            "DELETE FROM meta WHERE key = 'end of the run'",
            r"that run has not ended\. Let it end first: asyncrl",
        ),
    ],
)
def test_a_run_without_what_the_critic_learns_is_refused(run: Path, damage: str, sentence: str) -> None:
    change(run, damage)
    with pytest.raises(InputError, match=rf"critic\.warmup_run is .*runs/mine, but .*{sentence}"):
        read(warmed(run))


def test_a_run_of_other_tokens_or_of_rows_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokens with its prompt, model\.context_tokens is 3\. Raise it"):
        read(warmed(run), context_tokens=3)
    with pytest.raises(InputError, match=r"but no run is there\. Name the folder of one that has ended"):
        read(warmed(tmp_path / "runs/none"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text(json.dumps({"version": "1"}))
    with pytest.raises(
        InputError, match=r"its tokens are of another tokenizer, that of .*model\. Name a run"
    ):
        read_recorded_tasks(warmed(run), other, 64)
    written = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(written.replace("stage: rl", "stage: sft"))
    with pytest.raises(InputError, match=r"that run's stage is sft: its rows have no rewards"):
        read(warmed(run))


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"critic": {"warmup_steps": 0}},
            r"critic\.warmup_steps is 0: none of its responses would be learned",
        ),
        ({"critic": {"targets": "v_trace"}}, r"critic\.targets is v_trace, whose ratios need the policies"),
        (
            {"replay": {"repeated_groups_per_batch": 1}},
            r"so the policy would learn that run's responses, too",
        ),
        (
            {"turns": {"environment": "./x.py:X"}},
            r"turns or agent is on, but a response of that run is one turn",
        ),
    ],
)
def test_keys_that_the_recorded_responses_do_not_fit_are_refused(
    run: Path, sections: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        warmed(run, **sections)
