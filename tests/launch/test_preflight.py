"""What is checked before anything starts: addresses, cores, rows, evaluations, the inputs of a resumed
run."""

import json
import shutil
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.commands import Command
from fakes.newcomer import CONFIG, row, write_project, write_zeros
from fakes.recipes import make_recipe
from fakes.records import make_queue, make_task
from fakes.shapes import tiny_shape

from asyncrl.controller.inputs import Inputs
from asyncrl.errors import InputError
from asyncrl.evaluation.asked_sets import benchmarks_of
from asyncrl.journal.starts import MODEL, record_rendering, set_fact
from asyncrl.launch.machine_check import check_machine
from asyncrl.launch.placement import GpuMap
from asyncrl.launch.preflight import read_evaluation_inputs, read_inputs
from asyncrl.model.folder import model_digest
from asyncrl.recipe.file import load_recipe
from asyncrl.run.folder import RunFolder


def check(folder: Path, sections: dict[str, Any] | None = None, **cluster: Any) -> None:
    recipe = make_recipe(folder, cluster=cluster, **(sections or {}))
    recipe = recipe.model_copy(update={"run_folder": str(folder / "run")})
    check_machine(recipe, tiny_shape(), GpuMap("a test"))


def test_a_machine_without_a_way_to_others_is_asked_for_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.recipe.sections.serving.outward_address", lambda: "127.0.0.1")
    with pytest.raises(InputError, match=r"no way to other networks.* Set cluster.advertised_address"):
        check(tmp_path, bind_address="0.0.0.0")
    check(tmp_path, bind_address="0.0.0.0", advertised_address="10.0.0.7")
    check(tmp_path)


def test_a_port_of_the_controller_that_is_taken_is_named_with_its_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"port {port} \(cluster.port\) is taken: .*Set another one"):
            check(tmp_path, port=port)
    check(tmp_path, port=port)


@pytest.mark.parametrize(
    ("sections", "is_crowded"),
    [
        ({"trainer": {"threads_per_process": 2}}, True),
        ({"serving": {"threads_per_server": 2}}, True),
        ({"trainer": {"threads_per_process": 2}, "serving": {"servers": ["http://127.0.0.1:1"]}}, False),
        # Processes of one thread share a core as any others do.
        ({"serving": {"num_servers": 4}}, False),
        ({}, False),
    ],
)
def test_processes_with_more_threads_than_cores_are_warned_of(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sections: dict[str, Any],
    is_crowded: bool,
) -> None:
    monkeypatch.setattr("asyncrl.launch.machine_check.available_cores", lambda: 2)
    monkeypatch.setattr("asyncrl.launch.machine_check._check_reachable", lambda *_: None)
    check(tmp_path, sections)
    assert ("on 2 core(s) for both" in caplog.text) == is_crowded


@pytest.mark.parametrize(("num_rows", "times"), [(1, 16), (6, 3), (16, None)])
def test_fewer_tasks_than_a_batch_holds_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_rows: int, times: int | None
) -> None:
    write_project(tmp_path)
    rows = [row(f"{n}+2=", str(n + 2)) for n in range(num_rows)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    read_inputs(load_recipe(tmp_path / "recipe.yaml", ["rollout.groups_per_batch=16"]))
    words = f"data.train has {num_rows} task(s) for batches of 16 groups (rollout.groups_per_batch): a batch "
    said = [text for text in caplog.messages if "data.train has" in text]
    expected = [
        f"{words}asks the same task up to {times} times. Add rows, or lower rollout.groups_per_batch."
    ]
    assert said == (expected if times else [])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_size": 32}, r"whose hidden_size is 32, but that of model\.path is \d+\. The critic has"),
        ({}, r"whose tokenizer\.json is not that of model\.path"),
    ],
)
def test_a_critic_of_another_shape_or_tokenizer_is_refused(
    tmp_path: Path, change: dict[str, int], sentence: str
) -> None:
    write_project(tmp_path)
    other = shutil.copytree(tmp_path / "model", tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | change))
    write_zeros(other)
    keys = ["algorithm.advantage=gae", "critic.learning_rate=1e-4", f"critic.path={other}"]
    if change:
        with pytest.raises(InputError, match=sentence):
            read_inputs(load_recipe(tmp_path / "recipe.yaml", keys))
        return
    read_inputs(load_recipe(tmp_path / "recipe.yaml", keys))
    tokenizer = other / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with pytest.raises(InputError, match=sentence):
        read_inputs(load_recipe(tmp_path / "recipe.yaml", keys))


