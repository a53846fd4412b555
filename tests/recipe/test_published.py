"""recipes/published: each is accepted with stand-ins of its models and data, and says what it needs."""

import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.gpus import whole_gpus
from fakes.hub import Hub
from fakes.published import SHAPES, published_hub

from asyncrl.commands import main as cli
from asyncrl.evaluation.asked_sets import benchmarks_of
from asyncrl.readers.compare.recorded import flat
from asyncrl.recipe.file import load_recipe
from asyncrl.system.machine import MachineMemory
from asyncrl.tasks.task_list import template_of

ROOT = Path(__file__).parents[2]
RECIPES = [*sorted((ROOT / "recipes" / "published").glob("*.yaml")), ROOT / "recipes" / "retool_qwen.yaml"]
KEYS = ("Source", "Expected", "Cost", "Published evaluation", "Not run by us", "Differs")
PARAMETERS = {
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-Math-7B": 7_615_616_512,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
}
"""As the models' cards count them."""
ASYNCHRONOUS = f"@{ROOT}/recipes/overlays/asynchronous.yaml"
"""The override that makes a recipe its asynchronous twin."""
GPU_GB = {"dapo_32b": 96}
"""Of the GPUs that a recipe needs, where 80 GB are not enough."""
_ORZ = ("128 x 64, 1 steps, 8000 tokens", "gae", 1e-6, 50, 0.0, (0.2, 0.2), 0.0, 0.0)
_SIMPLERL = ("1024 x 8, 4 steps, 8192 tokens", "grpo", 5e-7, 0, 0.01, (0.2, 0.2), 1e-4, 1e-3)
SETTINGS = {
    "tinyzero_countdown_3b": ("256 x 1, 2 steps, 1024 tokens", "gae", 1e-6, 0, 0.01, (0.2, 0.2), 1e-3, 1e-3),
    "simplerl_zoo_0.5b": _SIMPLERL,
    "simplerl_zoo_1.5b": _SIMPLERL,
    "simplerl_zoo_7b": _SIMPLERL,
    "oat_zero_7b": ("128 x 8, 8 steps, 3000 tokens", "dr_grpo", 1e-6, 0, 0.0, (0.2, 0.2), 0.0, 0.0),
    "orz_0.5b": _ORZ,
    "orz_7b": _ORZ,
    "dapo_32b": ("512 x 16, 16 steps, 20480 tokens", "grpo", 1e-6, 10, 0.1, (0.2, 0.28), 0.0, 0.0),
    "retool_qwen": ("64 x 16, 4 steps, 16384 tokens", "grpo", 1e-6, 0, 0.01, (0.2, 0.28), 0.0, 0.0),
    "justrl_1.5b": ("256 x 8, 4 steps, 15360 tokens", "grpo", 1e-6, 10, 0.1, (0.2, 0.28), 0.0, 0.0),
}
"""Of the sources: batch, optimizer steps per batch and response length; advantage; learning rate, its warm-up
and weight decay; clips; KL; entropy."""
EVALUATION_TOP_P = {
    "simplerl_zoo_0.5b": 0.95,
    "simplerl_zoo_1.5b": 0.95,
    "simplerl_zoo_7b": 0.95,
    "dapo_32b": 0.7,
    "justrl_1.5b": 0.9,
    "retool_qwen": 0.6,
}
"""Where the sources cut the distribution of evaluations; training takes the whole one everywhere."""
of_each_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
TYPICAL = ("tinyzero_countdown_3b", "orz_7b", "dapo_32b", "retool_qwen")
"""A file of rows and one token per byte; a critic; several nodes; tools."""


def _each(typical: Collection[str]) -> pytest.MarkDecorator:
    """Each recipe; those that are not `typical` in exhaustive runs alone."""
    marks = {path: [] if path.stem in typical else [pytest.mark.exhaustive] for path in RECIPES}
    return pytest.mark.parametrize(
        "path", [pytest.param(path, marks=marks[path], id=path.stem) for path in RECIPES]
    )


of_typical_recipes = _each(TYPICAL)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with published_hub(tmp_path_factory.mktemp("published")) as hub:
        yield hub


