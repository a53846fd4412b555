"""Results of evaluations, as they stand in the run folder."""

from pathlib import Path

from fakes.evaluated_run import BASE, K, evaluate_run, row

from asyncrl.journal.kept_answers import AnswerStore
from asyncrl.readers.report.answers import read_measured
from asyncrl.system.places import ANSWERS


def test_models_that_were_asked_alike_stand_side_by_side_the_base_model_first(tmp_path: Path) -> None:
    assert read_measured(tmp_path) == []
    evaluate_run(tmp_path)
    with AnswerStore(tmp_path / ANSWERS) as store:
        store.keep_result("held-out", "alike", "earlier", "step 8", row(BASE), num_samples=K)
        store.keep_result("held-out", "otherwise", "base", "base", row(BASE), num_samples=K)
    other, measured = read_measured(tmp_path)
    assert (measured.models, other.models) == (["base", "step 8", "step 40 (last)"], ["base"])
    assert measured.compared is not None
    assert measured.compared["models"] == measured.models
    assert len(measured.compared["curves"]["pass"]) == 3
    assert "training narrowed" in measured.compared["sentences"][-1]
    assert not any(name.endswith("scores") or name == "tallies" for name in measured.short_rows()[0])


def test_a_result_of_most_likely_answers_alone_has_no_curves(tmp_path: Path) -> None:
    greedy = {name: value for name, value in row(BASE).items() if name not in ("tallies", "curves")}
    with AnswerStore(tmp_path / ANSWERS) as store:
        store.keep_result("sums", "s", "m", "base", greedy, num_samples=0)
    (measured,) = read_measured(tmp_path)
    assert measured.compared is None and measured.table().rows
