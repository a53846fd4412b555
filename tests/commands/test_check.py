"""`asyncrl check`: its lines about a recipe, its own terms and its teacher, and recipes that it refuses."""

import json
import shutil
from pathlib import Path

import pytest
from fakes.commands import Command
from fakes.newcomer import write_project

from asyncrl.recipe.file import load_recipe

RECIPE = """
name: own
model: {path: nowhere}
data: {train: none.jsonl}
evaluation: {every_steps: 0}
algorithm: {importance_weight: "./own.py:weight", rejection: ["./own.py:keep"]}
"""
GOOD = """
import torch
def weight(inputs, algorithm): return torch.ones_like(inputs.proximal)
def keep(inputs, algorithm): return inputs.mask
"""


def test_a_term_that_breaks_the_contract_is_named(tmp_path: Path, command: Command) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "own.py").write_text(GOOD.replace("inputs.mask", "inputs.proximal"))
    said = command("check", tmp_path / "recipe.yaml", code=2).err
    assert "own.py:keep gave torch.float32; expected torch.bool" in said


def test_terms_that_keep_the_contract_pass_and_the_check_continues(tmp_path: Path, command: Command) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "own.py").write_text(GOOD)
    said = command("check", tmp_path / "recipe.yaml", code=2).err
    assert said.startswith(f"model.path is {tmp_path}/nowhere, which is not a folder")


def test_a_preset_is_shown_with_what_the_recipe_states_otherwise(tmp_path: Path, command: Command) -> None:
    write_project(tmp_path)
    words = ["check", str(tmp_path / "recipe.yaml"), "algorithm.preset=gspo", "algorithm.clip_high=0.1"]
    said = command(*words).out
    (line,) = (line for line in said.splitlines() if line.startswith("# preset"))
    assert line.startswith("# preset    gspo (GSPO, arXiv 2507.18071 (version 2), section 5.1; ")
    assert "algorithm.clip_low 0.0003" in line and line.endswith(
        "; stated otherwise: algorithm.clip_high 0.1"
    )
    # The resolved recipe.
    assert "\n  surrogate: gspo\n" in said and "\n  clip_high: 0.1\n" in said
    assert "Did you mean gspo?" in command(*words[:2], "algorithm.preset=gsp", code=2).err


def test_what_differs_from_the_defaults_is_printed_and_all_of_it_with_a_flag(
    tmp_path: Path, command: Command
) -> None:
    write_project(tmp_path)
    words = ["check", str(tmp_path / "recipe.yaml"), "trainer.num_steps=7"]
    short = command(*words).out
    assert "\n  num_steps: 7\n" in short and "adam_beta1" not in short and len(short.splitlines()) < 40
    whole = command(*words, "--all").out
    assert "\n  adam_beta1: " in whole and len(whole.splitlines()) > 200
    # What is printed means the same recipe.
    for name, said in (("short", short), ("whole", whole)):
        (tmp_path / f"{name}.yaml").write_text(said)
    assert load_recipe(tmp_path / "short.yaml") == load_recipe(tmp_path / "whole.yaml")


def test_tokens_that_are_never_sampled_are_listed(tmp_path: Path, command: Command) -> None:
    write_project(tmp_path)
    words = ["check", str(tmp_path / "recipe.yaml")]
    assert "# sampling  never sampled: none\n" in command(*words).out
    (file,) = tmp_path.rglob("tokenizer.json")
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for name in ("z", "y"):
        del vocabulary[name]
    tokenizer["model"]["unk_token"] = "a"
    ways = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    pad = {"id": vocabulary["<pad>"], "content": "<pad>", "special": True}
    tokenizer["added_tokens"] = [pad | ways]
    file.write_text(json.dumps(tokenizer))
    (file.parent / "tokenizer_config.json").write_text('{"pad_token": "<pad>"}')
    listed = "# sampling  never sampled: 3 tokens: <pad> (id 2), ids 46-47 that the tokenizer lacks\n"
    assert listed in command(*words).out


def test_what_a_valid_recipe_does_not_do_is_said(tmp_path: Path, command: Command) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "own.py").write_text(GOOD)
    said = command("check", tmp_path / "recipe.yaml", code=2).out
    assert "# note      With one optimizer step per batch" in said


GROUP = """
from verifiers.verdict import wrong
class V:
    min_responses = 2
    def parse_reference(self, raw): return raw
    def verify_group(self, responses, reference): return [wrong() for _ in responses]
"""


