"""Every recipe that is shipped is valid, and those that make their own base model agree with it.

What makes a model is imported where it is used: it loads torch and transformers.
"""

from pathlib import Path

import pytest

from asyncrl.examples.rows import parse_options
from asyncrl.recipe import Data, Source
from asyncrl.recipe.chain import read_chain
from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.yaml_text import read_yaml
from asyncrl.run.chain import SELECTION, plan_stages
from asyncrl.system.plugins import load_object

REASONING = Path(__file__).parents[2] / "recipes" / "r1_zero_reasoning_cpu.yaml"
GROWS = REASONING.with_name("r1_zero_grow_cpu.yaml")
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
CHAINS = sorted((Path(__file__).parents[2] / "recipes/chains").glob("*.yaml"))
MADE_HERE = [path for path in RECIPES if "\nprepare:" in path.read_text(encoding="utf-8")]


def sources(data: Data) -> list[Source]:
    return [*data.train_sources(), *data.heldout_sources()]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_valid_and_named_like_its_file(path):
    assert load_recipe(path).name == path.stem


@pytest.mark.parametrize("path", CHAINS, ids=lambda path: path.stem)
def test_the_stages_of_a_chain_are_valid_and_its_folder_is_beside_the_runs(path):
    chain = read_chain(path)
    runs = [stage.recipe.folder() for stage in plan_stages(chain) if stage.kind != SELECTION]
    assert {Path(chain.folder).parent} == {run.parent for run in runs} == {path.parents[2] / "runs"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_states_what_it_learns_by_so_that_no_default_changes_it(path):
    stated, trainer = read_yaml(path.read_text(encoding="utf-8")), load_recipe(path).trainer
    assert "learning_rate" in stated["trainer"]
    # With one optimizer step per batch every policy ratio is 1, and no clip binds.
    assert trainer.optimizer_steps_per_batch == 1 or "clip_high" in stated["algorithm"]


@pytest.mark.parametrize("path", MADE_HERE, ids=lambda path: path.stem)
def test_what_a_recipe_prepares_is_what_it_reads(path):
    from asyncrl.examples import gym_pretrain, pretrain, tool_sums

    recipe = load_recipe(path)
    target = load_object(recipe.prepare.target)
    read = {recipe.model.path, *(source.path for source in sources(recipe.data) if source.gym is None)}
    assert callable(target)
    rows = {
        gym_pretrain.prepare: [],
        tool_sums.prepare: [
            f"{part}/{kind}.jsonl" for part in ("train", "heldout") for kind in ("short", "long")
        ],
    }.get(target, ["train.jsonl", "heldout.jsonl"])
    names = ["model", *rows]
    assert read == {f"{recipe.prepare.folder}/{name}" for name in names}
    if target is pretrain.prepare:
        options = parse_options(pretrain.SumsOptions, recipe.prepare.options)
        assert options.max_position_embeddings >= recipe.model.context_tokens


def test_the_base_model_of_a_gym_saw_other_tasks_than_the_run_and_no_held_out_one():
    from asyncrl.examples.gym_pretrain import ChainSumOptions

    recipe = load_recipe(REASONING)
    options = parse_options(ChainSumOptions, recipe.prepare.options)
    corpus = Source(
        gym="chain_sum", seed=options.first_seed, size=options.num_examples, config=options.config
    )
    for source in sources(recipe.data):
        assert (source.gym, source.config) == (corpus.gym, corpus.config)
        assert not seeds(source) & seeds(corpus)
    (heldout,) = recipe.data.heldout_sources()
    # It leaves out their questions, too, which other seeds may ask again.
    assert (heldout.seed, heldout.size) == (options.heldout_seed, options.heldout_size)


def seeds(source: Source) -> set[int]:
    return set(range(source.seed, source.seed + source.size))


def test_the_base_model_of_the_recipe_that_grows_has_read_no_size_that_a_curriculum_adds() -> None:
    from asyncrl.examples.lettered_sums import LetteredSumsOptions, draw_train

    recipe = load_recipe(GROWS)
    options = parse_options(LetteredSumsOptions, recipe.prepare.options)
    sizes = {len(problem.columns) for problem in draw_train(options, without=set())}
    # The first stage is what the corpus ends with.
    assert min(sizes) == options.corpus_columns and recipe.data.selection.stages == len(sizes)
    # A worked answer of the largest size, a last carry and the end of text included.
    longest = len(("<think>", "</think>", "<eos>")) + 5 * max(sizes) + 2
    assert longest <= recipe.rollout.max_new_tokens
    assert 3 * max(sizes) + 2 + recipe.rollout.max_new_tokens <= recipe.model.context_tokens
