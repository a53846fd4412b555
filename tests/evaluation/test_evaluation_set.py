"""Benchmarks of a hub become tasks: pinned, asked under one template, what is left out counted."""

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fakes.hub import running_hub
from fakes.model_folder import write_tokenizer
from fakes.newcomer import write_project

from asyncrl.data.benchmarks import CATALOG, Benchmark, find_benchmark
from asyncrl.errors import InputError
from asyncrl.evaluation.evaluation_set import EvaluationSet, read_evaluation_set
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.tasks.verifier_cache import VerifierCache

ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "one and one", "answer": "1+1=2\n#### 2"},
    "math500": {"problem": "a half", "solution": "s", "answer": "\\frac{1}{2}", "level": 1},
    "aime24": {"id": 60, "problem": "p", "solution": "\\boxed{204}", "url": "u"},
    "aime25": {"id": "0", "problem": "p", "answer": "70"},
    "amc23": {"id": 0, "question": "q", "answer": "27.0", "url": "u"},
    "minerva_math": {"question": "q", "answer": "4.5"},
    "olympiadbench": {"id": 1, "context": None, "question": "q", "final_answer": ["2"]},
    "humaneval": {
        "task_id": "HumanEval/0",
        "prompt": "def f(x):\n",
        "canonical_solution": "    return x\n",
        "test": "def check(candidate):\n    assert candidate(1) == 1\n",
        "entry_point": "f",
    },
    "mbpp": {
        "task_id": 11,
        "text": "same",
        "code": "def f(x):\n    return x",
        "test_list": ["assert f(1) == 1"],
        "test_setup_code": "",
        "challenge_test_list": [],
    },
}
SCRIPT = """
import json, sys
from pathlib import Path
from asyncrl.data.benchmarks import CATALOG
from asyncrl.launch.preflight import read_evaluation_inputs
from asyncrl.recipe.file import load_recipe
recipe = load_recipe(Path("recipe.yaml"), ["model.context_tokens=120"])
inputs = read_evaluation_inputs(recipe, list(CATALOG.values()), has_heldout=True)
print(json.dumps([[e.name, len(e.tasks), e.template, e.source, e.num_left_out] for e in inputs.eval_sets]))
"""


def test_every_benchmark_is_fetched_at_its_commit_and_read(tmp_path: Path) -> None:
    folders = {}
    for name, row in ROWS.items():
        source, folder = CATALOG[name].source, tmp_path / "hub" / name
        folder.mkdir(parents=True)
        config = source.config or "default"
        files = f"data_files:\n  - split: {source.split}\n    path: t.jsonl"
        card = f"---\nconfigs:\n- config_name: {config}\n  {files}\n---\n"
        (folder / "README.md").write_text(card)
        (folder / "t.jsonl").write_text(json.dumps(row) + "\n")
        folders[source.path.replace("/", "__")] = folder
    project = tmp_path / "project"
    project.mkdir()
    write_project(project)
    with running_hub(**folders) as hub:
        hub.commits = {benchmark.source.revision or "" for benchmark in CATALOG.values()}
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    heldout, *eval_sets = json.loads(done.stdout)
    assert heldout == ["held-out", 4, "none, as the rows are", "data.heldout", 0]
    assert [name for name, *_ in eval_sets] == list(CATALOG)
    for name, num_tasks, template, source, num_left_out in eval_sets:
        benchmark = CATALOG[name]
        assert (num_tasks, num_left_out) == (1, 0), name
        assert source.startswith(f"{benchmark.source.path}@{benchmark.source.revision}")
        way = "completion" if benchmark.is_completion else f"{benchmark.instruction_name}, as text"
        assert template == way


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    write_project(tmp_path)
    return load_recipe(tmp_path / "recipe.yaml")


def set_of(recipe: Recipe, benchmark: Benchmark) -> EvaluationSet:
    folder = Path(recipe.model.path)
    return read_evaluation_set(
        benchmark, recipe, folder, VerifierCache(folder), 120, now=datetime(2026, 1, 1)
    )


def copy_of(name: str, folder: Path, *rows: dict[str, Any]) -> Benchmark:
    file = folder / "copy.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return find_benchmark(f"{name}:{file}", num_samples=1, temperature=1.0, max_new_tokens=8)


