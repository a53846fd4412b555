"""The recipes for Qwen2.5-0.5B pass `asyncrl check`, with a hub that has a tiny model and a few rows."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub import Hub, running_hub
from fakes.model_folder import write_tokenizer
from fakes.newcomer import CONFIG, write_zeros

from asyncrl.data.prompts import PromptTemplate
from asyncrl.recipe.file import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
GSM8K, MBPP = RECIPES / "grpo_gsm8k_qwen2.5_0.5b.yaml", RECIPES / "grpo_mbpp_qwen2.5_0.5b.yaml"
SPLITS = "---\nconfigs:\n- config_name: {}\n  data_files:\n{}---\n"


def word_problem(number: int) -> dict[str, str]:
    return {"question": f"{number} and 2 more?", "answer": f"{number} + 2\n#### {number + 2}"}


def program_task(number: int) -> dict[str, object]:
    return {
        "text": f"Write a function add{number}.",
        "code": f"def add{number}(x):\r\n  return x + {number}",
        "test_list": [f"assert add{number}(2) == {2 + number}", f"assert add{number}(0) == {number}"],
        "test_setup_code": "",
    }


def write_rows(folder: Path, config: str, splits: dict[str, list[dict]]) -> Path:
    """A dataset as a hub has it: a file for each split, which README.md names."""
    folder.mkdir()
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = "".join(f"  - split: {split}\n    path: {split}.jsonl\n" for split in splits)
    (folder / "README.md").write_text(SPLITS.format(config, files))
    return folder


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    model = write_tokenizer(tmp_path / "model")
    (model / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 4096}))
    write_zeros(model)
    problems = {"train": [word_problem(n) for n in range(4)], "test": [word_problem(n) for n in range(4, 6)]}
    broken = program_task(8) | {"test_list": ["assert add8("]}
    programs = {"train": [*map(program_task, range(3)), broken], "test": [program_task(9)]}
    folders = {
        "Qwen__Qwen2.5-0.5B": model,
        "openai__gsm8k": write_rows(tmp_path / "gsm8k", "main", problems),
        "google-research-datasets__mbpp": write_rows(tmp_path / "mbpp", "full", programs),
    }
    with running_hub(**folders) as hub:
        yield hub


def said_by(hub: Hub, home: Path, *words: str) -> str:
    """What a process of its own prints: huggingface_hub reads its environment when it is imported."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home)}
    command = [sys.executable, "-m", "asyncrl.commands.main", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_word_problems_of_a_hub_pass_the_check(hub: Hub, tmp_path: Path):
    folder = f"run_folder={tmp_path / 'run'}"
    said = said_by(hub, tmp_path, "check", str(GSM8K), folder)
    assert f"# model     Qwen/Qwen2.5-0.5B at commit {hub.commit}" in said
    assert f"revision: {hub.commit}" in said


def test_the_programs_of_a_hub_pass_the_check_and_a_broken_row_is_left_out(hub: Hub, tmp_path: Path):
    folder = f"run_folder={tmp_path / 'run'}"
    said = said_by(hub, tmp_path, "check", str(MBPP), folder)
    assert "3 training tasks" in said and "1 held-out" in said
    assert "data.train leaves out 1 of 4 rows" in said


def prompt_of(path: Path, question: str) -> str:
    section = load_recipe(path).prompt
    assert section is not None
    examples = [example.model_dump() for example in section.examples]
    text = PromptTemplate(section.template, examples=examples)(question)
    assert isinstance(text, str)
    return text


def test_two_solved_word_problems_come_before_each():
    text = prompt_of(GSM8K, "1 and 2 more?")
    assert text.count("\n#### ") == 2
    assert text.endswith("stickers.\n#### 26\n\nQuestion: 1 and 2 more?\nAnswer:")


def test_a_program_is_asked_for_as_in_the_paper():
    text = prompt_of(MBPP, "Write add.\nassert add(1) == 2")
    assert text.startswith("You are an expert Python programmer, and here is your task: Write a function")
    assert text.endswith(
        "split())\n[DONE]\n\nYou are an expert Python programmer, and here is your task: Write add.\n"
        "assert add(1) == 2\n[BEGIN]"
    )


@pytest.mark.parametrize("path", [GSM8K, MBPP], ids=lambda path: path.stem)
def test_a_checkpoint_is_written_without_a_copy_of_the_state(path: Path):
    recipe = load_recipe(path)
    assert not recipe.trainer.saves_in_background and recipe.model.dtype == "auto"
