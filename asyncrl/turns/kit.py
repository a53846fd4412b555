"""Tools of a run, the way its model writes calls, and a codec that knows both."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe, Rollout
from asyncrl.system.plugins import FaultsInARow
from asyncrl.turns.calls import CallFormat, CallResult, call_format
from asyncrl.turns.conversation import Conversations, TurnLimits
from asyncrl.turns.dialogue import Dialogue
from asyncrl.turns.episode import Episodes
from asyncrl.turns.history import RenderedHistory
from asyncrl.turns.summaries import Summaries
from asyncrl.turns.tally import TurnFaults
from asyncrl.turns.tools.tool import Tool, load_tools


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
    limits = TurnLimits(turns.max_turns, turns.max_tool_seconds, turns.num_fault_retries)
    dialogue = Dialogue(kit.codec, max_observed_tokens=turns.max_observed_tokens)
    history = RenderedHistory(dialogue) if recipe.renders_history() else None
    faults = TurnFaults(FaultsInARow(turns.max_faults_in_a_row))
    summaries = None if turns.summarize is None else Summaries(dialogue, turns.summarize)
    return Conversations(
        *(kit.codec, dialogue, episodes, limits, kit.calls),
        faults=faults,
        history=history,
        summaries=summaries,
    )
