"""Evaluations whose samples agents make: coroutines of the test, on an engine that answers by the text."""

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from fakes.agents import CONTEXT, Agent, CoroutinePrograms, rest_of_turn
from fakes.chat_codec import make_chat_codec
from fakes.engine import FakeEngine
from fakes.fleets import fleet_on
from fakes.records import make_score

from asyncrl.evaluation.evaluator import EvaluatedAgents, Evaluator
from asyncrl.loops import Waits
from asyncrl.recipe import Agent as Section
from asyncrl.records import SamplingParams, Score, Task
from asyncrl.rollout.agents.kit import AgentKit
from asyncrl.rollout.agents.process import Programs
from asyncrl.serving.sglang.http import new_session


class TextGrader:
    """Right is a text that ends in "42."; keeps what it was given."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.told: list[Any] = []

    async def grade(self, task: Task, text: str, told: Any = None, *, num_turns: int | None = None) -> Score:
        self.texts.append(text)
        self.told.append((None if told is None else told(), num_turns))
        return make_score(1.0 if text.endswith("42.") else 0.0)


@dataclass
class Evaluated:
    """An evaluator, and all around it."""

    evaluator: Evaluator
    engine: FakeEngine
    programs: Programs
    grader: TextGrader
    graded: list[int]


@asynccontextmanager
async def evaluator_on(
    folder: Path,
    agent: Agent | Programs,
    answer: Callable[[str], str],
    *,
    max_new_tokens: int = 500,
    **section: Any,
) -> AsyncIterator[Evaluated]:
    """`agent` is a coroutine, or starts programs; `answer` gives the turn that follows a text."""
    codec = make_chat_codec(folder / "codec")
    async with (
        FakeEngine(num_tokens=10_000) as engine,
        new_session() as session,
        aiohttp.ClientSession() as http,
    ):
        engine.version, engine.answers = "0", lambda prefix: rest_of_turn(codec, prefix, answer)
        waits = Waits()
        fleet = fleet_on(engine, session, waits)
        programs = CoroutinePrograms(agent, http) if callable(agent) else agent
        kit = AgentKit(programs, Section(command=["unused"], **section), "auto", "tiny")
        grader, graded = TextGrader(), list[int]()
        evaluator = Evaluator(
            *(fleet, waits, grader, codec),  # type: ignore[arg-type]
            SamplingParams(0.7, max_new_tokens, codec.stop_token_ids),
            CONTEXT,
            "run",
            itertools.count(),
            on_graded=graded.append,
            agents=EvaluatedAgents(kit),
        )
        yield Evaluated(evaluator, engine, programs, grader, graded)
