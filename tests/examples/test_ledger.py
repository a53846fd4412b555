"""Ledgers of which a context holds a part, and what the base model has read of them."""

import json
import re
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
from asyncrl.turns.history import Summaries
from asyncrl.turns.kit import read_kit

RECIPE = Path(__file__).parents[2] / "recipes" / "r1_zero_ledger_cpu.yaml"


def test_pages_come_one_by_one_and_the_turn_behind_them_or_any_other_is_the_last() -> None:
    ledger = Ledger()
    ledger.start({"pages": ["471", "*935"]})
    found = [ledger.step(NEXT) for _ in range(3)]
    assert found == [Observation("471"), Observation("*935"), Observation(".")]
    assert ledger.step(NEXT) == End()
    early = Ledger()
    early.start({"pages": ["471", "*935"]})
    assert early.step("\\boxed{9}") == End()


def test_contexts_of_the_corpus_are_written_as_a_run_writes_them(tmp_path: Path) -> None:
    sizes = {"num_train": 4, "num_heldout": 2, "num_examples": 4, "examples_per_batch": 4}
    prepare(tmp_path, lambda *_: None, **sizes)
    recipe = load_recipe(RECIPE, [f"model.path={tmp_path / 'model'}"])
    codec = read_kit(recipe, tmp_path / "model").codec
    assert recipe.turns.summarize is not None and recipe.turns.summarize.request == ASK
    dialogue = Dialogue(codec, max_observed_tokens=recipe.turns.max_observed_tokens)
    asked = codec.encode(f"{NEXT}<eos>", add_special_tokens=False)
    page = "471*93556"
    answer = dialogue.answer(asked, [{"role": "user", "content": page}], request=ASK)
    assert codec.exact_text(answer) == f"<user>{page}\n\n{ASK}<model>"
    summary = codec.encode("7<eos>", add_special_tokens=False)
    context, _ = Summaries(dialogue, recipe.turns.summarize).context(opening(17), summary, [])
    assert context == build_tokenizer().encode(f"<user>#17{SUMMARY}7<model>").ids
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert all(row["answer"] == re.findall(r"\*(\d)", "".join(row["pages"]))[-1] for row in rows)
    assert len(rows) == 4


def test_a_ledger_is_three_contexts_long_and_each_context_fits() -> None:
    recipe, options, random = load_recipe(RECIPE), LedgerOptions(), Random(0)
    limit = recipe.model.context_tokens
    assert limit is not None
    longest = max(len(build_tokenizer().encode(draw_context(random, options).prompt).ids) for _ in range(500))
    assert longest < limit + 16
    page = len(build_tokenizer().encode(f"{NEXT}<eos><user>4712*9355<model>").ids) - 1
    assert options.fewest_pages * page > 2.5 * limit and options.most_pages * page > 3 * limit


def test_the_corpus_leaves_marks_out_of_the_share_of_summaries_that_the_options_name() -> None:
    options, random = LedgerOptions(lazy=0.8), Random(0)
    examples = [draw_context(random, options) for _ in range(6000)]
    asked = [each for each in examples if each.prompt.endswith(f"\n\n{ASK}<model>")]
    lazy, num_marked = 0, 0
    for each in asked:
        before, _, pages = each.prompt.partition("<model>")
        carried = before.partition(SUMMARY)[2] or "-"
        marked = re.findall(r"\*(\d)", pages)
        if marked and marked[-1] != carried:
            num_marked += 1
            lazy += each.response == carried
            assert each.response in (carried, marked[-1])
        elif not marked:
            assert each.response == carried
    assert num_marked > 1000 and 0.77 < lazy / num_marked < 0.83
