"""Tokenizer and chat template of a model folder, without transformers."""

import json
from pathlib import Path

import pytest
from fakes.model_folder import write_tokenizer
from tokenizers import Tokenizer, models
from tokenizers.normalizers import NFC, NFKC, Prepend, Replace, Sequence
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Rollout


def test_text_survives_tokens(tmp_path: Path) -> None:
    codec = TextCodec(write_tokenizer(tmp_path))
    tokens = codec.encode("12+3=<ab>{x}")
    assert codec.decode(tokens) == "12+3=<ab>{x}"


def test_the_final_stop_token_is_left_out_of_the_text_and_others_are_kept(tmp_path: Path) -> None:
    codec = TextCodec(write_tokenizer(tmp_path))
    one = codec.encode("1")[0]
    assert codec.decode([one, 1]) == "1"
    assert codec.decode([one, 1, one]) == "1<eos>1"


def test_the_text_holds_the_stop_string_and_the_stop_token_unless_the_recipe_leaves_them_out(
    tmp_path: Path,
) -> None:
    stop = {"stop": ["<a", "=="], "stop_tokens": ["}"]}
    shown = TextCodec(write_tokenizer(tmp_path), rollout=Rollout(**stop))
    hidden = TextCodec(tmp_path, rollout=Rollout(**stop, include_stop=False))
    brace = shown.encode("}")[0]
    assert shown.stop_token_ids == hidden.stop_token_ids == (1, brace)
    for written, without in [("12==", "12"), ("1=<a", "1="), ("12}", "12"), ("1}2", "1}2"), ("12", "12")]:
        tokens = shown.encode(written)
        assert (shown.decode(tokens), hidden.decode(tokens)) == (written, without)


def test_a_stop_token_that_the_tokenizer_lacks_is_refused_with_the_nearest(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(write_tokenizer(tmp_path) / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        InputError, match=r"'<\|imend\|>', which is not a token in .* Did you mean <\|im_end\|>"
    ):
        TextCodec(tmp_path, rollout=Rollout(stop_tokens=["<|imend|>"]))
    with pytest.raises(InputError, match=r"For text of several tokens, use rollout\.stop"):
        TextCodec(tmp_path, rollout=Rollout(stop_tokens=["Question"]))


@pytest.mark.parametrize(("ids", "expected"), [(1, (1,)), ([1, 5], (1, 5))])
def test_stop_tokens_come_from_the_generation_config(
    tmp_path: Path, ids: object, expected: tuple[int, ...]
) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    assert TextCodec(tmp_path).stop_token_ids == expected


def test_stop_tokens_fall_back_to_the_model_config(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert TextCodec(tmp_path).stop_token_ids == (9,)


def test_a_model_that_nothing_would_stop_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(InputError, match="eos_token_id"):
        TextCodec(tmp_path)


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_a_folder_without_a_readable_tokenizer_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=r"tokenizer"):
        TextCodec(tmp_path)


def test_a_template_cannot_reach_python(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InputError, match="chat template"):
        TextCodec(tmp_path).render_prompt([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("text", ["", "1+1=", "ﷺ½ ", "<|end|>a<|end|>b", "x" * 50, "語 語"])
@pytest.mark.parametrize("kind", ["bytes with a space first", "bytes", "NFKC", "spaces made visible"])
def test_no_text_has_more_tokens_than_its_bytes_say(tmp_path: Path, kind: str, text: str) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer(models.BPE({piece: n for n, piece in enumerate(sorted(ByteLevel.alphabet()))}, []))
    if kind == "bytes with a space first":
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
    else:
        shown = Sequence([Prepend("_"), Replace(" ", "___")])
        tokenizer.normalizer = {"bytes": NFC(), "NFKC": Sequence([NFKC()])}.get(kind, shown)
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|end|>", "<bos>"])
    tokenizer.post_processor = TemplateProcessing(
        "<bos> $A", None, [("<bos>", tokenizer.token_to_id("<bos>"))]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    codec = TextCodec(tmp_path)
    assert len(codec.encode(text)) <= codec.most_tokens(text)
    # NFKC writes ﷺ with 18 letters.
    assert codec.most_tokens("1" * 50) < (52 if kind == "bytes" else 150)


def test_many_texts_are_counted_as_they_are_encoded(tmp_path: Path) -> None:
    codec = TextCodec(write_tokenizer(tmp_path))
    texts = ["1+1=", "", "é" * 3, "2"]
    assert codec.count_tokens(texts, add_special_tokens=True) == [4, 0, 3, 1]
    with pytest.raises(InputError, match="no tokens for one of 2 texts"):
        codec.count_tokens(["1", "\ud800"], add_special_tokens=True)


def test_what_decides_about_a_prompt_has_a_digest_unless_the_time_does(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    plain = TextCodec(tmp_path).fingerprint
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    chat = TextCodec(tmp_path).fingerprint
    assert None not in (plain, chat) and plain != chat == TextCodec(tmp_path).fingerprint
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<bos>"}')
    assert TextCodec(tmp_path).fingerprint != chat
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%Y') }}")
    assert TextCodec(tmp_path).fingerprint is None


def test_a_text_prompt_that_opens_with_bos_gets_no_second_one(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(write_tokenizer(tmp_path) / "tokenizer.json"))
    tokenizer.add_special_tokens(["<bos>"])
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    codec = TextCodec(tmp_path)
    one, plus = codec.encode("1", add_special_tokens=False)[0], codec.encode("+", add_special_tokens=False)[0]
    assert codec.render_prompt("1+")[1] == (0, one, plus)
    assert codec.render_prompt("<bos>1+")[1] == (0, one, plus)
    # Not at the start: part of the text.
    assert codec.render_prompt("1<bos>+")[1] == (0, one, 0, plus)


def test_words_without_an_unknown_token_may_be_refused(tmp_path: Path) -> None:
    assert TextCodec(write_tokenizer(tmp_path / "unknown")).takes_any_text
    folder = write_tokenizer(tmp_path / "none")
    Tokenizer(models.WordLevel({"1": 3}, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    assert not TextCodec(folder).takes_any_text
