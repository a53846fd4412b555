"""Ledgers of which a context holds a part, and what the base model has read of them."""

import json
from pathlib import Path
from random import Random

from asyncrl.examples.ledger import (
    ASK,
    NEXT,
    SUMMARY,
    Ledger,
    LedgerOptions,
    build_tokenizer,
    draw_context,
    opening,
    prepare,
)
from asyncrl.recipe.file import load_recipe
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.environment import End, Observation
from asyncrl.turns.kit import read_kit
from asyncrl.turns.summaries import Summaries

RECIPE = Path(__file__).parents[2] / "recipes" / "r1_zero_ledger_cpu.yaml"


def test_pages_come_one_by_one_and_the_turn_behind_them_or_any_other_is_the_last() -> None:
    ledger = Ledger()
    ledger.start({"pages": [7, 3]})
    assert [ledger.step(NEXT) for _ in range(3)] == [Observation("+7"), Observation("+3"), Observation(".")]
    assert ledger.step(NEXT) == End()
    early = Ledger()
    early.start({"pages": [7, 3]})
    assert early.step("\\boxed{10}") == End()


def test_contexts_of_the_corpus_are_written_as_a_run_writes_them(tmp_path: Path) -> None:
    sizes = {"num_train": 4, "num_heldout": 2, "num_examples": 4, "examples_per_batch": 4}
    prepare(tmp_path, lambda *_: None, **sizes)
    recipe = load_recipe(RECIPE, [f"model.path={tmp_path / 'model'}"])
    codec = read_kit(recipe, tmp_path / "model").codec
    assert recipe.turns.summarize is not None and recipe.turns.summarize.request == ASK
    dialogue = Dialogue(codec, max_observed_tokens=recipe.turns.max_observed_tokens)
    asked = codec.encode(f"{NEXT}<eos>", add_special_tokens=False)
    answer = dialogue.answer(asked, [{"role": "user", "content": "+7"}], request=ASK)
    assert codec.exact_text(answer) == f"<user>+7\n\n{ASK}<model>"
    summary = codec.encode("57<eos>", add_special_tokens=False)
    context, _ = Summaries(dialogue, recipe.turns.summarize).context(opening(17), summary, [])
    assert context == build_tokenizer().encode(f"<user>#17{SUMMARY}57<model>").ids
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert all(row["answer"] == str(sum(row["pages"])) for row in rows) and len(rows) == 4


def test_the_corpus_leaves_new_pages_out_of_the_share_of_summaries_that_the_options_name() -> None:
    options, random = LedgerOptions(lazy=0.6), Random(0)
    examples = [draw_context(random, options) for _ in range(4000)]
    summaries = [each for each in examples if each.response.isdigit()]
    assert all(each.prompt.endswith(f"\n\n{ASK}<model>") for each in summaries)
    carried = [each.prompt.partition("<model>")[0].partition(SUMMARY)[2] or "0" for each in summaries]
    lazy = sum(each.response == before for each, before in zip(summaries, carried, strict=True))
    assert 0.55 < lazy / len(summaries) < 0.65
    longest = max(len(build_tokenizer().encode(each.prompt).ids) for each in examples)
    assert longest < load_recipe(RECIPE).model.context_tokens + 8