@pytest.mark.parametrize(
    ("stage", "answer"), [("sft", {"response": "2"}), ("dpo", {"chosen": "2", "rejected": "3"})]
)
def test_held_out_rows_that_are_learned_are_warned_of_in_every_stage(
    tmp_path: Path, stage: str, answer: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    write_project(tmp_path)
    (tmp_path / "own.yaml").write_text(
        f"name: mine\nstage: {stage}\nmodel: {{path: model}}\n"
        "data: {train: train.jsonl, heldout: heldout.jsonl}\n"
    )

    def warned_of(*numbers: int) -> bool:
        caplog.clear()
        for name, chosen in (("train", (1, 2, 3)), ("heldout", numbers)):
            # Every row asks the same: that alone is no row of both.
            rows = [{key: f"{value}{n}" for key, value in answer.items()} for n in chosen]
            lines = [json.dumps({"prompt": "1+1=", **one}) for one in rows]
            (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        read_inputs(load_recipe(tmp_path / "own.yaml"))
        return "1 of 2 held-out rows have the text of a training row, first heldout:2 that of train:3" in (
            caplog.text
        )

    assert warned_of(7, 3)
    assert not warned_of(7, 8) and "held-out" not in caplog.text


def test_weights_of_sources_hold_in_a_stage_that_learns_from_rows(tmp_path: Path) -> None:
    write_project(tmp_path)
    for name, count in (("a", 3), ("b", 5)):
        rows = [json.dumps({"prompt": f"{n}+1=", "response": str(n + 1)}) for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    (tmp_path / "own.yaml").write_text(
        "name: mine\nstage: sft\nmodel: {path: model}\nevaluation: {every_steps: 0}\n"
        "data: {train: [{path: a.jsonl, weight: 3}, {path: b.jsonl, weight: 1}]}\n"
    )
    order = read_inputs(load_recipe(tmp_path / "own.yaml"))[0].order()
    asked = Counter(order.next(position, 0).source() for position in range(1000))
    assert asked == {"a": 750, "b": 250}


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


def test_a_template_that_writes_the_time_makes_the_same_prompts_when_the_run_resumes(project: Path) -> None:
    (project / "model" / "chat_template.jinja").write_text("{{ strftime_now('%S%f') }}+1=")
    row = {"prompt": [{"role": "user", "content": "x"}], "answer": "2"}
    (project / "train.jsonl").write_text(json.dumps(row))
    recipe = load_recipe(project / "recipe.yaml")
    first, _ = read_inputs(recipe)
    again, _ = read_inputs(recipe)
    assert again.train_tasks[0].prompt != first.train_tasks[0].prompt
    recipe.folder().mkdir(parents=True)
    queue = make_queue(recipe.folder())
    record_rendering(queue.journal, first.rendered)
    # Admitted later than the prompts were rendered, as the servers start between.
    queue.announce(0)
    queue.admit(first.train_tasks[0])
    queue.journal.close()
    resumed, _ = read_inputs(recipe)
    assert resumed.train_tasks[0].prompt == first.train_tasks[0].prompt


def change_config(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"rope_theta": 7.0}))


def change_a_weight(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")


@pytest.mark.parametrize("change", [change_config, change_a_weight])
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_another_base_model_is_refused(
    project: Path, change: Callable[[Path], None], is_elsewhere: bool
) -> None:
    model = project / "model"
    begin_run(project)
    if is_elsewhere:
        (project / "elsewhere").mkdir()
        model = shutil.move(model, project / "elsewhere" / "model")
    recipe = load_recipe(project / "recipe.yaml", [f"model.path={model}"])
    # The same model resumes, also where it lies elsewhere now.
    assert RunFolder(recipe.folder()).check(recipe)
    change(model)
    with pytest.raises(InputError, match="a run that began with another base model than"):
        RunFolder(recipe.folder()).check(recipe)


def begin_run(project: Path) -> None:
    """The run folder of recipe.yaml with one unfinished group."""
    recipe = load_recipe(project / "recipe.yaml")
    with RunFolder(recipe.folder()) as folder:
        folder.open(recipe)
    queue = make_queue(recipe.folder())
    digest = model_digest(project / "model")
    assert digest is not None
    queue.journal.write(set_fact(MODEL, digest))
    queue.announce(0)
    queue.admit(make_task())
    queue.journal.close()