def test_a_verifier_of_groups_is_named_and_refused_where_responses_come_alone(
    tmp_path: Path, command: Command
) -> None:
    write_project(tmp_path)
    (tmp_path / "v.py").write_text(GROUP)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "verifying: {default: ./v.py:V}\n")
    words = ["check", str(recipe)]
    said = f"# verdicts  {tmp_path}/v.py:V: asked when all 8 responses of a group are there\n"
    assert said in command(*words, "data.heldout=null", "evaluation.every_steps=0").out
    assert "data.heldout is judged response by response" in command(*words, code=2).err


def test_the_choice_of_rows_and_a_pilot_are_shown(tmp_path: Path, command: Command) -> None:
    write_project(tmp_path)
    words = ["data.selection=learnable", "rollout.pilot_samples=2", "rollout.samples_per_group=4"]
    said = command("check", tmp_path / "recipe.yaml", *words).out
    assert "# rows      selected by their chance of a signal, 0.1 of the groups in turn\n" in said
    assert "16 tasks x 4 samples (2 first, the others where two rewards are likely) = 64" in said
    said = command("check", tmp_path / "recipe.yaml", "data.selection=hardest", code=2).err
    assert "data.selection.by" in said


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A recipe whose training rows have no answers, and a teacher of the same size."""
    write_project(tmp_path)
    shutil.copytree(tmp_path / "model", tmp_path / "teacher")
    rows = [json.dumps({"prompt": f"{n}+1="}) for n in range(1, 5)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    return [str(tmp_path / "recipe.yaml"), f"teacher.path={tmp_path}/teacher"]


def test_rows_without_answers_are_tasks_where_a_teacher_alone_judges(
    words: list[str], command: Command
) -> None:
    said = command("check", *words).out
    assert "# data      4 training tasks that no verifier judges, 4 held-out tasks" in said
    (line,) = (line for line in said.splitlines() if line.startswith("# teacher"))
    own = "teacher, on a server of its own, float32: the same token ids; its log-probs in place of a reward"
    assert line.endswith(f"{own}, coefficient 1")
    said = command("check", *words, "teacher.top_k=4", "teacher.coefficient=0").out
    assert "coefficient 0; forward KL over its 4 likeliest tokens, coefficient 1\n" in said
    said = command("check", *words, "teacher.top_k=50", code=2).err
    assert "teacher.top_k is 50, but there are 4" in said
    said = command("check", *words, "teacher.with_reward=true", code=2).err
    assert 'train.jsonl:1: no "answer"; the row has prompt' in said


def test_the_plan_has_the_teachers_process_and_its_bytes_in_the_journal(
    words: list[str], command: Command
) -> None:
    without = command("plan", words[0]).out
    assert "\nteacher" not in without and "journal    8 bytes for each sampled token\n" in without + "\n"
    said = command("plan", *words, "teacher.max_total_tokens=1000").out
    assert "teacher    a server of its own, 1 rank(s); each rank " in said
    assert "journal    8 bytes for each sampled token; 4 more for the teacher's log-prob" in said
    said = command("plan", *words, "teacher.top_k=20").out
    assert "the teacher's log-prob, 160 for its 20 likeliest tokens (teacher.top_k)\n" in said
    said = command("plan", *words, "teacher.url=http://127.0.0.1:9").out
    assert "teacher    external: http://127.0.0.1:9" in said


def test_a_teacher_of_another_vocabulary_or_of_too_short_a_context_is_refused(
    tmp_path: Path, words: list[str], command: Command
) -> None:
    config = json.loads((tmp_path / "teacher/config.json").read_text())
    (tmp_path / "teacher/config.json").write_text(json.dumps({**config, "max_position_embeddings": 20}))
    said = command("check", *words, code=2).err
    assert (
        "whose context of 20 tokens holds texts of 19, but the longest prompt and its response have" in said
    )
    tokenizer = json.loads((tmp_path / "teacher/tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["0"], vocabulary["1"] = vocabulary["1"], vocabulary["0"]
    (tmp_path / "teacher/tokenizer.json").write_text(json.dumps(tokenizer))
    said = command("check", *words, code=2).err
    assert "in 2 of 49 token ids: 3 is '0' and '1'; 4 is '1' and '0'. Name a model" in said
    shutil.rmtree(tmp_path / "teacher")
    said = command("check", *words, code=2).err
    assert "teacher.path is" in said and "which is not a folder" in said