@pytest.fixture
def large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with GPUs, and memory and a disk for checkpoints of 32 B parameters."""
    monkeypatch.setattr("asyncrl.launch.placement.find_gpus", lambda: whole_gpus(32))
    monkeypatch.setattr("asyncrl.launch.placement.torch_is_cpu_build", lambda: False)
    disk = SimpleNamespace(total=2**50, used=0, free=2**50)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)
    memory = MachineMemory(total=2**40, available=2**40, is_bounded=False)
    monkeypatch.setattr("asyncrl.launch.machine_check.machine_memory", lambda: memory)


def overrides(path: Path, tmp_path: Path) -> list[str]:
    """Elsewhere than into the project; Countdown's stand-in has fewer rows than its splits, and more tokens:
    one for each byte."""
    found = [f"run_folder={tmp_path}/run"]
    if path.stem.startswith("tinyzero"):
        found += [
            "data.train.split=train[:4]",
            "data.heldout.split=train[4:8]",
            "data.max_prompt_tokens=1024",
        ]
    return found


def header(path: Path) -> dict[str, str]:
    """Key -> its text, on one line; the first line is the title."""
    text = path.read_text(encoding="utf-8").split("\n\n")[0]
    lines = [line.removeprefix("#").strip() for line in text.splitlines()]
    found, key = {"title": lines[0]}, ""
    for line in lines[1:]:
        name, colon, rest = line.partition(":")
        if colon and name in KEYS:
            key, line = name, rest.strip()
            found[key] = ""
        elif not line:
            key = ""
        if key:
            found[key] = f"{found[key]} {line}".strip()
    return found


@of_typical_recipes
def test_a_recipe_is_accepted_with_its_models_shape_and_its_datas_columns(
    path: Path, hub: Hub, large_machine: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code = cli.main(["check", str(path), *overrides(path, tmp_path)])
    said = capsys.readouterr()
    assert code == 0, said.err
    recipe = load_recipe(path)
    tasks = 4 if path.stem.startswith("tinyzero") else 2
    assert f"# data      {tasks} training tasks, {tasks} held-out tasks, every answer parsed" in said.out
    assert f"{PARAMETERS[recipe.model.path] / 1e6:.1f} M parameters, bfloat16" in said.out
    # Nothing of the weights was sent.
    assert not [request for request in hub.requests if request.startswith("GET") and "safetensors" in request]


@of_each_recipe
def test_an_asynchronous_twin_differs_in_staleness_weights_and_run_folder_alone(path: Path):
    recipe, twin = (flat(load_recipe(path, given).model_dump()) for given in ([], [ASYNCHRONOUS]))
    changed = {key: (recipe.get(key), twin[key]) for key in twin if recipe.get(key) != twin[key]}
    folder = str(ROOT / "runs" / "{name}")
    assert recipe.keys() <= twin.keys() and changed == {
        "run_folder": (folder, f"{folder}_asynchronous"),
        "rollout.max_staleness": (0, 2),
        "algorithm.importance_weight": ("none", "truncated"),
        "algorithm.importance_weight.cap": (None, 2.0),
        "algorithm.importance_weight.floor": (None, 0.0),
    }


@_each(["orz_7b"])
def test_an_asynchronous_twin_passes_the_same_check(
    path: Path, hub: Hub, large_machine: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["check", str(path), ASYNCHRONOUS, *overrides(path, tmp_path), "--all"]) == 0
    assert "max_staleness: 2" in capsys.readouterr().out


@of_typical_recipes
def test_plan_says_parameters_gpus_and_memory_and_that_they_fit(
    path: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
):
    code = cli.main(["plan", str(path), "--gpu-memory-gb", str(GPU_GB.get(path.stem, 80))])
    said = capsys.readouterr()
    assert code == 0, said.err
    recipe = load_recipe(path)
    servers = recipe.serving.num_servers * recipe.serving.tensor_parallel_size
    ranks = recipe.trainer.num_processes
    assert f"parameters {PARAMETERS[recipe.model.path]:,}\n" in said.out
    assert (
        f"gpus       {ranks + servers} where every process has its own: {ranks} for the trainer" in said.out
    )
    assert (
        f"{recipe.rollout.groups_per_batch} groups x {recipe.rollout.samples_per_group} samples" in said.out
    )


@of_each_recipe
def test_settings_are_those_of_the_sources(path: Path):
    recipe = load_recipe(path)
    rollout, algorithm, trainer = recipe.rollout, recipe.algorithm, recipe.trainer
    clips = (algorithm.clip_low, algorithm.clip_high)
    batch = f"{rollout.groups_per_batch} x {rollout.samples_per_group}"
    assert SETTINGS[path.stem] == (
        f"{batch}, {trainer.optimizer_steps_per_batch} steps, {rollout.max_new_tokens} tokens",
        algorithm.advantage.name,
        trainer.learning_rate,
        trainer.warmup_steps,
        trainer.weight_decay,
        clips,
        algorithm.kl.coefficient,
        algorithm.entropy_bonus.coefficient,
    )
    # verl deals a batch out in its order, oat in single responses. All rates are constant behind a warm-up.
    orders = {"oat_zero_7b": "responses", "orz_0.5b": "groups", "orz_7b": "groups"}
    assert trainer.mini_batch_order == orders.get(path.stem, "batch")
    assert trainer.learning_rate_schedule.name == "constant"
    verls = {"dapo_32b": 10.0, "justrl_1.5b": 10.0, "retool_qwen": 10.0}
    assert algorithm.surrogate.dual_clip == verls.get(path.stem)
    # DeepSpeed's and oat's second moment decays at 0.95, torch's at 0.999.
    assert trainer.adam_beta2 == (0.95 if path.stem.startswith(("orz", "oat")) else 0.999)
    assert (trainer.schedule_unit == "optimizer_steps") == path.stem.startswith("orz")
    # Synchronous, on the tokens as the servers sampled them, at temperature 1.
    assert (rollout.max_staleness, rollout.temperature, algorithm.importance_weight.name) == (0, 1.0, "none")
    assert recipe.evaluation.top_p == EVALUATION_TOP_P.get(path.stem, 1.0)
    if algorithm.needs_critic():
        critic = (recipe.critic.learning_rate, recipe.critic_steps_per_batch(), recipe.critic.value_clip)
        assert critic == ((1e-5, 2, 0.5) if path.stem.startswith("tinyzero") else (5e-6, 12, 0.2))
        assert (
            algorithm.advantage.gamma,
            algorithm.advantage.gae_lambda,
            algorithm.advantage.is_whitened,
        ) == (1.0, 1.0, True)


def test_evaluations_are_as_long_as_those_of_the_sources():
    lengths = dict.fromkeys((f"simplerl_zoo_{size}" for size in ("0.5b", "1.5b", "7b")), 16000)
    lengths["justrl_1.5b"] = 31744
    for path in RECIPES:
        recipe = load_recipe(path)
        limit = recipe.evaluation.rollout_of(recipe.rollout).max_new_tokens
        assert limit == lengths.get(path.stem, recipe.rollout.max_new_tokens), path.stem
        if path.stem in lengths:
            # As long as the longest prompt and the longest evaluated response.
            assert recipe.model.context_tokens == (recipe.data.max_prompt_tokens or 0) + limit


SIMPLERL_SETS = dict.fromkeys(("minerva_math", "olympiadbench", "gsm8k", "amc23"), (1, 1.0, 0))
SIMPLERL_SETS |= {"aime24": (32, 1.0, 0)}
SIMPLERL_SETS |= {f"{name}_greedy": (1, None, 0) for name in SIMPLERL_SETS}
SETS: dict[str, dict[str, tuple[int, float | None, int]]] = {
    **{f"simplerl_zoo_{size}": SIMPLERL_SETS for size in ("0.5b", "1.5b", "7b")},
    **{f"orz_{size}": dict.fromkeys(("math500", "aime24"), (16, 1.0, 10)) for size in ("0.5b", "7b")},
    "oat_zero_7b": dict.fromkeys(("aime24", "amc", "minerva_math", "olympiadbench"), (1, None, 16)),
    "dapo_32b": {"aime24": (32, 1.0, 5)},
    "justrl_1.5b": dict.fromkeys(("aime24", "aime25", "amc23"), (32, 0.7, 50))
    | dict.fromkeys(("math500", "minerva_math", "olympiadbench"), (4, 0.7, 0))
    | dict.fromkeys(("hmmt25", "brumo25", "cmimc25"), (32, 0.7, 0)),
    "retool_qwen": dict.fromkeys(("aime24", "aime25"), (30, 1.0, 10)),
}
"""Of the sources: evaluated beside data.heldout, samples of each task, temperature (None: the most likely
answer), and steps between evaluations."""


@of_each_recipe
def test_the_sources_other_benchmarks_are_sets_of_their_own(path: Path):
    recipe = load_recipe(path)
    asked = {each.name: each for each in benchmarks_of(recipe)}
    found = {
        each.title(): (
            each.samples_per_task,
            # A sample alone without a temperature is the most likely answer.
            asked[each.title()].temperature if (each.samples_per_task or 0) > 1 else each.temperature,
            each.every_steps,
        )
        for each in recipe.evaluation.sets
    }
    assert found == SETS.get(path.stem, {})
    # All of them are as long as the recipe's other evaluations.
    limit = recipe.evaluation.rollout_of(recipe.rollout).max_new_tokens
    assert {each.max_new_tokens for each in asked.values()} <= {limit}


def test_prompts_are_those_of_the_sources():
    prompts = {}
    for path in RECIPES:
        template = template_of(load_recipe(path))
        prompts[path.stem] = None if template is None else template("QUESTION")
    assert prompts["tinyzero_countdown_3b"] == (
        "A conversation between User and Assistant. The user asks a question, and the Assistant solves "
        "it. The assistant first thinks about the reasoning process in the mind and then provides the "
        "user with the answer.\nUser: QUESTION\nAssistant: Let me solve this step by step.\n<think>"
    )
    assert prompts["orz_0.5b"] == prompts["orz_7b"]
    assert prompts["orz_7b"] == (
        "A conversation between User and Assistant. The User asks a question, and the Assistant solves "
        "it. The Assistant first thinks about the reasoning process in the mind and then provides the "
        "User with the answer. The reasoning process is enclosed within <think> </think> and answer is "
        "enclosed within <answer> </answer> tags, respectively, i.e., <think> reasoning process here "
        "</think> <answer> answer here </answer>. User: You must put your answer inside <answer> "
        "</answer> tags, i.e., <answer> answer here </answer>. And your final answer will be extracted "
        "automatically by the \\boxed{} tag.\nThis is the problem:\nQUESTION\nAssistant: <think>"
    )
    boxed = "Please reason step by step, and put your final answer within \\boxed{}."
    assert prompts["justrl_1.5b"] == [{"role": "user", "content": f"QUESTION\n\n{boxed}"}]
    assert prompts["retool_qwen"] == [
        {
            "role": "user",
            "content": "QUESTION\nThe answer format must be: \\boxed{'The final answer goes here.'}",
        }
    ]
    # The rows of DAPO ask for the line "Answer:" themselves.
    assert prompts["dapo_32b"] is None
    assert {prompts[f"simplerl_zoo_{size}"] for size in ("0.5b", "1.5b", "7b")} == {
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nQUESTION\n"
        f"{boxed}<|im_end|>\n<|im_start|>assistant\n"
    }
    assert prompts["oat_zero_7b"] == (
        f"<|im_start|>system\n{boxed}<|im_end|>\n<|im_start|>user\nQUESTION<|im_end|>\n<|im_start|>assistant\n"
    )


@of_typical_recipes
def test_check_refuses_data_in_another_layout(
    path: Path, hub: Hub, large_machine: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    columns = "data.train.columns={prompt: nowhere, answer: nothing}"
    assert cli.main(["check", str(path), *overrides(path, tmp_path), columns]) == 2
    assert 'no "nowhere"; the row has' in capsys.readouterr().err


@of_each_recipe
def test_a_header_names_source_score_cost_and_differences(path: Path):
    found = header(path)
    assert set(found) == {"title", *KEYS}
    assert found["Not run by us"] == "nothing has run on a GPU."
    assert re.search(r"github\.com/\S+.*arXiv \d{4}\.\d{5}|github\.com/Jiayi-Pan/TinyZero", found["Source"])
    assert re.search(r"\d|no number published", found["Expected"])
    assert re.search(r"\d|not published", found["Cost"])
    assert load_recipe(path).name == path.stem


def test_every_stand_in_is_a_model_of_a_recipe():
    assert set(SHAPES) == {load_recipe(path).model.path for path in RECIPES} == set(PARAMETERS)
