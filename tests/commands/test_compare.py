"""`asyncrl compare`: what it says of runs, and what it refuses."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fakes.commands import Command
from fakes.compared_runs import write_run
from fakes.finished_run import record_start
from fakes.refusals import without_page

from asyncrl.observe.terminal.model_differences import differences

RIGHT, WRONG = 1.0, 0.0
CLIP = {"algorithm": {"surrogate": "cispo", "rejection": []}}


def compared(command: Command, *words: object) -> dict[str, Any]:
    """The JSON of a comparison."""
    found: dict[str, Any] = json.loads(command("compare", *words, "--json").out)
    return found


def refused(command: Command, *words: object) -> str:
    """The sentence of a refusal."""
    said = command("compare", *words, code=2)
    sentence = without_page(said.err)
    assert said.out == "" and len(sentence.splitlines()) == 1
    return sentence


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """ppo and cispo. Of 40 tasks at step 4, cispo alone answers 20 right, ppo alone 4, both 10."""
    start = [RIGHT] * 10 + [WRONG] * 30
    ppo = [RIGHT] * 14 + [WRONG] * 26
    cispo = [RIGHT] * 10 + [WRONG] * 4 + [RIGHT] * 20 + [WRONG] * 6
    samples = {4: [[1.0, 0.0]] * 40}
    return [
        write_run(tmp_path / "ppo", {0: start, 2: start, 4: ppo}, samples=samples),
        write_run(tmp_path / "cispo", {0: start, 2: ppo, 4: cispo}, samples=samples, recipe=CLIP),
    ]


def test_the_better_run_is_named_with_points_interval_and_tasks(runs: list[Path], command: Command) -> None:
    said = " ".join(command("compare", *runs).out.split())
    # centre 16 / 42, half 1.96 x sqrt((25 / 42 - (16 / 42)^2) / 42) = 0.203
    assert "held-out, greedy accuracy: cispo beats ppo by 40.0 points, 95% 17.8 to 58.4" in said
    assert "24 of 40 tasks answered differently (right in cispo alone 20, in ppo alone 4)." in said
    assert "held-out, avg@2: cispo and ppo are level" in said
    assert "algorithm.surrogate ppo_clip cispo" in said
    assert said.index("algorithm.surrogate") < said.index("run_folder")
    assert "held-out accuracy 35.0% [22.1, 50.5] at step 4 75.0% [59.8, 85.8] at step 4" in said
    assert "tokens generated 14k 14k tokens trained 12k 12k training time 2:24 2:24" in said
    assert "Each side has one seed" in said


def test_few_wins_are_as_clear_as_in_eval(tmp_path: Path, command: Command) -> None:
    base = [WRONG] * 128
    for wins, words in ((4, "b is 3.1 points ahead of a, 95% "), (5, "b is 3.9 points"), (6, "b beats a by")):
        scores = [RIGHT] * wins + base[wins:]
        folders = [
            write_run(tmp_path / f"{wins}" / name, {4: answers}, recipe=recipe)
            for name, answers, recipe in (("a", base, {}), ("b", scores, CLIP))
        ]
        contest = compared(command, *folders)["pairs"][0]["contests"][0]
        assert contest["text"].startswith(words)
        found = contest["difference"]
        known = differences({"greedy_scores": base}, {"greedy_scores": scores})["greedy"]
        assert (found["low"], found["high"]) == (known.low, known.high)


def test_curves_have_costs_at_each_evaluation(runs: list[Path], command: Command) -> None:
    found = compared(command, *runs)
    ppo, cispo = (group["curve"] for group in found["groups"])
    assert [point["step"] for point in ppo] == [0, 2, 4]
    last = cispo[-1]
    assert (last["tokens_generated"], last["tokens_trained"], last["seconds"]) == (14400, 12000, 144)


def test_runs_that_differ_in_their_seed_alone_are_one_group(tmp_path: Path, command: Command) -> None:
    # Accuracies 50, 60, 70% against 70, 80, 90%.
    for name, base, recipe in (("ppo", 10, {}), ("cispo", 14, CLIP)):
        for seed in range(3):
            right = base + 2 * seed
            scores = [RIGHT] * right + [WRONG] * (20 - right)
            write_run(tmp_path / f"{name}-seed-{seed}", {4: scores}, recipe={**recipe, "seed": seed})
    folders = sorted(tmp_path.glob("ppo*")) + sorted(tmp_path.glob("cispo*"))
    found = compared(command, *folders)
    assert [group["label"] for group in found["groups"]] == ["ppo", "cispo"]
    assert [group["seeds"] for group in found["groups"]] == [[0, 1, 2]] * 2
    # Mean 60%, standard deviation 10 points: half 4.303 x 0.1 / sqrt(3) = 24.8 points.
    accuracy = found["groups"][0]["accuracy"]
    assert [round(accuracy[end], 3) for end in ("mean", "low", "high")] == [0.6, 0.352, 0.848]
    (contest,) = found["pairs"][0]["contests"]
    assert contest["way"] == "seeds and tasks"
    assert contest["difference"]["mean"] == pytest.approx(0.2)
    assert (contest["num_tasks"], contest["num_different"]) == (20, None)
    # Four tasks differ by 1/3, four by 2/3: ((20 / 9 + 1) / 22 - (4 / 22)^2) / 22 = 0.00515 of 21 degrees.
    # Seeds: 0.01 / 3 of 2 degrees a side. Together 0.01182 of 11.3: half 2.194 x 0.1087 = 23.9 points.
    assert contest["difference"]["low"] == pytest.approx(0.2 - 0.2386, abs=1e-3)
    said = " ".join(command("compare", *folders).out.split())
    assert "ppo (3 seeds: 0, 1, 2)" in said
    assert "60.0% [35.2, 84.8]: 50.0, 60.0, 70.0" in said


def test_one_seed_against_several_is_said(tmp_path: Path, command: Command) -> None:
    scores = [RIGHT] * 5 + [WRONG] * 5
    folders = [
        write_run(tmp_path / "a0", {4: scores}),
        write_run(tmp_path / "a1", {4: scores}, recipe={"seed": 1}),
        write_run(tmp_path / "b", {4: scores}, recipe=CLIP),
    ]
    found = compared(command, *folders)
    assert found["pairs"][0]["contests"][0]["way"] == "paired"
    assert any("b has one seed" in remark for remark in found["remarks"])


def test_runs_of_one_recipe_and_seed_are_repeats_and_compared_with_each_other(
    tmp_path: Path, command: Command
) -> None:
    folders = [
        write_run(tmp_path / "first", {4: [RIGHT] * 4 + [WRONG] * 16}),
        write_run(tmp_path / "again", {4: [RIGHT] * 12 + [WRONG] * 8}),
    ]
    found = compared(command, *folders)
    assert [(group["label"], group["seeds"]) for group in found["groups"]] == [("first", [0]), ("again", [0])]
    (contest,) = found["pairs"][0]["contests"]
    assert contest["difference"]["mean"] == pytest.approx(0.4)
    assert any(remark.startswith("again has the recipe and seed of first") for remark in found["remarks"])
    said = " ".join(command("compare", *folders).out.split())
    assert "seeds: 0, 0" not in said and "it is a repeat" in said


def test_no_group_has_a_seed_twice(tmp_path: Path, command: Command) -> None:
    scores = [RIGHT] * 5 + [WRONG] * 5
    seeds = {"a0": 0, "a1": 1, "b0": 0, "b1": 1, "c0": 0}
    runs = [write_run(tmp_path / name, {4: scores}, recipe={"seed": seed}) for name, seed in seeds.items()]
    found = compared(command, *runs)
    assert [(group["runs"], group["seeds"]) for group in found["groups"]] == [
        (["a0", "a1"], [0, 1]),
        (["b0", "b1"], [0, 1]),
        (["c0"], [0]),
    ]
    assert sum("it is a repeat" in remark for remark in found["remarks"]) == 3


def test_a_single_group_has_nothing_to_be_compared_with(tmp_path: Path, command: Command) -> None:
    scores = [RIGHT] * 5 + [WRONG] * 5
    runs = [write_run(tmp_path / f"a{seed}", {4: scores}, recipe={"seed": seed}) for seed in range(2)]
    found = compared(command, *runs)
    assert found["pairs"] == []
    assert any("there is nothing to compare it with" in remark for remark in found["remarks"])


def test_only_tasks_in_common_are_compared_and_counted(tmp_path: Path, command: Command) -> None:
    # Tasks 1 to 10 and 6 to 15 of one file: 6 to 10 are in both, of which 10 has no verdict in the second.
    first = write_run(tmp_path / "a", {4: [WRONG] * 10})
    second = write_run(tmp_path / "b", {4: [RIGHT] * 4 + [None] * 6}, first_task=6, recipe=CLIP)
    contest = compared(command, first, second)["pairs"][0]["contests"][0]
    assert (contest["num_tasks"], contest["num_asked"]) == (4, [10, 10])
    assert contest["num_without_verdict"] == 1
    assert contest["difference"]["mean"] == 1.0
    assert "1 without a verdict" in contest["text"]


def test_equal_questions_are_one_task_although_their_files_differ(tmp_path: Path, command: Command) -> None:
    first = write_run(tmp_path / "a", {4: [WRONG] * 10})
    # Other rows under the ids of the first: row 1 asks what no row of the first file asks.
    second = write_run(tmp_path / "b", {4: [RIGHT] * 10}, rows="other", first_task=4, recipe=CLIP)
    contest = compared(command, first, second)["pairs"][0]["contests"][0]
    assert contest["num_tasks"] == 7


def test_equal_ids_of_different_files_are_different_tasks(tmp_path: Path, command: Command) -> None:
    first = write_run(tmp_path / "a", {4: [WRONG] * 10})
    second = write_run(tmp_path / "b", {4: [WRONG] * 8}, rows="other", numbers="{n}-{n}=", recipe=CLIP)
    said = refused(command, first, second)
    assert said.startswith(
        "a and b have no held-out task in common: the first was asked 10, such as '1+1=', the second 8, such "
        "as '1-1='. Give both the same data.heldout"
    )


def test_an_equal_run_is_no_better_and_keeps_an_interval(tmp_path: Path, command: Command) -> None:
    folders = [
        write_run(tmp_path / name, {4: [RIGHT, WRONG, WRONG]}, recipe=recipe)
        for name, recipe in (("a", {}), ("b", CLIP))
    ]
    contest = compared(command, *folders)["pairs"][0]["contests"][0]
    assert contest["difference"]["low"] < 0 < contest["difference"]["high"]
    assert contest["text"].startswith("b and a are level, 95% -")
    assert contest["num_different"] == 0


def test_benchmarks_that_both_measured_are_compared(tmp_path: Path, command: Command) -> None:
    scores = [RIGHT] * 10
    folders = [
        write_run(tmp_path / "a", {4: scores}, benchmark=[WRONG] * 10),
        write_run(tmp_path / "b", {4: scores}, benchmark=[RIGHT] * 5 + [WRONG] * 5, recipe=CLIP),
    ]
    heldout, gsm8k = compared(command, *folders)["pairs"][0]["contests"]
    assert (heldout["name"], gsm8k["name"], gsm8k["way"]) == ("held-out", "gsm8k", "paired")
    assert gsm8k["difference"]["mean"] == 0.5


@pytest.mark.parametrize("state", ["without", "of another schema"])
def test_a_run_without_answers_per_task_is_shown_but_not_compared_which_is_said(
    runs: list[Path], state: str, command: Command
) -> None:
    journal = runs[0] / "journal.sqlite"
    if state == "without":
        journal.unlink()
    else:
        with sqlite3.connect(journal) as database:
            database.execute("UPDATE meta SET value = '2' WHERE key = 'schema_version'")
        database.close()
    found = compared(command, *runs)
    assert found["pairs"][0]["contests"] == []
    assert [group["accuracy"]["mean"] for group in found["groups"]] == [0.35, 0.75]
    assert any(remark.startswith("ppo: ") for remark in found["remarks"])
    assert any("ppo and cispo are not compared on held-out" in remark for remark in found["remarks"])
    assert found["runs"][0]["tokens_generated"] == 14400


def test_a_run_that_was_not_evaluated_yet_is_shown_without_a_verdict(
    runs: list[Path], tmp_path: Path, command: Command
) -> None:
    young = write_run(tmp_path / "young", {}, num_steps=1, recipe={"trainer": {"num_steps": 9}})
    found = compared(command, runs[0], young)
    assert found["pairs"][0]["contests"] == []
    assert "young has no held-out evaluation yet." in found["remarks"]
    command("compare", runs[0], young)


def test_last_evaluations_of_different_steps_are_named(
    runs: list[Path], tmp_path: Path, command: Command
) -> None:
    young = write_run(tmp_path / "young", {0: [WRONG] * 40, 2: [WRONG] * 40}, recipe=CLIP)
    remarks = compared(command, runs[0], young)["remarks"]
    assert "The last evaluations are of different steps: ppo at step 4, young at step 2." in remarks


def test_a_run_that_is_named_twice_is_refused(runs: list[Path], tmp_path: Path, command: Command) -> None:
    ppo, _ = runs
    assert f"ppo is the same run as {ppo}" in refused(command, ppo, tmp_path / "cispo" / ".." / "ppo")


@pytest.mark.parametrize("name", ["journal.sqlite", "metrics.jsonl", "recipe.yaml"])
def test_a_damaged_file_is_named(runs: list[Path], name: str, command: Command) -> None:
    (runs[1] / name).write_bytes(b"garbage\xff\n" * 1000)
    assert str(runs[1] / name) in refused(command, *runs)


def test_seconds_on_different_machines_are_said_to_be_no_comparison(
    runs: list[Path], command: Command
) -> None:
    def remarks() -> list[str]:
        return [each for each in compared(command, *runs)["remarks"] if "machines" in each]

    record_start(runs[0], 0.0, [], cpu="Epyc", num_cores=8, gpus=["H100", "H100"])
    assert remarks() == []
    record_start(runs[1], 0.0, [], cpu="Xeon", num_cores=8, gpus=[])
    assert remarks() == [
        "Seconds are not comparable: the machines differ "
        "(ppo on 2 H100, 8 cores of Epyc; cispo on 8 cores of Xeon)."
    ]


def test_a_comparison_reads_only(runs: list[Path], command: Command) -> None:
    def contents() -> dict[Path, bytes]:
        files = [path for run in runs for path in run.iterdir()]
        return {path: path.read_bytes() for path in files if not path.suffix.startswith(".sqlite-")}

    before = contents()
    compared(command, *runs)
    assert contents() == before
