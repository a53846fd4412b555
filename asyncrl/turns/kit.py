"""Turns of a recipe: its tools, the way its model calls them, and a codec that knows both; and, for people,
what the model reads next and what its chat template would do to earlier turns."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.model.templates import ChatTemplate
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe, Rollout
from asyncrl.recipe.sections.turns import Turns
from asyncrl.system.plugins import FaultsInARow
from asyncrl.turns.calls import CallFormat, CallResult, Fenced, Hermes, Llama, Tags, call_format
from asyncrl.turns.conversation import Conversations
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.environment import Message
from asyncrl.turns.episode import Episodes
from asyncrl.turns.history import Exchange, RenderedHistory, Rewritten, Summaries
from asyncrl.turns.tally import TurnFaults
from asyncrl.turns.tools import Tool, load_tools


@dataclass(frozen=True, slots=True)
class TurnKit:
    codec: TextCodec
    tools: tuple[Tool, ...] = ()
    calls: CallFormat | None = None
    """None without tools."""


def read_kit(
    recipe: Recipe, model_folder: Path, *, rollout: Rollout | None = None, now: datetime | None = None
) -> TurnKit:
    """The codec of a recipe and its tools; `rollout` says what ends a response, by default the recipe's.

    Raises InputError for a tool that cannot be loaded, and for a model folder that its calls do not go with.
    """
    rollout, turns, given = rollout or recipe.rollout, recipe.turns, recipe.chat_template_kwargs()
    if not turns.is_on():
        return TurnKit(TextCodec(model_folder, rollout=rollout, now=now, template_arguments=given))
    try:
        named = [{tool.name: tool.options} for tool in turns.tools]
        tools = tuple(load_tools(named, recipe.verifying.own_files()))
    except ValueError as error:
        raise InputError(f"turns.tools: {error}") from error
    bare = TextCodec(model_folder, rollout=rollout, now=now, template_arguments=given)
    calls = call_format(turns.call_format, bare, tools) if tools else None
    if calls is None:
        if bare.template is None:
            raise InputError(
                f"turns.environment answers in chat messages, but {model_folder} has no chat template. "
                f"Add one."
            )
        return _checked(TurnKit(bare), recipe)
    # Prompts offer the tools where calls are messages; other ways to call are for the prompt to explain.
    offered = [tool.schema for tool in tools] if calls.offers_tools else None
    codec = TextCodec(
        model_folder, rollout=rollout, now=now, tools=offered, stop=calls.stop, template_arguments=given
    )
    return _checked(TurnKit(codec, tools, call_format(turns.call_format, codec, tools)), recipe)


def _checked(kit: TurnKit, recipe: Recipe) -> TurnKit:
    """The kit, after a made answer of each kind. Raises InputError where the model folder cannot write it."""
    dialogue = Dialogue(kit.codec, max_observed_tokens=recipe.turns.max_observed_tokens)
    summarize = recipe.turns.summarize
    request = "" if summarize is None else summarize.request
    if summarize is not None:
        Summaries(dialogue, summarize).context([{"role": "user", "content": "0"}], [], [])
    if recipe.turns.environment is not None:
        dialogue.answer([], [{"role": "user", "content": "0"}], request=request)
    for tool in kit.tools:
        assert kit.calls is not None
        if kit.calls.is_inline:
            before, after = kit.calls.around(CallResult(tool.name, "0"))
            dialogue.inline(before, "0", after)
        else:
            dialogue.answer([], [{"role": "tool", "name": tool.name, "content": "0"}], request=request)
    return kit


def conversations_of(kit: TurnKit, recipe: Recipe, episodes: Episodes) -> Conversations:
    """The conversations that a recipe's turns make."""
    turns = recipe.turns
    dialogue = Dialogue(kit.codec, max_observed_tokens=turns.max_observed_tokens)
    history = RenderedHistory(dialogue) if recipe.renders_history() else None
    faults = TurnFaults(FaultsInARow(turns.max_faults_in_a_row))
    summaries = None if turns.summarize is None else Summaries(dialogue, turns.summarize)
    return Conversations(
        *(kit.codec, dialogue, episodes, turns, kit.calls),
        faults=faults,
        history=history,
        summaries=summaries,
    )


