"""Prompts by template: what the field's runs asked their models, to the letter."""
# The published prompts read best unbroken.
# ruff: noqa: E501

import pytest

from asyncrl.data.prompts import TEMPLATES, PromptTemplate
from asyncrl.errors import InputError

EXAMPLES = [{"question": "1+1", "answer": "2"}]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "2+2"),
        ("few_shot", "Question: 1+1\nAnswer: 2\n\nQuestion: 2+2\nAnswer:"),
        (
            "qwen_math",
            "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
            "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "qwen_boxed",
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n2+2\nPlease reason step by "
            "step, and put your final answer within \\boxed{}.<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_a_named_template_makes_the_published_prompt(name: str, expected: str):
    assert PromptTemplate(name, examples=EXAMPLES if name == "few_shot" else ())("2+2") == expected


def test_r1_prefills_the_thought_and_shows_where_the_answer_goes():
    prompt = PromptTemplate("r1")("2+2")
    assert prompt.startswith("A conversation between User and Assistant.")
    assert prompt.endswith("<answer> answer here </answer>.\nUser: 2+2\nAssistant: <think>")
    assert "\\boxed{answer here} </answer>." in PromptTemplate("r1_boxed")("2+2")


def test_a_question_is_never_read_as_a_template():
    for name in TEMPLATES:
        assert "{{ 1 }}{% x %}" in PromptTemplate(name)("{{ 1 }}{% x %}")


def test_chat_puts_system_prompt_and_examples_in_front():
    template = PromptTemplate("chat", system="Be brief.", examples=EXAMPLES)
    expected = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2+2"},
    ]
    assert template("2+2") == expected
    assert template([{"role": "user", "content": "2+2"}]) == expected
    with pytest.raises(InputError, match="its own system message"):
        template([{"role": "system", "content": "x"}, {"role": "user", "content": "2+2"}])


def test_a_suffix_stands_behind_the_question_of_any_template():
    assert PromptTemplate("plain", suffix="\nBox it.")("2+2") == "2+2\nBox it."
    assert "2+2 {{ 1 }}<|im_end|>" in PromptTemplate("qwen_math", suffix=" {{ 1 }}")("2+2")
    chat = PromptTemplate("chat", suffix="\nBox it.", examples=EXAMPLES)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "2+2"}]
    asked = chat(messages)
    assert asked[-1] == {"role": "user", "content": "2+2\nBox it."} and messages[-1]["content"] == "2+2"
    assert [message["content"] for message in asked].count("2+2\nBox it.") == 1
    with pytest.raises(InputError, match=r"prompt\.suffix goes behind the question, .*one of assistant"):
        chat([*messages, {"role": "assistant", "content": "<think>"}])


def test_jinja_of_ones_own_sees_question_system_and_examples():
    template = PromptTemplate(
        "{{ system }}|{% for e in examples %}{{ e.question }}={{ e.answer }};{% endfor %}{{ question }}\n",
        system="S",
        examples=EXAMPLES,
    )
    assert template("2+2") == "S|1+1=2;2+2\n"
    assert template([{"role": "user", "content": "2+2"}]) == "S|1+1=2;2+2\n"


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("r2", 'prompt.template is "r2", expected chat, plain, few_shot, r1'),
        ("{{ question", "cannot be read as jinja"),
        ("{{ answer }}", "cannot be rendered: 'answer' is undefined"),
        ("{{ question.__class__.__mro__ }}", "cannot be rendered"),
        ("{{ 'always this' }}", "never writes {{ question }}"),
    ],
)
def test_a_template_that_cannot_work_is_refused(template: str, sentence: str):
    with pytest.raises(InputError) as refused:
        PromptTemplate(template)
    assert sentence in str(refused.value)


def test_a_text_template_takes_one_question():
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(InputError, match="the row has messages of user, assistant"):
        PromptTemplate("r1")(messages)


def test_what_a_template_would_not_use_is_refused():
    with pytest.raises(InputError, match=r"prompt\.examples is set, but prompt\.template 'r1'"):
        PromptTemplate("r1", examples=EXAMPLES)
    with pytest.raises(InputError, match=r"prompt\.system is set, but prompt\.template 'plain'"):
        PromptTemplate("plain", system="Be brief.")
