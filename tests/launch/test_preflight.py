"""Addresses that cannot work are refused before anything starts; crowded cores are named."""

import json
import shutil
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fakes.newcomer import row, write_project, write_zeros
from fakes.recipes import make_recipe
from fakes.shapes import tiny_shape

from asyncrl.errors import InputError
from asyncrl.launch.machine_check import check_machine
from asyncrl.launch.placement import GpuMap
from asyncrl.launch.preflight import read_inputs
from asyncrl.recipe.file import load_recipe


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
