"""Results of several models as they come: what is finished, the JSON of it, and the answers that are kept as
text."""

import dataclasses
import json
from pathlib import Path

import pytest
from fakes.model_folder import write_tokenizer
from fakes.records import make_score, make_task

from asyncrl.errors import InputError
from asyncrl.evaluation.evaluation_set import EvaluationSet
from asyncrl.evaluation.model_results import Comparison, shown_answers
from asyncrl.evaluation.result import GradedResponse, Result, greedy_result
from asyncrl.journal.kept_answers import MOST_CHARACTERS, MOST_TASKS
from asyncrl.model.tokenizer import TextCodec
from asyncrl.observe.metrics.sample_curves import Tally
from asyncrl.records import SamplingParams

TASKS = [make_task(1), make_task(2)]


@pytest.fixture
def eval_set(tmp_path: Path) -> EvaluationSet:
    codec = TextCodec(write_tokenizer(tmp_path / "model"))
    return EvaluationSet("gsm8k", "here", "r1", TASKS, 0, codec, SamplingParams(1.0, 8, (1,)), 0, True)


def result(*rewards: float) -> Result:
    answers = [[GradedResponse("", 4, (0,), make_score(reward))] for reward in rewards]
    return Result(greedy_result(answers), None, {"greedy": list(rewards)})


def test_what_is_finished_and_what_is_under_way_is_one_sentence(
    eval_set: EvaluationSet, tmp_path: Path
) -> None:
    comparison = Comparison(["base", "step 4"], [eval_set], file=tmp_path / "out.json")
    assert comparison.progress() == "Finished: nothing."
    comparison.begin("base", eval_set)
    comparison.end("base", eval_set, result(1.0, 0.0))
    comparison.begin("step 4", eval_set)
    comparison.graded(1)
    assert comparison.progress() == (
        f"Finished: gsm8k on base; gsm8k on step 4 was at 1 of 2 responses. "
        f"Results so far: {tmp_path}/out.json"
    )


def test_the_file_holds_what_is_finished_and_differences_to_the_first(
    eval_set: EvaluationSet, tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    comparison = Comparison(["base", "step 4"], [eval_set], file=file)
    comparison.end("base", eval_set, result(1.0, 0.0))
    (found,) = json.loads(file.read_text())["benchmarks"]
    assert (found["results"].keys(), found["differences"]) == ({"base"}, {})
    comparison.end("step 4", eval_set, result(1.0, 1.0))
    (found,) = json.loads(file.read_text())["benchmarks"]
    assert (found["template"], found["tasks"]) == ("r1", ["train:1", "train:2"])
    assert found["results"]["step 4"]["greedy_scores"] == [1.0, 1.0]
    assert found["differences"]["step 4"]["greedy"]["mean"] == 0.5
    assert found == json.loads(json.dumps(comparison.as_json()))["benchmarks"][0]


def test_the_file_holds_the_curves_of_each_model_and_what_the_last_k_says(
    eval_set: EvaluationSet, tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    comparison = Comparison(["base", "step 4"], [eval_set], file=file)
    assert comparison.compared(eval_set) is None
    comparison.end("base", eval_set, result(0.0, 0.0), [Tally(2, 0, ()), Tally(2, 1, ((1, 1),))], num_kept=3)
    comparison.end("step 4", eval_set, result(1.0, 1.0), [Tally(2, 2, ((2, 2),))] * 2)
    (found,) = json.loads(file.read_text())["benchmarks"]
    assert [row["num_kept"] for row in found["results"].values()] == [3, 0]
    assert found["results"]["base"]["curves"]["pass"]["mean"] == [0.25, 0.5]
    (first, last) = found["contrasts"]["step 4"]["pass"]["differences"]
    assert (first["k"], first["mean"], last["k"], last["mean"]) == (1, 0.75, 2, 0.5)
    (sentence,) = found["sentences"]
    assert sentence.startswith("At k = 2 the 95% interval of the difference between step 4 and base holds 0")


def test_two_evaluation_sets_are_kept_apart(eval_set: EvaluationSet) -> None:
    other = dataclasses.replace(eval_set, name="math500")
    comparison = Comparison(["base"], [eval_set, other])
    comparison.end("base", other, result(0.0, 0.0))
    assert comparison.rows(eval_set) == [None]
    assert comparison.progress() == "Finished: math500 on base."


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_asked(
    eval_set: EvaluationSet, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="--out is .*could not be written: No such file"):
        Comparison(["base"], [eval_set], file=tmp_path / "nowhere" / "out.json")


def answered(text: str, correctness: float | None = 1.0) -> GradedResponse:
    return GradedResponse(text, 3, (0,), make_score(correctness))


def test_the_most_likely_answers_are_kept_where_there_are_any_and_the_first_samples_elsewhere() -> None:
    samples = [[answered("a"), answered("b")], [answered("c"), answered("d")]]
    greedy = [[answered("e", 0.0)], [answered("f", None)]]
    found = shown_answers(TASKS, Result(None, None, {}, greedy, samples))
    assert found["is_greedy"] and [each["text"] for each in found["tasks"]] == ["e", "f"]
    assert [each["correctness"] for each in found["tasks"]] == [0.0, None]
    assert [each["prompt"] for each in found["tasks"]] == [task.prompt for task in TASKS]
    found = shown_answers(TASKS, Result(None, None, {}, sampled_responses=samples))
    assert not found["is_greedy"] and [each["text"] for each in found["tasks"]] == ["a", "c"]


def test_long_texts_are_shortened_and_only_the_first_tasks_are_kept() -> None:
    tasks = [dataclasses.replace(make_task(n), prompt="q" * 9999) for n in range(MOST_TASKS + 5)]
    found = shown_answers(tasks, Result(None, None, {}, [[answered("a\ud800" + "b" * 9999)]] * len(tasks)))
    assert found["num_tasks"] == len(tasks) and len(found["tasks"]) == MOST_TASKS
    first = found["tasks"][0]
    assert first["text"].startswith("a\ufffdb") and "characters are not shown" in first["text"]
    assert MOST_CHARACTERS < len(first["text"]) < MOST_CHARACTERS + 100 > len(first["prompt"])