def test_a_model_with_a_chat_template_is_asked_in_its_words(recipe: Recipe, tmp_path: Path) -> None:
    template = "{% for m in messages %}<u>{{ m.content }}</u>{% endfor %}<a>"
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    eval_set = set_of(recipe, copy_of("gsm8k", tmp_path, ROWS["gsm8k"]))
    assert eval_set.template == "boxed, as chat"
    assert eval_set.tasks[0].prompt.startswith("<u>one and one\nPlease reason step by step")
    assert eval_set.tasks[0].prompt.endswith("\\boxed{}.</u><a>")


def test_the_prompt_of_the_recipe_comes_first(recipe: Recipe, tmp_path: Path) -> None:
    own = load_recipe(tmp_path / "recipe.yaml", ["prompt.template=answer {{ question }} now"])
    eval_set = set_of(own, copy_of("gsm8k", tmp_path, ROWS["gsm8k"]))
    assert eval_set.tasks[0].prompt == "answer one and one now"
    assert eval_set.template.startswith("own jinja ") and len(eval_set.template) == len("own jinja ") + 8
    plain = load_recipe(tmp_path / "recipe.yaml", ["prompt.template=plain"])
    assert set_of(plain, copy_of("gsm8k", tmp_path, ROWS["gsm8k"])).template == "plain"


def test_a_completion_is_asked_bare_and_ends_where_the_function_ends(recipe: Recipe, tmp_path: Path) -> None:
    chat = load_recipe(tmp_path / "recipe.yaml", ["prompt.template=answer_line"])
    eval_set = set_of(chat, copy_of("humaneval_completion", tmp_path, ROWS["humaneval"]))
    assert (eval_set.tasks[0].prompt, eval_set.template, eval_set.is_completion) == (
        "def f(x):\n",
        "completion",
        True,
    )
    assert eval_set.codec.stop.first_in("    return x\n\ndef g():") == len("    return x\n")


@pytest.mark.parametrize(
    ("override", "section"),
    [("agent.command=[python,a.py]", "agent"), ("turns.environment=./game.py:Game", "turns")],
)
def test_a_completion_is_refused_where_responses_are_conversations(
    recipe: Recipe, tmp_path: Path, override: str, section: str
) -> None:
    own = load_recipe(tmp_path / "recipe.yaml", [override])
    with pytest.raises(InputError, match=f"section {section} makes conversations"):
        set_of(own, copy_of("humaneval_completion", tmp_path, ROWS["humaneval"]))


def test_rows_that_cannot_be_asked_are_counted_and_the_others_asked(
    recipe: Recipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        ROWS["gsm8k"],
        ROWS["gsm8k"],
        {"question": "q", "answer": "none"},
        {"question": "1" * 200, "answer": "#### 1"},
    ]
    eval_set = set_of(recipe, copy_of("gsm8k", tmp_path, *rows))
    assert (len(eval_set.tasks), eval_set.num_left_out, eval_set.describe()["num_left_out"]) == (1, 3, 3)
    assert "benchmark gsm8k leaves out 3 of 4 rows" in caplog.text


def test_a_benchmark_has_its_own_verifier_with_the_options_of_the_recipe_where_that_is_the_same(
    recipe: Recipe, tmp_path: Path
) -> None:
    exact = load_recipe(tmp_path / "recipe.yaml", ["verifying.default=exact"])
    assert set_of(exact, copy_of("gsm8k", tmp_path, ROWS["gsm8k"])).tasks[0].verifier.name == "math"
    options = load_recipe(tmp_path / "recipe.yaml", ["verifying.options={operations: any}"])
    spec = set_of(options, copy_of("gsm8k", tmp_path, ROWS["gsm8k"])).tasks[0].verifier
    assert spec.options == {"operations": "any"}


def test_the_recipes_sampling_of_evaluations_is_asked_and_recorded(recipe: Recipe, tmp_path: Path) -> None:
    given = {"top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    section = recipe.evaluation.model_copy(update=given)
    benchmark = copy_of("aime24", tmp_path, ROWS["aime24"])
    found = set_of(recipe.model_copy(update={"evaluation": section}), benchmark)
    assert found.sampling.settings() == given
    assert given.items() <= found.describe().items()
    assert not given.keys() & set_of(recipe, benchmark).describe().keys()


def test_one_sample_is_the_most_likely_answer_and_several_are_samples(recipe: Recipe, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "model")
    greedy = set_of(recipe, copy_of("gsm8k", tmp_path, ROWS["gsm8k"]))
    sampled = set_of(recipe, copy_of("aime24", tmp_path, ROWS["aime24"]))
    assert (greedy.num_responses, greedy.describe()["temperature"]) == (1, 0.0)
    assert (sampled.num_responses, sampled.describe()["temperature"]) == (32, 1.0)
