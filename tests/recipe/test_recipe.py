"""Sections that cannot work together are refused with both keys and what to change."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.recipe.file import parse_recipe

MINIMAL = {"name": "t", "model": {"path": "m"}, "data": {"train": "d.jsonl", "heldout": "h.jsonl"}}


def test_a_minimal_recipe_has_a_default_for_everything_else() -> None:
    recipe = parse_recipe(MINIMAL, source="test")
    assert (recipe.rollout.groups_per_batch, recipe.rollout.max_staleness) == (16, 2)
    assert recipe.folder() == Path("runs/t")


@pytest.mark.parametrize("advantage", ["gae", "reinforce_pp", "w_reinforce", "remax"])
def test_an_advantage_without_a_group_baseline_allows_groups_of_one(advantage: str) -> None:
    recipe = make_recipe(Path("m"), algorithm={"advantage": advantage}, rollout={"samples_per_group": 1})
    assert recipe.algorithm.min_group_size() == 1


def test_a_greedy_answer_is_something_to_differ_from() -> None:
    sections = {"rollout": {"samples_per_group": 1}, "replay": {"drops_no_signal": True}}
    assert make_recipe(Path("m"), algorithm={"advantage": "remax"}, **sections).replay.drops_no_signal


def test_remax_asks_for_room_for_its_greedy_trajectory() -> None:
    serving = {"max_running_requests": 8}
    with pytest.raises(InputError, match=r"9 requests per group.*at least 9"):
        make_recipe(Path("m"), algorithm={"advantage": "remax"}, serving=serving)
    grpo = make_recipe(Path("m"), algorithm={"advantage": "grpo"}, serving=serving)
    assert grpo.trajectories_per_group() == 8


def summarized(
    *,
    turns: dict[str, Any] | None = None,
    at_tokens: int = 1024,
    max_tokens: int = 256,
    trains: bool = True,
    **sections: Any,
) -> dict[str, Any]:
    asked = {"at_tokens": at_tokens, "max_tokens": max_tokens, "trains": trains}
    base = {"turns": {**(turns or {"tools": ["calculator"]}), "summarize": asked}}
    return {"model": {"path": "m", "context_tokens": 4096}, **base, **sections}


def roles(*names: str, **agent: Any) -> dict[str, Any]:
    named = list(names) or ["proposer", "checker"]
    return {"agent": {"command": ["true"], "may_give_verdict": True, "roles": named, **agent}}


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"model": {"path": "m", "context_tokens": 64}, "rollout": {"max_new_tokens": 64}},
            "Lower rollout.max_new_tokens or raise",
        ),
        (
            {"agent": {"command": ["true"]}, "turns": {"tools": ["calculator"]}},
            "an agent brings its own",
        ),
        (
            {"agent": {"command": ["true"], "functions_per_process": 8}},
            "functions_per_process is 8, but there is no agent.function",
        ),
        ({"agent": {"command": ["true"]}, "turns": {"call_format": "tags"}}, "auto, hermes or llama"),
        ({"agent": {"command": ["true"], "function": "./a.py:run"}}, "expected one of the two"),
        ({"agent": {"verdict": "branch"}}, "neither agent.command nor agent.function is set"),
        (
            {"agent": {"command": ["true"], "verdict": "branch", "may_give_verdict": True}},
            "an agent gives one score, for the whole trajectory",
        ),
        ({"agent": {"roles": ["a"]}}, "Set one of the two, or remove agent.roles"),
        ({"agent": {"opponents": {"a": "x"}}}, "nothing would call them. Set one of the two"),
        (roles("a", opponents={"a": "x"}), "a is in agent.roles and in agent.opponents"),
        (roles("a", opponents={"The Judge": "x"}), "'The Judge"),
        (roles(may_give_verdict=False), "and let the agent give the score of each role"),
        (roles("a", "a"), "has a role twice"),
        (roles("a", "The Judge"), "'The Judge': string should match pattern"),
        (roles("a", verdict="branch"), "agent.verdict is branch, but agent.may_give_verdict is true"),
        *(
            ({**roles("a"), "algorithm": {"advantage": name}}, f"algorithm.advantage is {name}: its baseline")
            for name in ("gae", "gdpo", "remax", "batch_mean", "reinforce_pp", "reinforce_pp_baseline")
        ),
        (
            {**roles("a"), "algorithm": {"advantage": "rloo", "divides_by_batch_std": True}},
            "but algorithm.divides_by_batch_std is true",
        ),
        (
            {**roles("a"), "algorithm": {"kl": {"coefficient": 0.1, "place": "reward"}}},
            "but algorithm.kl.place is reward",
        ),
        (
            {"prompt": {"history": "as_rendered"}, "agent": {"command": ["true"]}},
            "an agent says the whole history with each call",
        ),
        ({"prompt": {"history": "as_rendered"}}, "with one turn there is no history"),
        (
            {
                "prompt": {"history": "as_rendered"},
                "turns": {"tools": ["calculator"], "call_format": "tags"},
            },
            "results stand in the model's own message",
        ),
        (
            {
                "prompt": {"history": "as_rendered", "template": "r1"},
                "turns": {"tools": ["calculator"]},
            },
            "writes text, which the chat template never sees. Set prompt.template to chat",
        ),
        (summarized(turns={"max_turns": 8}), "one turn is never summed up"),
        (
            summarized(turns={"max_turns": 8}, agent={"command": ["true"]}),
            "an agent sums up its own history",
        ),
        (summarized(prompt={"history": "as_rendered"}), "repeats the last turns as they were sampled"),
        (summarized(prompt={"template": "r1"}), "a summary goes into a chat message"),
        (
            summarized(turns={"tools": ["calculator"], "call_format": "tags"}),
            "where no summary can be asked for",
        ),
        (summarized(model={"path": "m"}), "turns.summarize is set but model.context_tokens is not"),
        (summarized(max_tokens=600), "half of it, 512, is for turns behind the summary"),
        (
            summarized(trains=False, algorithm={"advantage": "reinforce_pp"}),
            "would change the advantage of 0 that summaries have",
        ),
        (
            summarized(at_tokens=4000),
            "96 tokens are left for the turn that reaches it",
        ),
        ({"prompt": {"suffix": "Think."}}, "Set prompt.template, such as chat, or remove prompt.suffix"),
        ({"serving": {"max_running_requests": 4}}, "Raise serving.max_running_requests to at least 8"),
        ({"rollout": {"pilot_samples": 8}}, "rollout.pilot_samples is 8 but rollout.samples_per_group is 8"),
        ({"rollout": {"pilot_min_chance": 0.5}}, "rollout.pilot_samples is not set: groups have no pilot"),
        (
            {"rollout": {"pilot_samples": 2}, "algorithm": {"advantage": "remax"}},
            "a group has a gradient even if all its rewards are equal: none is worth stopping",
        ),
        (
            {"rollout": {"pilot_samples": 2}, "algorithm": {"advantage": {"name": "pass_at_k", "k": 4}}},
            "a group that ends with its pilot has no 4 answers",
        ),
        ({"algorithm": {"overlong": {"buffer_tokens": 64}}}, "every response would be penalized"),
        ({"trainer": {"optimizer_steps_per_batch": 17}}, "rollout.groups_per_batch is 16"),
        (
            {"algorithm": {"advantage": "gae"}, "critic": {"optimizer_steps_per_batch": 17}},
            "critic.optimizer_steps_per_batch is 17 but rollout.groups_per_batch is 16",
        ),
        (
            {
                "algorithm": {"advantage": "gae", "kl": {"coefficient": 0.1, "place": "reward"}},
                "critic": {"optimizer_steps_per_batch": 4},
            },
            "the KL is computed for mini-batches that both share",
        ),
        (
            {"rollout": {"oversampling": 1.5, "max_staleness": 0}},
            "rollout.max_staleness is 0: stragglers could never be trained",
        ),
        ({"rollout": {"oversampling": 1.5, "interrupt": "drain"}}, "Remove one of the two"),
        (
            {
                "data": {
                    "train": [{"path": "a.jsonl", "weight": 1}, {"path": "b.jsonl", "weight": 1}],
                    "mixture": "signal",
                },
                "algorithm": {"advantage": "reinforce_pp"},
                "rollout": {"samples_per_group": 1},
            },
            "no source has a signal. Raise rollout.samples_per_group",
        ),
        ({"rollout": {"stop": ["Q:", ""]}}, r"rollout.stop.1 is '': string should have at least 1 character"),
        ({"rollout": {"stop": ["Q"] * 9}}, r"rollout.stop is .*: list should have at most 8 items"),
        ({"rollout": {"stop": "Q:"}}, r"rollout.stop is 'Q:': input should be a valid list"),
        ({"rollout": {"stop": ["\ufffd"]}}, "a stop string is .*: U\\+FFFD .* Remove it"),
        ({"rollout": {"stop_tokens": [""]}}, r"rollout.stop_tokens.0 is '': string should have"),
        (
            {"rollout": {"abort_staleness": 2}},
            "Lower rollout.abort_staleness below rollout.max_staleness",
        ),
        ({"rollout": {"mask_staleness": 3}}, "nothing is ever that stale. Lower rollout.mask_staleness"),
        (
            {"rollout": {"max_staleness": 0}, "replay": {"repeated_groups_per_batch": 4}},
            "nothing may be trained twice. Set rollout.max_staleness",
        ),
        (
            {"replay": {"repeated_groups_per_batch": 17}},
            "at most 16 are possible. Lower it, or raise replay.max_uses",
        ),
        ({"algorithm": {"advantage": {"name": "pass_at_k", "k": 9}}}, "no 9 answers to take the best of"),
        (
            {"algorithm": {"advantage": {"name": "pass_at_k_training", "k": 9}}},
            "no 9 answers to take the best",
        ),
        (
            {"algorithm": {"advantage": "pass_at_k_training"}, "rollout": {"samples_per_group": 4}},
            "a group has one subset of that many answers",
        ),
        (
            {"rollout": {"samples_per_group": 1}},
            "rollout.samples_per_group is 1 .* or algorithm.advantage to gae",
        ),
        (
            {"algorithm": {"advantage": "gae"}, "critic": {"warmup_steps": 50}},
            "Lower critic.warmup_steps",
        ),
        (
            {
                "algorithm": {"advantage": "gae"},
                "rollout": {"samples_per_group": 1},
                "replay": {"drops_no_signal": True},
            },
            "Set replay.drops_no_signal to false",
        ),
        (
            {"algorithm": {"advantage": "gae"}, "replay": {"drops_no_signal": True}},
            "even if all its rewards are equal. Set replay.drops_no_signal to false",
        ),
        (
            {
                "algorithm": {"advantage": "gae"},
                "critic": {"targets": "v_trace", "optimizer_steps_per_batch": 2},
            },
            "critic.targets v_trace: its ratios are of the policy before the step",
        ),
        (
            {
                "algorithm": {"advantage": {"name": "gae", "length_alpha": 0.05}},
                "critic": {"targets": "v_trace"},
            },
            "advantage.length_alpha is 0.05 but critic.targets is v_trace",
        ),
        (
            {
                "algorithm": {"advantage": {"name": "gae", "gae_lambda": 0.95}},
                "critic": {"targets": "v_trace", "gae_lambda": 1.0},
            },
            "v_trace, whose targets give the policy its advantages: there is one lambda",
        ),
        (
            {"algorithm": {"advantage": "gdpo"}, "rollout": {"pilot_samples": 2}},
            "rollout.pilot_samples is set but algorithm.advantage is gdpo",
        ),
        (
            {"algorithm": {"advantage": "gdpo"}, "agent": {"command": ["true"], "verdict": "branch"}},
            "agent.verdict is set but algorithm.advantage is gdpo",
        ),
        (
            {"algorithm": {"advantage": "asym_re"}, "replay": {"drops_no_signal": True}},
            "even if all its rewards are equal. Set replay.drops_no_signal to false",
        ),
        (
            {"algorithm": {"advantage": "w_reinforce"}, "rollout": {"pilot_samples": 2}},
            "even if all its rewards are equal: none is worth stopping",
        ),
        (
            {"algorithm": {"advantage": "reinforce_pp"}, "replay": {"drops_no_signal": True}},
            "even if all its rewards are equal. Set replay.drops_no_signal to false",
        ),
        (
            {"evaluation": {"every_steps": 0, "stop_at_accuracy": 0.9}},
            "Set evaluation.every_steps to 1 or more",
        ),
        (
            {"evaluation": {"every_steps": 0}, "trainer": {"keep_best": True}},
            "Set evaluation.every_steps to 1 or more, or trainer.keep_best to false",
        ),
        ({"data": {"train": "d.jsonl"}}, "Name a held-out file in data.heldout"),
    ],
)
def test_an_impossible_combination_says_which_two_keys_and_what_to_change(
    sections: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        parse_recipe(MINIMAL | sections, source="test")


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({}, "routing_replay is proximal but trainer.optimizer_steps_per_batch is 1"),
        (
            {"trainer": {"optimizer_steps_per_batch": 2}, "algorithm": {"proximal": "interpolated"}},
            "routing_replay is proximal but algorithm.proximal is interpolated",
        ),
    ],
)
def test_routes_of_the_policy_before_the_batch_need_a_pass_of_it(sections: dict, said: str) -> None:
    algorithm = {"routing_replay": "proximal"} | sections.get("algorithm", {})
    with pytest.raises(InputError, match=said):
        parse_recipe(MINIMAL | sections | {"algorithm": algorithm}, source="test")


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        (
            {"top_p": 0.9},
            "rollout.top_p is 0.9 but rollout.top_k is not set: servers say which tokens they kept",
        ),
        ({"min_p": 0.05}, "rollout.min_p is 0.05 but rollout.top_k is not set"),
        ({"top_k": 1}, "rollout.top_k is 1"),
        ({"top_k": 4097}, "rollout.top_k is 4097"),
        ({"top_p": 0.0, "top_k": 9}, "rollout.top_p is 0.0"),
        (
            {"repetition_penalty": 1.1},
            "rollout.repetition_penalty is 1.1, but tokens that are trained are sampled",
        ),
    ],
)
def test_sampling_whose_distribution_the_trainer_could_not_know_is_refused(
    rollout: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        make_recipe(Path("m"), rollout=rollout)
    assert said in str(refused.value)


def test_truncated_sampling_needs_top_k_alone() -> None:
    assert make_recipe(Path("m"), rollout={"top_k": 4096}).rollout.is_truncated()
    assert make_recipe(Path("m"), rollout={"top_p": 0.9, "min_p": 0.1, "top_k": 2}).rollout.is_truncated()
    assert not make_recipe(Path("m")).rollout.is_truncated()


def test_a_learning_rate_by_weights_that_the_loss_lacks_is_refused() -> None:
    trainer = {"learning_rate_scaling": "ess"}
    with pytest.raises(InputError, match="learning_rate_scaling is ess but algorithm"):
        make_recipe(Path("m"), trainer=trainer, algorithm={"importance_weight": "none"})
    around = {"importance_weight": "none", "clip_around": "behavior"}
    make_recipe(Path("m"), trainer=trainer, algorithm=around)


@pytest.mark.parametrize(
    ("dtype", "trainer", "message"),
    [
        (
            "float16",
            {"optimizer": "muon"},
            r"optimizer is muon but model\.dtype is float16.* or\s+trainer\.opt",
        ),
        (
            "auto",
            {"initial_loss_scale": 64.0},
            r"initial_loss_scale is 64\.0, but nothing reads it: set model\.dtype to float16",
        ),
        (
            "bfloat16",
            {"loss_scale_growth_steps": 9},
            r"loss_scale_growth_steps is 9, but nothing reads it: set model\.dtype to float16",
        ),
        ("float16", {"initial_loss_scale": 0.0}, r"initial_loss_scale"),
    ],
)
def test_a_loss_scale_without_float16_and_muon_with_it_are_refused(
    dtype: str, trainer: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make_recipe(Path("m"), model={"dtype": dtype}, trainer=trainer)
    make_recipe(Path("m"), model={"dtype": "float16"}, trainer={"initial_loss_scale": 64.0})
