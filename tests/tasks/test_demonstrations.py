"""Rows that a stage learns: what is wrong with one ends the start with a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.chat_codec import make_chat_codec
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.records import Task
from asyncrl.tasks.demonstrations import train_demonstrations
from asyncrl.tasks.digests import template_digest, tokenizer_digest

CONTEXT = 80
VOCABULARY = 300
LONG = {"prompt": "2+3=", "response": "5" * CONTEXT}
SHORT = {"prompt": "2+3=", "response": "5"}


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return make_chat_codec(tmp_path_factory.mktemp("model"))


def read(
    folder: Path, codec: TextCodec, *rows: dict[str, Any], stage: str = "sft", **sections: Any
) -> list[Task]:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = {"train": str(folder / "rows.jsonl")} | sections.pop("data", {})
    recipe = make_recipe(folder, stage=stage, data=data, **sections)
    return train_demonstrations(recipe, codec, CONTEXT, VOCABULARY)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"prompt": "2+3=", "response": ""}, "rows.jsonl:2: \"response\" is '': there is nothing to learn."),
        ({"prompt": "2+3="}, 'rows.jsonl:2: "response" is null, expected text.'),
        (
            {"question": "2+3="},
            "rows.jsonl:2: the row has question, expected messages, or prompt and",
        ),
        ({"messages": "hello"}, 'rows.jsonl:2: "messages" is .*hello.*, expected a list of messages.'),
        ({"messages": [{"role": "user", "content": "a"}]}, "rows.jsonl:2: no message is the assistant's"),
        ({"messages": [{"role": "user"}]}, 'rows.jsonl:2: message 1 has no "content"'),
        (
            LONG,
            "rows.jsonl:2: the row has 85 tokens, model.context_tokens is 80. Raise it",
        ),
    ],
)
def test_a_row_that_cannot_be_learned_is_refused_with_its_place(
    tmp_path: Path, codec: TextCodec, row: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        read(tmp_path, codec, SHORT, row)


def test_long_rows_are_cut_or_left_out_where_the_recipe_says_so(
    tmp_path: Path, codec: TextCodec, caplog: pytest.LogCaptureFixture
) -> None:
    short, cut = read(tmp_path, codec, SHORT, LONG, sft={"too_long": "cut"})
    assert (short.reference.num_tokens(), cut.reference.num_tokens()) == (6, CONTEXT)
    assert [task.task_id for task in (short, cut)] == ["rows:1", "rows:2"]
    assert read(tmp_path, codec, SHORT, LONG, sft={"too_long": "leave_out"}) == [short]
    assert "data.train leaves out 1 of 2 rows: 1 too long (first" in caplog.text
    with pytest.raises(InputError, match="which holds no rows: 1 too long"):
        read(tmp_path, codec, LONG, sft={"too_long": "leave_out"})


def test_columns_and_a_filter_are_those_of_the_recipe(tmp_path: Path, codec: TextCodec) -> None:
    rows = ({"q": "2+3=", "a": {"long": "5"}, "level": n} for n in (1, 3))
    source = {"path": str(tmp_path / "rows.jsonl"), "columns": {"prompt": "q", "response": "a.long"}}
    (found,) = read(tmp_path, codec, *rows, data={"train": source, "filter": "level < 2"})
    assert found.prompt == "2+3="
    with pytest.raises(InputError, match='rows.jsonl:1: no "q" in the row, which has prompt, response.'):
        read(tmp_path, codec, SHORT, data={"train": source})


def digests_of(folder: Path, codec: TextCodec) -> dict[str, str]:
    """As `asyncrl select` writes them for the model in `folder`."""
    (folder / "tokenizer.json").write_text("{}")
    template = template_digest(make_recipe(folder), codec)
    return {"from_template": template, "from_tokenizer": tokenizer_digest(folder)}


def test_tokens_that_a_model_sampled_are_learned_as_they_are(tmp_path: Path, codec: TextCodec) -> None:
    # Not as the tokenizer would write the text, and with what a tool answered in between.
    own = digests_of(tmp_path, codec)
    tokens = {"prompt_tokens": [9, 8], "response_tokens": [1, 2, 3, 4]}
    row = {**SHORT, **own, **tokens, "response_sampled": [True, False, False, True]}
    (found,) = read(tmp_path, codec, row)
    sequence = found.reference.sequence("x")
    assert sequence.prompt_tokens == [9, 8] and sequence.sampled_tokens() == [1, 4]
    # Tokens of another template or tokenizer mean something else here: the text is rendered.
    for key in own:
        (found,) = read(tmp_path, codec, {**row, key: "another"})
        assert found.prompt == "2+3=" and found.reference.num_tokens() == 6
    with pytest.raises(InputError, match="the token id 300 is beyond the model's vocabulary of 300"):
        read(tmp_path, codec, {**row, "response_tokens": [1, 2, 3, 300]})
    with pytest.raises(
        InputError, match='"response_sampled" is .*, expected true or false for each of 4 tok'
    ):
        read(tmp_path, codec, {**row, "response_sampled": [True]})


def test_a_pair_may_bring_the_tokens_of_both_sides(tmp_path: Path, codec: TextCodec) -> None:
    tokens = {"prompt_tokens": [9, 8], "chosen_tokens": [1, 2], "rejected_tokens": [3]}
    sides = {"prompt": "2+3=", "chosen": "5", "rejected": "6"}
    row = {**sides, **digests_of(tmp_path, codec), **tokens, "chosen_sampled": [True, True]}
    (found,) = read(tmp_path, codec, row, stage="dpo")
    chosen, rejected = (line.sequence("x").response_tokens for line in found.reference.lines())
    assert (chosen, rejected) == ([1, 2], [3]) and found.reference.prompt_tokens == (9, 8)


def test_a_pair_has_one_prompt_and_two_responses_that_differ(tmp_path: Path, codec: TextCodec) -> None:
    asked = [{"role": "user", "content": "2+3?"}]
    sides = [[*asked, {"role": "assistant", "content": text}] for text in ("5", "6")]
    texts = {"prompt": asked, "chosen": "5", "rejected": "6"}
    found = read(tmp_path, codec, texts, {"chosen": sides[0], "rejected": sides[1]}, stage="dpo")
    assert found[0].reference == found[1].reference
    chosen, rejected = found[0].reference.lines()
    assert chosen.prompt_tokens == rejected.prompt_tokens and chosen != rejected
    for row, complaint in (
        ({**texts, "rejected": "5"}, "rows.jsonl:1: chosen and rejected are equal: neither is preferred."),
        ({**texts, "chosen": ""}, "rows.jsonl:1: \"chosen\" is '': there is nothing to learn."),
        ({"prompt": "a", "chosen": "b"}, 'rows.jsonl:1: "rejected" is null, expected text or a list'),
        (
            {"chosen": sides[0], "rejected": [{"role": "user", "content": "x"}, sides[1][1]]},
            "rows.jsonl:1: chosen and rejected answer different prompts",
        ),
    ):
        with pytest.raises(InputError, match=complaint):
            read(tmp_path, codec, row, stage="dpo")
