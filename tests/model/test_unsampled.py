import json
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import InputError
from asyncrl.model.unsampled import RESERVED, Unsampled, find_unsampled

WORDS = 10
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|vision_pad|>")


def write_folder(
    folder: Path,
    added: tuple[str, ...],
    *,
    vocab_size: int | None = None,
    config: dict[str, Any] | None = None,
    generation: dict[str, Any] | None = None,
    tokenizer: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    template: str = "",
) -> Path:
    """Words of ids 0 to 9, then the tokens `added`."""
    folder.mkdir(exist_ok=True)
    words = {f"w{i}": i for i in range(WORDS)}
    tokens = [{"id": WORDS + i, "content": name, "special": True} for i, name in enumerate(added)]
    files = {
        "config": {"vocab_size": vocab_size or WORDS + len(added)} | (config or {}),
        "generation_config": generation or {},
        "tokenizer": {"added_tokens": tokens, "model": {"type": "BPE", "vocab": words} | (model or {})},
        "tokenizer_config": {"chat_template": template} | (tokenizer or {}),
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_rows_past_the_tokenizer_and_holes_in_it_are_never_sampled(tmp_path: Path):
    folder = write_folder(tmp_path, QWEN, vocab_size=24, generation={"eos_token_id": [10, 12]})
    assert find_unsampled(folder) == Unsampled(tuple(range(17, 24)))
    content = json.loads((folder / "tokenizer.json").read_text())
    del content["model"]["vocab"]["w4"]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert find_unsampled(folder).ids == (4, *range(17, 24))


def test_a_unigram_model_lists_its_words_in_their_order(tmp_path: Path):
    folder = write_folder(tmp_path, ("<pad>",), vocab_size=12, tokenizer={"pad_token": "<pad>"})
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"] = {"vocab": [[f"w{i}", -1.0] for i in range(WORDS)], "unk_id": 0}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert find_unsampled(folder).ids == (10, 11)


@pytest.mark.parametrize("named", ["config", "generation", "tokenizer", "settings"])
def test_a_pad_that_ends_nothing_is_never_sampled_wherever_it_is_named(tmp_path: Path, named: str):
    name: Any = {"content": "<pad>", "lstrip": False} if named == "settings" else "<pad>"
    key = "tokenizer" if named == "settings" else named
    given: dict[str, Any] = {key: {"pad_token": name} if key == "tokenizer" else {"pad_token_id": 11}}
    found = find_unsampled(write_folder(tmp_path, ("<eos>", "<pad>"), **given))
    assert found.ids == (11,) and found.names == {11: "<pad>"}


@pytest.mark.parametrize(
    "given",
    [
        {"generation": {"eos_token_id": [12, 10]}},
        {"config": {"eos_token_id": 10}},
        {"tokenizer": {"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}},
        {"template": "{{ message }}<|endoftext|>"},
        {"model": {"unk_token": "<|endoftext|>"}},
    ],
)
def test_a_pad_that_ends_responses_or_stands_in_text_is_sampled(tmp_path: Path, given: dict[str, Any]):
    given = {"tokenizer": {"pad_token": "<|endoftext|>"}} | given
    assert find_unsampled(write_folder(tmp_path, QWEN, **given)).ids == ()


def test_a_pad_is_sampled_where_the_recipe_stops_at_it(tmp_path: Path):
    folder = write_folder(tmp_path, QWEN, tokenizer={"pad_token": "<|endoftext|>"})
    assert find_unsampled(folder).ids == (10,)
    assert find_unsampled(folder, ["<|endoftext|>"]).ids == ()


def test_the_unknown_token_is_masked_as_pad_where_text_falls_back_to_bytes(tmp_path: Path):
    model = {"unk_token": "<unk>", "byte_fallback": True}
    folder = write_folder(tmp_path, ("<unk>",), model=model, tokenizer={"pad_token": "<unk>"})
    assert find_unsampled(folder).ids == (10,)


def test_a_pad_token_id_of_an_ordinary_word_masks_nothing(tmp_path: Path):
    assert find_unsampled(write_folder(tmp_path, QWEN, config={"pad_token_id": 0})).ids == ()


def test_reserved_places_are_never_sampled_unless_the_chat_template_writes_one(tmp_path: Path):
    added = ("<|end|>", *(f"<|reserved_special_token_{i}|>" for i in range(5)))
    folder = write_folder(tmp_path, added, template="<|reserved_special_token_2|>{{ message }}")
    found = find_unsampled(folder)
    assert found.ids == (11, 12, 14, 15)
    (folder / "chat_template.jinja").write_text("<|reserved_special_token_4|>")
    assert find_unsampled(folder).ids == (11, 12, 14)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "<|reserved_special_token_7|>",
            "<unused0>",
            "[unused12]",
            "<|unused_4|>",
            "<extra_id_99>",
            "<|extra_0|>",
        ),
        *("[control_8]", "<|dummy_3|>", "<SPECIAL_20>", "<｜place▁holder▁no▁0｜>", "<|placeholder1|>"),
        *("<unused_token_7>", ">>UNUSED_12<<", "<reserved_106>", "<RESERVED_TOKEN_1>", "<filler_2>"),
    ],
)
def test_names_of_reserved_places(name: str):
    assert RESERVED.fullmatch(name)


@pytest.mark.parametrize(
    "name",
    [
        *QWEN,
        "<s>",
        "</s>",
        "[INST]",
        "<|python_tag|>",
        "<|eot_id|>",
        "<0x0A>",
        "<|file_sep|>",
        "<jupyter_output>",
    ]
    + ["<reponame>", "<start_of_turn>", "<|user|>", "<h1>", "<loc_1>", "<|step_1|>", "<image_2>", "reserved"],
)
def test_names_that_a_model_may_write(name: str):
    assert not RESERVED.fullmatch(name)


def test_without_a_tokenizer_everything_is_sampled(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"vocab_size": 9}')
    assert find_unsampled(tmp_path) == Unsampled() and find_unsampled(tmp_path / "none") == Unsampled()


def test_a_file_that_is_not_json_is_named(tmp_path: Path):
    folder = write_folder(tmp_path, QWEN)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="tokenizer.json is not JSON"):
        find_unsampled(folder)


@pytest.mark.parametrize(
    ("ids", "text"), [((), ""), ((2,), "2"), ((0, 1, 2, 9), "0-2,9"), ((2, *range(40, 50)), "2,40-49")]
)
def test_ids_as_text_and_back(ids: tuple[int, ...], text: str):
    assert str(Unsampled(ids)) == text and Unsampled.parse(text) == Unsampled(ids)


@pytest.mark.parametrize("text", ["<pad>", "1-", "-3", "2;4"])
def test_text_that_names_no_ids_is_refused(text: str):
    with pytest.raises(InputError, match="not a list of token ids"):
        Unsampled.parse(text)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Unsampled(), "none"),
        (Unsampled((2,), {2: "<pad>"}), "1 token: <pad> (id 2)"),
        (
            Unsampled((2, *range(151669, 151936)), {2: "<pad>"}),
            "268 tokens: <pad> (id 2), ids 151,669-151,935 that the tokenizer lacks",
        ),
        (
            Unsampled((*range(5), 9), {i: f"<unused{i}>" for i in range(5)}),
            "6 tokens: <unused0> (id 0), <unused1> (id 1), <unused2> (id 2), 2 more that are reserved, id 9 "
            "that the tokenizer lacks",
        ),
    ],
)
def test_they_are_described(found: Unsampled, words: str):
    assert found.describe() == words
