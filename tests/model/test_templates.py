"""Chat templates render as transformers renders them: many families, written here in the style of each."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fakes.model_folder import write_tokenizer

from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec

FAMILIES = sorted((Path(__file__).parent / "chat_templates").glob("*.jinja"))
SYSTEM = {"role": "system", "content": "Answer in <answer> tags & be brief."}
USER = {"role": "user", "content": "  What is 2 + 3?\nThink first. "}
ASSISTANT = {"role": "assistant", "content": "<think>\n2 + 3\n</think>\n5"}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None}
CONVERSATIONS = {
    "one question": [USER],
    "a system message": [SYSTEM, USER],
    "three turns": [USER, ASSISTANT, {"role": "user", "content": 'And "3 + 4"?'}],
    "a prefill": [USER, {"role": "assistant", "content": "<think>\n"}],
    "a prefill of words": [SYSTEM, USER, {"role": "assistant", "content": "Let us see: 2 + "}],
    "an empty prefill": [USER, {"role": "assistant", "content": ""}],
    "a finished answer": [USER, ASSISTANT],
    "letters of many kinds": [{"role": "user", "content": "Größe 数 \u2028 🙂 <b>&amp;</b>"}],
}


def model_folder(folder: Path, template: Any, **config: Any) -> Path:
    """A folder that both sides read."""
    write_tokenizer(folder)
    written = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL, "chat_template": template, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    return folder


def by_transformers(folder: Path, messages: list[dict[str, Any]]) -> str:
    from transformers import PreTrainedTokenizerFast

    is_open = messages[-1]["role"] == "assistant"
    text: str = PreTrainedTokenizerFast.from_pretrained(folder).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=not is_open, continue_final_message=is_open
    )
    return text


def outcome(render: Any, *arguments: Any) -> str:
    """The text, or that it was refused."""
    try:
        return str(render(*arguments))
    except Exception as error:  # jinja's errors there, ours here
        assert not isinstance(error, AssertionError)
        return "refused"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda path: path.stem)
def test_a_family_renders_as_transformers_renders_it(tmp_path: Path, family: Path) -> None:
    folder = model_folder(tmp_path, family.read_text(encoding="utf-8"))
    codec = TextCodec(folder)
    accepted = 0
    for name, messages in CONVERSATIONS.items():
        theirs = outcome(by_transformers, folder, messages)
        ours = outcome(lambda messages: codec.render_prompt(messages)[0], messages)
        assert ours == theirs, name
        accepted += theirs != "refused"
    assert accepted >= 6


def test_a_prefill_stays_open_and_has_one_header(tmp_path: Path) -> None:
    (family,) = (path for path in FAMILIES if path.stem == "qwen2_5")
    codec = TextCodec(model_folder(tmp_path, family.read_text()))
    text, tokens = codec.render_prompt([USER, {"role": "assistant", "content": "<think>\n"}])
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert text.count("<|im_start|>assistant") == 1
    assert tokens == codec.encode(text, add_special_tokens=False)


CONSTRUCTS = {
    "break": "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.content }}"
    "{% endfor %}",
    "continue": "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.content }}"
    "{% endfor %}",
    "generation": "{% set a = 1 %}{% for m in messages %}{% generation %}{% set a = 2 %}{{ m.content }}"
    "{% endgeneration %}{{ a }}{% endfor %}",
    "the date": "{{ strftime_now('%Y-%m') }}{{ messages[0].content }}",
    "tojson": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2, sort_keys=true) }}"
    "{{ messages[0] | tojson(ensure_ascii=true, separators=(',', ':')) }}",
    "tools": "{{ tools is none }}{{ tools is defined }}{{ documents is none }}{{ messages[0].content }}",
    "a missing special token": "[{{ pad_token }}{{ pad_token is defined }}{{ cls_token }}]"
    "{{ messages[0].content }}",
    "add_bos_token is no token": "{{ add_bos_token is defined }}{{ messages[0].content }}",
    "white space": "  {% if true %}  \n  {{ messages[0].content }}\n  {% endif %}\n\n",
}


@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_what_templates_use_beyond_plain_jinja_is_there(tmp_path: Path, construct: str) -> None:
    folder = model_folder(tmp_path, CONSTRUCTS[construct], add_bos_token=True)
    for messages in ([USER], [SYSTEM, USER], CONVERSATIONS["letters of many kinds"]):
        theirs = by_transformers(folder, messages)
        assert TextCodec(folder).render_prompt(messages)[0] == theirs


def test_the_date_may_be_that_of_the_first_start_of_a_run(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "{{ strftime_now('%d %b %Y') }}")
    codec = TextCodec(folder, now=datetime(2024, 7, 26))
    assert codec.render_prompt([USER])[0] == "26 Jul 2024"


def test_the_default_of_several_named_templates_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ bos_token }}"}]
    folder = model_folder(tmp_path, named)
    assert TextCodec(folder).render_prompt([USER])[0] == by_transformers(folder, [USER]) == "d<s>"


def test_template_files_come_before_the_configuration(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "c")
    (folder / "chat_template.jinja").write_text("f")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("t")
    assert TextCodec(folder).render_prompt([USER])[0] == by_transformers(folder, [USER]) == "f"


def test_several_templates_without_a_default_are_refused_with_their_names(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, [{"name": "rag", "template": "r"}, {"name": "tool_use", "template": "t"}])
    with pytest.raises(InputError, match='rag, tool_use and none is called "default"'):
        TextCodec(folder)


def test_special_tokens_of_the_older_file_count_where_the_newer_lists_none(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "{{ bos_token }}{{ eos_token }}")
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<old>"}}))
    assert TextCodec(folder).render_prompt([USER])[0] == by_transformers(folder, [USER]) == "<old></s>"


def test_the_beginning_token_that_a_template_wrote_is_not_doubled(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    folder = model_folder(tmp_path, "{{ bos_token }}{{ messages[0].content }}", bos_token="<bos>")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<bos>"])
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    codec, theirs = TextCodec(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    message = [{"role": "user", "content": "12"}]
    chat = codec.render_prompt(message)[1]
    assert list(chat) == theirs.apply_chat_template(message, return_dict=False) and chat.count(0) == 1
    # Plain text has no template, so the tokenizer itself writes it.
    assert list(codec.render_prompt("12")[1]) == theirs("12").input_ids
    assert codec.render_prompt("12")[1].count(0) == 1


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% if %}", "chat template cannot be read"),
        ("{{ 'a' + messages[0].number }}", "does not accept these messages"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages[0]['content'] | frobnicate }}", "frobnicate"),
    ],
)
def test_a_template_that_fails_says_why(tmp_path: Path, template: str, said: str) -> None:
    folder = model_folder(tmp_path, template)
    with pytest.raises(InputError, match=said):
        TextCodec(folder).render_prompt([{"role": "user", "content": "x", "number": 3}])


def test_a_prefill_that_the_template_drops_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(InputError, match="where it ends cannot be found"):
        TextCodec(folder).render_prompt([USER, {"role": "assistant", "content": "<think>\n"}])


@pytest.mark.parametrize("is_thinking", [True, False])
def test_a_template_is_told_the_recipes_variables_as_transformers_tells_it(
    tmp_path: Path, is_thinking: bool
) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = model_folder(tmp_path, (FAMILIES[0].parent / "qwen3.jinja").read_text())
    codec = TextCodec(folder, template_arguments={"enable_thinking": is_thinking})
    theirs = PreTrainedTokenizerFast.from_pretrained(folder).apply_chat_template(
        [USER], tokenize=False, add_generation_prompt=True, enable_thinking=is_thinking
    )
    assert codec.render_prompt([USER])[0] == theirs
    assert theirs.endswith("</think>\n\n") is not is_thinking
    assert codec.template is not None
    assert codec.template.with_tools(None).render([USER]) == theirs
    assert codec.fingerprint != TextCodec(folder).fingerprint


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("enable_thinkng", "Did you mean enable_thinking?"),
        ("documents_of", "It reads enable_thinking."),
        ("messages", "which each prompt sets itself"),
        ("raise_exception", "which the model's chat template does not read"),
    ],
)
def test_a_variable_that_would_change_nothing_is_refused(tmp_path: Path, name: str, words: str) -> None:
    folder = model_folder(tmp_path, "{% if enable_thinking %}t{% endif %}{{ messages[0].content }}")
    with pytest.raises(InputError) as refused:
        TextCodec(folder, template_arguments={name: True})
    assert words in str(refused.value) and f"prompt.chat_template_kwargs sets {name}" in str(refused.value)


def test_variables_without_a_chat_template_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no chat template"):
        TextCodec(write_tokenizer(tmp_path), template_arguments={"enable_thinking": False})
