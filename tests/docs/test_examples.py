"""What README and docs show to be copied works as it stands there."""

import asyncio
import dataclasses
import re
from pathlib import Path

import pytest
import torch
from fakes.loss_inputs import gradient, make_inputs

from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.own_terms import check_terms
from asyncrl.recipe import Algorithm, Recipe
from asyncrl.records import EnvironmentSpec
from asyncrl.turns.contract import check_environment
from asyncrl.turns.environment import End
from asyncrl.turns.pool import EpisodePool
from verifiers.contract import check_contract

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_verifier_to_copy_keeps_the_contract():
    checks = asyncio.run(
        check_contract(
            "./parity.py:Parity",
            {},
            ["even"],
            folder=EXAMPLES,
            right=[("even", "4 is even")],
            wrong=[("even", "4 is odd"), ("odd", "")],
        )
    )
    assert [check for check in checks if not check.passed] == []


def test_the_verifier_of_groups_to_copy_keeps_the_contract():
    checks = asyncio.run(
        check_contract(
            "./fewest_words.py:FewestWords",
            {},
            ["42"],
            folder=EXAMPLES,
            right=[("42", "42"), ("42", "It is 42.")],
            wrong=[("42", "It is 41.")],
        )
    )
    assert [check for check in checks if not check.passed] == []
    page = (ROOT / "verifiers" / "README.md").read_text(encoding="utf-8")
    assert (
        "class FewestWords" + (EXAMPLES / "fewest_words.py").read_text().split("class FewestWords")[1] in page
    )


def test_the_readme_shows_the_verifier_to_copy():
    _, source = (EXAMPLES / "parity.py").read_text().split('"""\n\n', 1)
    assert source in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_surrogate_to_copy_is_accepted_and_has_the_slope_it_says():
    surrogate = {"name": f"{EXAMPLES}/soft_clip.py:soft_clip", "options": {"high": 0.28}}
    algorithm = Algorithm(surrogate=surrogate, importance_weight="none")
    check_terms(algorithm)
    loss = make_loss(algorithm, max_new_tokens=8)
    # Ratios 1, and e^3 = 20: far beyond the clip.
    inputs = make_inputs(current=[-1.0, -1.0], proximal=[-1.0, -4.0], behavior=[-1.0, -4.0])
    slopes = gradient(loss(inputs).total, inputs)
    assert slopes[0] == pytest.approx(-1.0)
    assert abs(slopes[1]) < 1e-3
    assert torch.isfinite(loss(inputs).total)


def test_the_weight_to_copy_is_accepted_and_weighs_by_lag_finish_and_source():
    weight = {"name": f"{EXAMPLES}/by_lag.py:by_lag", "options": {"shares": {"hard": 2.0}}}
    algorithm = Algorithm(importance_weight=weight)
    check_terms(algorithm)
    inputs = dataclasses.replace(
        make_inputs(current=[-1.0] * 4, behavior=[-1.0, -1.0, -4.0, -1.0], sequence_ids=[0, 0, 1, 2]),
        lags=torch.tensor([0, 3, 1, 0]),
        finishes=("stop", "stop", "length"),
        sources=("easy", "hard", "hard"),
    )
    # 1 / 1 and 1 / 4; a ratio of e^3 capped at 2, by a lag of 1, twice; cut off.
    assert make_loss(algorithm, max_new_tokens=8)(inputs).weights.tolist() == [1.0, 0.25, 2.0, 0.0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_of_a_page_exist(page: Path):
    text = page.read_text(encoding="utf-8")
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)#:]+(?:#[^)]*)?)\)", text)]
    missing = [link for link in links if link and not (page.parent / link).exists()]
    paths = re.findall(r"`((?:asyncrl|verifiers|sandbox|recipes|tests|docs)/[\w./]+\w)`", text)
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


def test_the_files_that_answer_questions_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    answers = re.findall(r"^\| \d+\. [^|]*\| (.*) \|$", text, re.MULTILINE)
    assert len(answers) == 49
    for answer in answers:
        for path in re.findall(r"`([\w/.]+[/.][\w/.]+)`", answer):
            assert (ROOT / path).is_file() or (ROOT / "asyncrl" / path).is_file(), path


def test_a_change_that_users_ask_for_touches_three_files_at_most():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    answers = re.findall(r"^\| (\d+)\. [^|]*\| (.*) \|$", text, re.MULTILINE)
    files = {number: re.findall(r"`[\w/]+\.py`", answer) for number, answer in answers}
    assert [number for number, named in files.items() if int(number) > 21 and len(named) > 3] == []


def test_recipe_keys_that_a_page_names_exist():
    sections = {name: field.annotation for name, field in Recipe.model_fields.items()}
    for page in PAGES:
        for section, key in re.findall(r"`([a-z]+)\.([a-z_]+)\b", page.read_text(encoding="utf-8")):
            fields = getattr(sections.get(section), "model_fields", None)
            assert fields is None or key in fields or key in ("py", "yaml", "md"), f"{page}: {section}.{key}"


async def test_the_environment_to_copy_keeps_the_contract_and_ends_with_the_number():
    name, row = "./guessing_game.py:GuessingGame", {"prompt": "Guess a number.", "answer": 37}
    checks = await check_environment(name, {}, [row], folder=EXAMPLES)
    assert [check for check in checks if not check.passed] == []
    async with EpisodePool(folder=EXAMPLES, timeout_seconds=60.0) as pool:
        episode = await pool.open(EnvironmentSpec(name))
        await episode.start(row)
        replies = [await episode.step(text) for text in ("Is it 50?", "25", "no idea", "I say 37.")]
        await episode.close()
    said = [reply.messages[0]["content"] for reply in replies[:-1]]
    assert said == ["lower", "higher", "Write a number."] and replies[-1] == End(1.0, "", "37")


def test_the_page_on_turns_shows_the_environment_to_copy():
    _, source = (EXAMPLES / "guessing_game.py").read_text().split('"""\n\n', 1)
    assert source in (ROOT / "docs" / "turns.md").read_text(encoding="utf-8")
