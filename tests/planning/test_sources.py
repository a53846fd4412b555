"""Where costs and lengths come from, and what is assumed with them."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.model_folder import write_tokenizer
from fakes.recipes import make_recipe
from fakes.shapes import tiny_shape

from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.planning.device import measure_cpu
from asyncrl.planning.estimated import DEVICES, assumed_lengths, estimate_costs
from asyncrl.planning.prompts import PromptTokens, sampled_prompts
from asyncrl.planning.settings import PlannedRun
from asyncrl.planning.sources import find_likely_source, find_source
from asyncrl.planning.split import best_splits, recommended
from asyncrl.planning.stated import Stated, read_stated
from asyncrl.recipe import Recipe
from asyncrl.recipe.sections.placement import Placement

H100 = DEVICES["H100"]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return make_recipe(
        tmp_path,
        rollout={"max_new_tokens": 4000, "groups_per_batch": 4},
        serving={"max_total_tokens": 10**6},
    )


def test_an_estimate_follows_the_data_sheet(recipe: Recipe) -> None:
    shape, lengths = tiny_shape(), assumed_lengths(recipe)
    costs = estimate_costs(shape, recipe, lengths, H100)
    # Weights of 2 bytes once per step, at 60% of 3.35 TB/s, and 4 ms.
    assert costs.decode_seconds == pytest.approx(0.004 + 2 * shape.num_parameters() / (0.6 * 3.35e12))
    # A slower device, half of the ranks: everything takes longer.
    slower = estimate_costs(shape, recipe, lengths, DEVICES["A10"])
    assert slower.train_seconds_per_token == pytest.approx(costs.train_seconds_per_token * 989 / 125)
    two = estimate_costs(shape, recipe, lengths, H100, num_ranks=2)
    assert two.train_seconds_per_token == pytest.approx(costs.train_seconds_per_token / 2)
    # Gradients of two copies have to be summed.
    assert two.train_seconds > costs.train_seconds
    assert "estimated for H100" in costs.origin


def test_assumed_lengths_have_the_mean_and_the_limit_of_the_recipe(recipe: Recipe) -> None:
    lengths = assumed_lengths(recipe, prompt_tokens=100.0)
    # A quarter of 4000, less what the limit cuts off.
    assert 900 < lengths.mean() < 1000
    assert lengths.longest() == 4000
    # E[length^2] / 2 E[length] is more than half of the mean, because long ones run for longer.
    assert lengths.tokens_held() > 100 + lengths.mean() / 2
    alike = assumed_lengths(recipe, mean_tokens=60.0, spread=0.0, prompt_tokens=10.0)
    assert (alike.mean(), alike.longest(), alike.tokens_held()) == (60.0, 60, 40.0)


def test_what_is_stated_wins_over_an_estimate_and_the_rest_stays(recipe: Recipe, tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    path.write_text(
        "costs: {decode_seconds: 0.5}\nlengths: {mean_tokens: 7, spread: 0}\n"
        "failures: {server_seconds_between: 100}\n"
    )
    source = find_source(
        recipe, tiny_shape(), device="H100", stated=read_stated(path), prompts=PromptTokens(5, "the test")
    )
    estimated = find_source(recipe, tiny_shape(), device="H100", prompts=PromptTokens(5, "the test"))
    assert source.run.costs.decode_seconds == 0.5
    assert source.run.costs.train_seconds == estimated.run.costs.train_seconds
    assert source.lengths.mean() == 7
    assert source.run.failures.server_seconds_between == 100
    assert source.assumptions[0].startswith("costs are stated (decode_seconds), else estimated for H100")
    # The same for every split.
    assert source.costs_of(8).decode_seconds == 0.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "holds a list, expected the keys costs, lengths, failures"),
        ("{", "cannot be read"),
        ("lengths: {mean_tokens: -1}", "lengths.mean_tokens is -1: input should be greater than 0"),
    ],
)
def test_a_file_that_states_nonsense_is_refused_with_its_key(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "costs.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_stated(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_stated(tmp_path / "none.yaml")


def test_an_unknown_device_is_refused_with_the_known_ones(recipe: Recipe) -> None:
    with pytest.raises(InputError, match="--device H9 is unknown. Known: B200, H200"):
        find_source(recipe, tiny_shape(), device="H9")


def test_a_run_that_has_not_begun_is_estimated_for_what_the_machine_has(recipe: Recipe) -> None:
    on_cpu = recipe.model_copy(update={"placement": Placement(device="cpu")})
    here = find_likely_source(on_cpu, tiny_shape(), is_elsewhere=False).assumptions
    assert "estimated for CPU" in here[0]
    assert "device: CPU (placement.device is cpu; measured on this machine just now)" in here
    elsewhere = find_likely_source(recipe, tiny_shape(), is_elsewhere=True).assumptions
    assert "estimated for H100" in elsewhere[0]
    assert "device: H100 (a likely GPU; --device names another)" in elsewhere


def test_a_cpu_is_measured_within_what_cpus_can_do() -> None:
    found = measure_cpu()
    # From a tenth of a slow core to the largest servers.
    assert 1e-4 < found.teraflops < 100 and 1e-4 < found.terabytes_per_second < 10
    assert found.memory_gb > 0.1


def test_prompts_are_those_of_the_recipes_own_rows(tmp_path: Path) -> None:
    recipe = with_rows(tmp_path, ["1+1=", "22+22="])
    sampled = sampled_prompts(recipe)
    codec = TextCodec(Path(recipe.model.path), rollout=recipe.rollout)
    known = [len(codec.render_prompt(prompt)[1]) for prompt in ("1+1=", "22+22=")]
    assert sampled == PromptTokens(sum(known) / 2, "the mean of the first 2 rows of data.train")
    source = find_source(recipe, tiny_shape(), device="CPU")
    assert source.lengths.prompt_tokens == sampled.mean
    assert any(line.startswith("prompts: ") and "data.train" in line for line in source.assumptions)


def test_a_stated_length_of_prompts_wins_over_the_rows(tmp_path: Path) -> None:
    recipe = with_rows(tmp_path, ["1+1="])
    longest = PromptTokens(70.0, "--longest-prompt")
    given = find_source(recipe, tiny_shape(), device="CPU", prompts=longest)
    assert "prompts: 70 tokens (--longest-prompt)" in given.assumptions
    stated = Stated.model_validate({"lengths": {"prompt_tokens": 50.0}})
    named = find_source(
        recipe, tiny_shape(), device="CPU", prompts=PromptTokens(70.0, "--longest-prompt"), stated=stated
    )
    assert "prompts: 50 tokens (lengths.prompt_tokens of --costs)" in named.assumptions


@pytest.mark.parametrize(
    ("rows", "said"),
    [(None, "is not on this machine yet"), ([], "has no rows to sample"), ([3], "expected text or a list")],
)
def test_where_the_rows_say_nothing_the_plan_says_why(
    tmp_path: Path, rows: list[Any] | None, said: str
) -> None:
    source = find_source(with_rows(tmp_path, rows), tiny_shape(), device="CPU")
    (line,) = (line for line in source.assumptions if line.startswith("prompts: "))
    assert line.startswith("prompts: 256 tokens (assumed, since ") and said in line


def with_rows(folder: Path, prompts: list[Any] | None) -> Recipe:
    """A recipe with a model that has a tokenizer, and with these prompts; None: without the file of rows."""
    model = write_tokenizer(folder / "model")
    (model / "config.json").write_text('{"eos_token_id": 1}')
    if prompts is not None:
        lines = [json.dumps({"prompt": prompt, "answer": "2"}) for prompt in prompts]
        (folder / "train.jsonl").write_text("\n".join(lines))
    data = {"train": str(folder / "train.jsonl")}
    return make_recipe(folder, model={"path": str(model)}, data=data, evaluation={"every_steps": 0})


def test_the_best_split_balances_both_sides(recipe: Recipe) -> None:
    stated = Stated.model_validate(
        {
            # A server makes 64 x 100 tokens in 1.28 s or a quarter of a batch of 128 x 100 in 0.64 s.
            "costs": {"decode_seconds": 0.0, "decode_seconds_per_request": 2e-4, "install_seconds": 0.0},
            "lengths": {"mean_tokens": 100, "spread": 0, "prompt_tokens": 0},
        }
    )
    source = find_source(recipe, tiny_shape(), device="H100", stated=stated)

    def costs_of(ranks: int):
        from dataclasses import replace

        # As long as all servers of the other 6 GPUs take: 32 x 100 x 2e-4 / 6 s.
        per_token = 2 * 2e-4 / 6 / ranks
        return replace(
            source.costs_of(1), train_seconds=0.0, train_seconds_per_token=per_token, publish_seconds=0.0
        )

    splits = best_splits(
        source.recipe, source.run, source.lengths, num_gpus=8, costs_of=costs_of, num_steps=24
    )
    best = recommended(splits)
    assert (best.num_servers, best.num_ranks) == (6, 2)
    assert [split.groups_per_batch for split in splits] == [4 * 2**i for i in range(len(splits))]


def test_a_split_needs_a_gpu_for_each_side(recipe: Recipe) -> None:
    source = find_source(recipe, tiny_shape(), device="H100")
    with pytest.raises(InputError, match="--gpus is 1, but one server takes 1"):
        best_splits(recipe, source.run, source.lengths, num_gpus=1, costs_of=source.costs_of, num_steps=8)


def test_a_planned_run_has_the_rules_of_its_recipe(tmp_path: Path) -> None:
    recipe = make_recipe(
        tmp_path,
        rollout={"max_staleness": 3, "oversampling": 1.5, "interrupt": "abort"},
        serving={"num_servers": 2, "max_running_requests": 100, "max_total_tokens": 5000},
        replay={"drops_no_signal": True},
    )
    costs = find_source(recipe, tiny_shape(), device="H100").run.costs
    run = PlannedRun.of(recipe, costs, tokens_held=50.0, no_signal_share=0.25)
    assert (run.queue.max_staleness, run.oversampling, run.interrupt) == (3, 1.5, "abort")
    assert (run.num_servers, run.max_running_requests, run.decode_slots) == (2, 100, 100.0)
    assert run.no_signal_share == 0.25
    # Without the filter, groups without signal are trained.
    kept = make_recipe(tmp_path)
    assert PlannedRun.of(kept, costs, tokens_held=50.0, no_signal_share=0.25).no_signal_share == 0.0