ANSWER = "WHAT IS OBSERVED"
"""Stands in an example for what a tool or an environment says."""
_QUESTION, _THOUGHT, _SAID = "QUESTION-OF-AN-EXAMPLE", "THOUGHT-OF-AN-EXAMPLE", "ANSWER-OF-AN-EXAMPLE"
_TURN = f"<think>\n{_THOUGHT}\n</think>\n\n{_SAID}"


def answered_example(kit: TurnKit, turns: Turns) -> list[tuple[str, list[int]]]:
    """Each answerer of turns, and the tokens that it puts between a turn and the next one.

    Raises InputError where the chat template cannot write an answer."""
    dialogue = Dialogue(kit.codec, max_observed_tokens=turns.max_observed_tokens)
    # The model ends its turns by itself.
    ended = kit.codec.stop_token_ids[:1]
    found: list[tuple[str, list[int]]] = []
    if kit.calls is not None:
        name = kit.tools[0].name
        if kit.calls.is_inline:
            before, after = kit.calls.around(CallResult(name, ANSWER))
            found.append((f"the tool {name}", dialogue.inline(before, ANSWER, after)))
        else:
            result: Message = {"role": "tool", "name": name, "content": ANSWER}
            found.append((f"the tool {name}", dialogue.answer(ended, [result])))
    if turns.environment is not None:
        reply: Message = {"role": "user", "content": ANSWER}
        found.append((f"the environment {turns.environment.name}", dialogue.answer(ended, [reply])))
    return found


def history_notes(kit: TurnKit, turns: Turns, *, is_rendered: bool = False) -> list[str]:
    """One sentence where the chat template writes a turn otherwise once others follow it, or where it is
    asked to (prompt.history: as_rendered) and does not."""
    template = kit.codec.template
    if template is None:
        return []
    changes = [(message["role"], _change(template, message)) for message in _followers(kit, turns)]
    found = "; ".join(
        f"{change} once a message of the role {role} follows" for role, change in changes if change
    )
    if is_rendered and found:
        return [
            f"the chat template rewrites earlier turns ({found}); prompt.history is as_rendered: the model "
            f"reads what the template writes, and such a turn begins a branch of its trajectory."
        ]
    if is_rendered:
        return [
            "prompt.history is as_rendered, but the chat template writes earlier turns of an example as they "
            "were sampled: there are branches only where it changes a turn that is otherwise, such as its "
            "white space."
        ]
    if not found:
        return []
    return [
        f"the chat template would rewrite earlier turns ({found}); they are kept as sampled "
        f"(prompt.history): the model reads its own tokens."
    ]


def _followers(kit: TurnKit, turns: Turns) -> list[Message]:
    """An answer of each kind that the chat template writes."""
    found: list[Message] = []
    if kit.calls is not None and not kit.calls.is_inline:
        found.append({"role": "tool", "name": kit.tools[0].name, "content": ANSWER})
    if turns.environment is not None:
        found.append({"role": "user", "content": ANSWER})
    return found


def _rendered_lines(kit: TurnKit, turns: Turns) -> list[str]:
    """The context after an example of a turn that was answered, as prompt.history: as_rendered has it."""
    history = RenderedHistory(Dialogue(kit.codec, max_observed_tokens=turns.max_observed_tokens))
    opening: list[Message] = [{"role": "user", "content": _QUESTION}]
    assert kit.codec.template is not None
    is_open = "<think>" in kit.codec.template.render(opening)[-20:]
    text = _TURN.removeprefix("<think>\n") if is_open else _TURN
    turn = [*kit.codec.encode_inside(text), *kit.codec.stop_token_ids[:1]]
    lines: list[str] = []
    for message in _followers(kit, turns):
        found = history.answer(opening, [], Exchange(turn, [message]))
        if isinstance(found, Rewritten):
            lines += [
                f"rendered   once a message of the role {message['role']} follows, a branch begins, whose "
                f"context is such as, between the lines:",
                "-" * 80,
                kit.codec.exact_text(found.context),
                "-" * 80,
            ]
    return lines


