"""Named held-out sets: settings of their own beside those of data.heldout and of benchmarks."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.newcomer import row, write_project

from asyncrl.commands import main as cli
from asyncrl.controller.inputs import Inputs
from asyncrl.errors import InputError
from asyncrl.launch.preflight import read_inputs
from asyncrl.recipe.file import load_recipe


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path)
    for name, first in (("a", 20), ("b", 30)):
        rows = [row(f"{n}+1=", str(n + 1)) for n in range(first, first + 6)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    asked = [{"question": f"{n}+2=", "answer": f"so\n#### {n + 2}"} for n in range(3)]
    (tmp_path / "gsm.jsonl").write_text("\n".join(map(json.dumps, asked)))
    return tmp_path


def with_sets(project: Path, *sets: dict[str, Any], **evaluation: Any) -> Inputs:
    text = (project / "recipe.yaml").read_text()
    section = json.dumps({"sets": list(sets), **evaluation})
    (project / "own.yaml").write_text(f"{text}evaluation: {section}\n")
    inputs, _ = read_inputs(load_recipe(project / "own.yaml"))
    return inputs


def test_each_set_has_its_own_settings_and_the_others_are_those_of_evaluation(project: Path) -> None:
    mine = {"name": "mine", "sources": ["a.jsonl", {"path": "b.jsonl"}], "num_tasks": 4}
    own = {"temperature": 0.7, "max_new_tokens": 40, "stop": ["+"], "template": "<{{ question }}>"}
    known = {"benchmark": "gsm8k:gsm.jsonl", "samples_per_task": 4, "every_steps": 20, "verifier": "exact"}
    given = {"verifier_options": {"fallbacks": ["last_line"]}}
    inputs = with_sets(
        project, mine | own | {"every_steps": 5}, known | given, max_new_tokens=30, temperature=0.5
    )
    first, second = inputs.eval_sets
    assert (first.name, first.every_steps, first.num_sampled, first.is_greedy) == ("mine", 5, 1, False)
    # The first rows of both sources, in equal shares.
    assert [task.prompt for task in first.tasks] == ["<20+1=>", "<21+1=>", "<30+1=>", "<31+1=>"]
    assert (first.sampling.temperature, first.sampling.max_new_tokens) == (0.7, 40)
    assert first.codec.stop.strings == ("+",) and first.template.startswith("own jinja ")
    assert first.source == f"{project}/a.jsonl + {project}/b.jsonl"
    assert (second.name, second.every_steps, second.num_sampled) == ("gsm8k", 20, 4)
    assert (second.sampling.temperature, second.sampling.max_new_tokens) == (1.0, 1024)
    assert {task.verifier.name for task in second.tasks} == {"exact"}
    assert second.describe()["verifier"] == "exact" and "verifier" not in first.describe()
    plain, *_ = with_sets(project, mine, max_new_tokens=30, stop=["="]).eval_sets
    assert (plain.is_greedy, plain.num_sampled, plain.sampling.max_new_tokens) == (True, 0, 30)
    assert plain.codec.stop.strings == ("=",) and plain.every_steps == 0


def test_a_set_is_sampled_as_it_says_and_else_as_all_evaluations(project: Path) -> None:
    mine = {"sources": "a.jsonl", "samples_per_task": 2}
    own = {"top_p": 0.9, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    of_all = {"top_p": 0.6, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1}
    sets = [{"name": "own", **mine, **own}, {"name": "mixed", **mine, "top_k": 5}, {"name": "as_all", **mine}]
    inputs = with_sets(project, *sets, **of_all)
    found = {each.name: each.sampling.settings() for each in inputs.eval_sets}
    assert found == {"own": {"top_p": 0.9}, "mixed": {**of_all, "top_k": 5}, "as_all": of_all}
    assert inputs.eval_sets[0].describe()["top_p"] == 0.9
    assert inputs.evaluation_sampling().settings() == of_all


@pytest.mark.parametrize(
    ("sets", "evaluation", "sentence"),
    [
        ([{"name": "x", "sources": "a.jsonl"}] * 2, {}, "Two sets of evaluation.sets are named x"),
        (
            [{"name": "a.jsonl", "sources": "b.jsonl"}],
            {"benchmarks": ["a.jsonl"]},
            r"The benchmark a\.jsonl is named twice. Name it once, or give a set of evaluation.sets another",
        ),
        ([{"name": "held-out", "sources": "a.jsonl"}], {}, "named held-out, as data.heldout is"),
        ([{"sources": "a.jsonl"}], {}, "has sources but no name"),
        ([{"name": "x"}], {}, "has neither of benchmark and sources"),
        ([{"benchmark": "gsm8k", "sources": "a.jsonl"}], {}, "has both of benchmark and sources"),
        ([{"name": "a b", "sources": "a.jsonl"}], {}, "evaluation.sets.0.name is 'a b'"),
        (
            [{"name": "x", "sources": "a.jsonl", "max_new_tokens": 128}],
            {},
            r"evaluation.sets.x.max_new_tokens is 128 but the context holds 128 tokens",
        ),
        (
            [{"name": "x", "sources": ["a.jsonl", "b.jsonl"], "num_tasks": 1}],
            {},
            "num_tasks of evaluation.sets x is 1, which leaves no task for .*b.jsonl",
        ),
        (
            [{"benchmark": "humaneval_completion", "template": "chat"}],
            {},
            "is a text that the model continues. Leave the template out",
        ),
        (
            [{"name": "x", "sources": "a.jsonl", "top_k": 20}],
            {},
            "evaluation.sets x has top_k 20, but asks for the most likely answer alone. Set its temperature",
        ),
        (
            [{"name": "x", "sources": "a.jsonl", "samples_per_task": 2, "top_p": 0}],
            {},
            r"evaluation.sets.0.top_p is 0: input should be greater than 0",
        ),
    ],
)
def test_sets_that_cannot_be_measured_are_refused_with_a_sentence(
    project: Path, sets: list[dict[str, Any]], evaluation: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        with_sets(project, *sets, **evaluation)


def test_a_set_with_training_prompts_is_warned_of(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    with_sets(project, {"name": "x", "sources": "train.jsonl"})
    assert "Take them out of data.train or evaluation.sets x." in caplog.text


def test_the_check_shows_each_set_and_its_room(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = {"name": "mine", "sources": "a.jsonl", "max_new_tokens": 100}
    with_sets(project, mine)
    assert cli.main(["check", str(project / "own.yaml")]) == 0
    assert "mine: 6 tasks" in capsys.readouterr().out
    assert cli.main(["check", str(project / "own.yaml"), "serving.max_total_tokens=90"]) == 2
    assert "the longest held-out prompt" in capsys.readouterr().err
