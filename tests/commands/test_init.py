"""`asyncrl init`: a folder that works at once, and recipes that fit the GPUs that they are for."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.commands import Command
from fakes.hub import running_hub
from families.known import TINY

from asyncrl.commands import main as cli
from asyncrl.commands.init import is_chat
from asyncrl.recipe.file import load_recipe

PUBLISHED = {
    name.rpartition("/")[2]: config for tiny in TINY.values() for name, (config, _) in tiny.published.items()
}


def like(
    name: str, layers: int, hidden: int, heads: int, ffn: int, *, is_tied: bool = False
) -> dict[str, Any]:
    """The config.json of a published model in another size."""
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return PUBLISHED[name] | sizes | {"intermediate_size": ffn, "tie_word_embeddings": is_tied}


CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": like("Qwen3-8B", 28, 1024, 16, 3072, is_tied=True),
    "Qwen3-1.7B": like("Qwen3-8B", 28, 2048, 16, 6144, is_tied=True),
    "Qwen3-8B": PUBLISHED["Qwen3-8B"],
    "Qwen3-32B": like("Qwen3-8B", 64, 5120, 64, 25600),
    "Qwen3-30B-A3B": PUBLISHED["Qwen3-30B-A3B"],
    "Llama-3.1-8B": PUBLISHED["Llama-3.1-8B"],
    "Llama-3.1-70B": like("Llama-3.1-8B", 80, 8192, 64, 28672),
}


def write_config(name: str, folder: Path) -> Path:
    """A model folder FOLDER/NAME with a config.json alone."""
    made = folder / name
    made.mkdir(parents=True)
    (made / "config.json").write_text(json.dumps(CONFIGS[name]))
    return made


SKELETON = ["README.md", "data/heldout.jsonl", "data/train.jsonl", "recipe.yaml", "verifier.py"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_new_folder_has_a_recipe_that_check_accepts(tmp_path: Path, command: Command) -> None:
    said = command("init", "first").out
    assert files(tmp_path / "first") == SKELETON
    assert said.endswith("next: cd first && asyncrl train recipe.yaml\n")
    command("check", "first/recipe.yaml")


def test_its_own_rows_are_graded_by_its_own_verifier(tmp_path: Path, command: Command) -> None:
    command("init")
    assert files(tmp_path) == SKELETON
    command("verify-data", "data/train.jsonl")
    command("verify", "--contract", "./verifier.py:BoxedNumber")
    texts = [Path(f"data/{name}.jsonl").read_text() for name in ("train", "heldout")]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    assert len({row["prompt"] for row in rows}) == len(rows), "no held-out row is trained on"
    for row in rows:
        first, second = row["prompt"].removesuffix("=").split("+")
        assert int(first) + int(second) == int(row["answer"])


def test_a_file_that_is_there_is_named_and_nothing_is_written(tmp_path: Path, command: Command) -> None:
    Path("verifier.py").write_text("mine")
    assert "verifier.py is there already, and nothing is overwritten" in command("init", code=2).err
    assert files(tmp_path) == ["verifier.py"] and Path("verifier.py").read_text() == "mine"
    Path("recipe.yaml").write_text("mine")
    said = command("init", "--model", "x/y", "--gpus", "1", "--data", "gsm8k", code=2).err
    assert "recipe.yaml is there already" in said
    assert "recipe.yaml is a file" in command("init", "recipe.yaml", code=2).err


FOR_ONE = ("--model", "model", "--gpus", "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "8"], "--gpus is set but --model is not"),
        (["--model", "model", "--gpus", "8"], "--data is missing"),
        (["--model", "model", "--data", "gsm8k"], "--gpus is missing"),
        (["--model", "none", "--gpus", "1", "--data", "gsm8k"], "none holds no config.json"),
        ([*FOR_ONE, "--data", "math500"], "a benchmark without training rows"),
        ([*FOR_ONE, "--data", "gsm8k", "--goal", "code"], "--goal is code, but --data is gsm8k"),
        ([*FOR_ONE, "--data", "mbpp", "--goal", "math"], "--goal is math, but --data"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    tmp_path: Path, words: list[str], said: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    write_config("Qwen3-0.6B", tmp_path).rename(tmp_path / "model")
    assert said in command("init", "new", *words, code=2).err
    assert not (tmp_path / "new").exists()


def test_without_a_hub_a_sentence_says_what_to_do(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    said = command("init", "--model", "Qwen/Qwen3-8B", "--gpus", "8", "--data", "gsm8k", code=2).err
    assert 'model.path is "Qwen/Qwen3-8B", but this machine has no such path' in said
    assert "give the path of a copy" in said


def test_model_and_data_may_be_hub_ids_and_of_the_model_only_its_shape_is_fetched(tmp_path: Path) -> None:
    model = write_config("Qwen3-0.6B", tmp_path / "hub")
    (model / "model.safetensors").write_bytes(bytes(64))
    rows = tmp_path / "hub" / "rows"
    rows.mkdir()
    for split in ("train", "test"):
        (rows / f"{split}.jsonl").write_text('{"question": "1+1?", "answer": "so it is #### 2"}\n')
    words = ["--model", "tiny/model", "--gpus", "2", "--gpu-memory", "80", "--data", "tiny/rows"]
    with running_hub(tiny__model=model, tiny__rows=rows) as hub:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "asyncrl.commands.main", "init", *words],
            env=os.environ
            | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not [request for request in hub.requests if "safetensors" in request]
    recipe = load_recipe(Path("recipe.yaml"))
    assert recipe.model.path == "tiny/model"
    (train,), (heldout,) = recipe.data.train_sources(), recipe.data.heldout_sources()
    assert (train.path, train.columns, heldout.split) == ("tiny/rows", "gsm8k", "test")


FEWEST = {
    "Qwen3-0.6B": 1,
    "Qwen3-1.7B": 1,
    "Qwen3-8B": 4,
    "Qwen3-32B": 24,
    "Qwen3-30B-A3B": 16,
    "Llama-3.1-8B": 4,
    "Llama-3.1-70B": 40,
}
"""GPUs of 80 GB: 18 bytes of state per parameter, and servers."""
TYPICAL = [("Qwen3-0.6B", 1), ("Qwen3-8B", 4), ("Qwen3-8B", 8), ("Qwen3-30B-A3B", 8), ("Llama-3.1-70B", 64)]
"""Cases of `make test`."""


CASES = [
    pytest.param(model, num, marks=[] if (model, num) in TYPICAL else pytest.mark.exhaustive)
    for model in CONFIGS
    for num in (1, 2, 4, 8, 16, 64)
]


@pytest.mark.parametrize(("model", "num_gpus"), CASES)
def test_a_recipe_that_it_writes_fits_by_plan_and_what_does_not_fit_is_said_with_the_fewest_gpus(
    model: str, num_gpus: int, tmp_path: Path, command: Command
) -> None:
    write_config(model, tmp_path)
    words = ["init", num_gpus, "--model", model, "--gpus", num_gpus, "--gpu-memory", "80", "--data", "gsm8k"]
    if num_gpus < FEWEST[model]:
        said = command(*words, code=2).err
        assert f"does not fit on {num_gpus} GPU(s) of 80 GB" in said
        assert f"The fewest that fit: {FEWEST[model]} (" in said
        return
    command(*words)
    path = tmp_path / str(num_gpus) / "recipe.yaml"
    recipe = load_recipe(path)
    command("plan", path, "--gpu-memory-gb", "80")
    servers = recipe.serving.num_servers * recipe.serving.tensor_parallel_size
    ranks = recipe.trainer.num_processes
    assert max(servers, ranks) == num_gpus if recipe.placement.colocated else servers + ranks == num_gpus
    assert recipe.cluster.backend == ("ray" if num_gpus > 8 else "local")
    assert max(map(len, path.read_text().splitlines())) <= 118


@pytest.mark.parametrize(("goal", "data"), [("math", "gsm8k"), ("code", "mbpp"), ("tools", "gsm8k")])
def test_the_goal_decides_verifier_prompt_and_turns(
    goal: str, data: str, tmp_path: Path, command: Command
) -> None:
    write_config("Qwen3-1.7B", tmp_path)
    options = ["--gpus", "2", "--gpu-memory", "80", "--data", data, "--goal", goal]
    command("init", "--model", "Qwen3-1.7B", *options)
    recipe = load_recipe(Path("recipe.yaml"))
    assert recipe.name == f"qwen3_1_7b_{data}" and recipe.prompt is not None
    assert recipe.verifying.default == ("code" if goal == "code" else "math")
    assert ("python block" if goal == "code" else "boxed") in str(recipe.prompt.suffix)
    assert recipe.turns.is_on() is (goal == "tools")
    if goal == "tools":
        assert recipe.turns.call_format == "auto" and "<python>" not in str(recipe.prompt.suffix)
    assert recipe.model.context_tokens is not None
    assert recipe.model.context_tokens >= 1024 + recipe.longest_response()
    if goal == "math":
        command("plan", "recipe.yaml", "--gpus", "2")


def test_a_base_model_is_told_of_its_tool_in_the_prompt(tmp_path: Path) -> None:
    write_config("Qwen3-0.6B", tmp_path).rename(tmp_path / "Qwen3-0.6B-Base")
    options = ["--gpus", "2", "--gpu-memory", "80", "--data", "gsm8k", "--goal", "tools"]
    assert cli.main(["init", "--model", "Qwen3-0.6B-Base", *options]) == 0
    recipe = load_recipe(Path("recipe.yaml"))
    assert recipe.turns.call_format == "tags" and recipe.prompt is not None
    assert recipe.prompt.template == "plain" and "<python>" in str(recipe.prompt.suffix)


def test_data_of_ones_own_are_named_as_the_recipe_sees_them(tmp_path: Path) -> None:
    write_config("Qwen3-0.6B", tmp_path)
    Path("rows.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    assert cli.main(["init", "new", "--model", "Qwen3-0.6B", "--gpus", "2", "--data", "rows.jsonl"]) == 0
    recipe = load_recipe(Path("new/recipe.yaml"))
    (source,) = recipe.data.train_sources()
    assert source.path == str(tmp_path / "rows.jsonl") and source.columns == "question_answer"
    assert recipe.model.path == str(tmp_path / "Qwen3-0.6B")
    assert recipe.evaluation.every_steps == 0, "there is nothing to hold out"


@pytest.mark.parametrize(
    ("model", "chats"),
    [
        ("Qwen/Qwen3-8B", True),
        ("Qwen/Qwen3-8B-Base", False),
        ("meta-llama/Llama-3.1-8B", False),
        ("meta-llama/Llama-3.1-8B-Instruct", True),
        ("google/gemma-3-4b-it", True),
        ("google/gemma-3-4b-pt", False),
    ],
)
def test_a_models_name_says_whether_it_chats(model: str, chats: bool) -> None:
    assert is_chat(model) is chats


def test_a_models_folder_says_whether_it_chats(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-mine"
    folder.mkdir()
    assert is_chat("Qwen3-mine"), "there is no tokenizer that says otherwise"
    for settings, chats in (({}, False), ({"chat_template": "{{ messages }}"}, True)):
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        assert is_chat("Qwen3-mine") is chats


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_new_folder_trains_two_steps(tmp_path: Path, command: Command) -> None:
    command("init")
    words = ["trainer.num_steps=2", "evaluation.num_tasks=16", "evaluation.every_steps=0"]
    said = command("train", "recipe.yaml", *words)
    # Rows of the folder's own are none of those that are made.
    assert "the prompt of an earlier row" not in said.out + said.err
    assert "have the prompt of a training row" not in said.out + said.err
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
    # With model and data there, all of both is checked.
    said = command("check", "recipe.yaml", "run_folder=runs/second").out
    assert "Model and data are not checked" not in said