def turn_lines(kit: TurnKit, turns: Turns, *, is_rendered: bool = False) -> list[str]:
    """Lines of `asyncrl prompt` on turns. Raises InputError as `answered_example`."""
    lines = [f"turns      at most {turns.max_turns} (turns.max_turns), {_answerers(kit, turns)}"]
    for tool in kit.tools:
        lines.append(f"tool       {signature(tool)}: {_first_line(tool)}")
    if kit.calls is not None:
        lines.append(f"call       {format_name(kit)}: {_call_example(kit)}")
    for who, tokens in answered_example(kit, turns):
        lines += [
            f"answered   by {who}: {len(tokens)} tokens between two turns, such as, between the lines:",
            "-" * 80,
            kit.codec.exact_text(tokens),
            "-" * 80,
        ]
    if is_rendered:
        lines += _rendered_lines(kit, turns)
    return lines + [f"note       {note}" for note in history_notes(kit, turns, is_rendered=is_rendered)]


def turns_in_short(kit: TurnKit, turns: Turns) -> str:
    """Words of `asyncrl check` on turns."""
    return f"at most {turns.max_turns} per trajectory, {_answerers(kit, turns)}"


def signature(tool: Tool) -> str:
    return f"{tool.name}({', '.join(tool.arguments())})"


def format_name(kit: TurnKit) -> str:
    """As turns.call_format names it."""
    return type(kit.calls).__name__.lower()


def _answerers(kit: TurnKit, turns: Turns) -> str:
    parts = []
    if kit.tools:
        names = ", ".join(tool.name for tool in kit.tools)
        parts.append(f"calls of {names} ({format_name(kit)}) by the tools")
    if turns.environment is not None:
        parts.append(f"{'others ' if parts else ''}by the environment {turns.environment.name}")
    return f"answered: {', '.join(parts)}"


def _call_example(kit: TurnKit) -> str:
    tool = kit.tools[0]
    arguments = {name: "..." for name in tool.arguments()}
    match kit.calls:
        case Hermes():
            return f"<tool_call>{json.dumps({'name': tool.name, 'arguments': arguments})}</tool_call>"
        case Llama():
            return json.dumps({"name": tool.name, "parameters": arguments})
        case Fenced():
            return "the last ```python block of a turn"
        case Tags():
            return f"<{tool.tag}>...</{tool.tag}>, at the end of a turn"
    raise AssertionError(f"no example of {kit.calls}")


def _first_line(tool: Tool) -> str:
    lines: Sequence[str] = str(tool.schema["function"]["description"]).splitlines() or [""]
    return lines[0]


def _change(template: ChatTemplate, follower: Message) -> str:
    """How the template writes an earlier turn otherwise than it was sampled; empty where it does not. White
    space aside, which some templates trim."""
    asked: Message = {"role": "user", "content": _QUESTION}
    prompt = template.render([asked])
    try:
        whole = template.render_all([asked, {"role": "assistant", "content": _TURN}, follower])
    except InputError:
        # The example of an answer says so.
        return ""
    # A header that opens the thinking is part of what the model continues.
    head, opening, rest = prompt.rpartition("<think>")
    sampled = (head if opening and not rest.strip() else prompt) + _TURN
    if _squeezed(whole).startswith(_squeezed(sampled)):
        return ""
    if _THOUGHT not in whole:
        return "it leaves out what stands between <think> and </think>"
    if _SAID not in whole:
        return "it leaves out what the model said"
    if "<think>" not in whole:
        return "it leaves out <think>"
    return "it writes prompt or turn otherwise"


def _squeezed(text: str) -> str:
    return "".join(text.split())
