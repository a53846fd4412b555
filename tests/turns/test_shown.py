"""Turns of a recipe as `check` and `prompt` tell them, for the chat templates of many families."""

from pathlib import Path

import pytest
from turns.test_dialogue import FAMILIES, make_codec

from asyncrl.errors import InputError
from asyncrl.recipe.sections.turns import Turns
from asyncrl.turns.calls import call_format
from asyncrl.turns.kit import ANSWER, TurnKit, answered_example, history_notes, turn_lines
from asyncrl.turns.tools import load_tools

GAME = Turns(environment="./game.py:Game")


def kit_of(folder: Path, family: str, turns: Turns) -> TurnKit:
    codec = make_codec(folder, family)
    tools = tuple(load_tools([{tool.name: tool.options} for tool in turns.tools], None))
    return TurnKit(codec, tools, call_format(turns.call_format, codec, tools) if tools else None)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_template_that_drops_the_thinking_of_earlier_turns_is_named(family: str, tmp_path: Path) -> None:
    notes = history_notes(kit_of(tmp_path, family, GAME), GAME)
    if family in ("qwen3", "deepseek_r1", "glm4_5"):
        (note,) = notes
        assert "would rewrite earlier turns (it leaves out what stands between <think> and </think>" in note
        assert "role user follows); they are kept as sampled" in note
    elif family == "gpt_oss":
        (note,) = notes
        assert "would rewrite earlier turns (it writes prompt or turn otherwise once" in note
    else:
        assert notes == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_example_of_an_answer_holds_it_and_the_header_of_the_next_turn(
    family: str, tmp_path: Path
) -> None:
    kit = kit_of(tmp_path, family, GAME)
    ((who, tokens),) = answered_example(kit, GAME)
    text = kit.codec.exact_text(tokens)
    assert who == "the environment ./game.py:Game" and ANSWER in text
    # The turn ended itself: its end token is not written again.
    assert tokens[0] not in kit.codec.stop_token_ids


def test_tools_their_calls_and_their_results_are_shown(tmp_path: Path) -> None:
    turns = Turns(tools=["calculator"], call_format="tags", max_turns=3)
    lines = turn_lines(kit_of(tmp_path, "smollm2", turns), turns)
    assert lines == [
        "turns      at most 3 (turns.max_turns), answered: calls of calculator (tags) by the tools",
        "tool       calculator(expression): Works out an arithmetic expression, such as 12 * (3 + 4).",
        "call       tags: <calculator>...</calculator>, at the end of a turn",
        lines[3],
        "-" * 80,
        f"<output>{ANSWER}</output>",
        "-" * 80,
    ]
    assert lines[3].startswith("answered   by the tool calculator: ")


def test_calls_as_messages_show_their_format(tmp_path: Path) -> None:
    turns = Turns(tools=["calculator"], call_format="hermes", environment="game")
    lines = turn_lines(kit_of(tmp_path, "qwen2_5", turns), turns)
    assert lines[0].endswith("calls of calculator (hermes) by the tools, others by the environment game")
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "..."}}</tool_call>'
    assert f"call       hermes: {call}" in lines
    assert sum(line.startswith("answered   by the ") for line in lines) == 2


def test_a_template_that_never_shows_a_result_is_refused(tmp_path: Path) -> None:
    turns = Turns(tools=["calculator"], call_format="hermes")
    with pytest.raises(InputError, match=r"role 'tool'.*call_format: tags"):
        answered_example(kit_of(tmp_path, "qwen3", turns), turns)


@pytest.mark.parametrize("family", ["qwen3", "deepseek_r1"])
def test_a_rendered_history_is_told_with_an_example_of_a_branch(family: str, tmp_path: Path) -> None:
    kit = kit_of(tmp_path, family, GAME)
    lines = turn_lines(kit, GAME, is_rendered=True)
    (place,) = (i for i, line in enumerate(lines) if line.startswith("rendered   once a message of the role"))
    context = lines[place + 2]
    assert "ANSWER-OF-AN-EXAMPLE" in context and "THOUGHT-OF-AN-EXAMPLE" not in context and ANSWER in context
    assert "prompt.history is as_rendered: the model reads what the template writes" in lines[-1]


def test_a_rendered_history_that_changes_nothing_is_told(tmp_path: Path) -> None:
    kit = kit_of(tmp_path, "smollm2", GAME)
    (note,) = history_notes(kit, GAME, is_rendered=True)
    assert (
        "as_rendered, but the chat template writes earlier turns of an example as they were sampled" in note
    )
    assert not any(line.startswith("rendered ") for line in turn_lines(kit, GAME, is_rendered=True))
