"""A language model as judge, by any server with OpenAI's chat completions.

A judge that is not reached, or whose reply has no verdict at its end, is a FAULT, never a wrong answer. The
response cannot leave its place in the question (`judge_template`), and only the end of the reply is read
(`judge_answer`). It waits rather than computes: `verify_async` runs in the caller's event loop.
"""

import asyncio
from collections.abc import Hashable
from typing import Annotated, Any, Unpack

from verifiers.golds import json_gold
from verifiers.judge_answer import Kind, answer_of
from verifiers.judge_template import NOTE, TEMPLATES, JudgeTemplate
from verifiers.model_server import ChatModel, ChatOptions
from verifiers.options import Bounds
from verifiers.storable import storable
from verifiers.task import Task
from verifiers.verdict import Outcome, Verdict, wrong

_DETAIL_CHARACTERS = 500


class JudgeVerifier:
    takes_any_gold = True
    takes_task = True

    def __init__(
        self,
        *,
        url: str,
        model: str,
        answer: Kind = "letter",
        template: str | None = None,
        letters: dict[str, Any] | None = None,
        key: str = "score",
        scale: tuple[float, ...] = (0.0, 10.0),
        threshold: Annotated[float, Bounds(0.001, 1)] = 0.5,
        max_characters: Annotated[int, Bounds(1, 4_000_000)] = 50_000,
        **chat: Unpack[ChatOptions],
    ) -> None:
        self._model = ChatModel(url, model, **chat)
        self.counters = self._model.counters
        self._answer = answer_of(
            answer, letters={"A": 1.0, "B": 0.0} if letters is None else letters, key=key, scale=scale
        )
        constants = {"low": f"{scale[0]:g}", "high": f"{scale[-1]:g}", "key": key}
        if template is None and letters is not None:
            raise ValueError(
                "Option 'letters' needs the option 'template', which tells the judge their meaning."
            )
        self._template = JudgeTemplate(
            TEMPLATES[answer] if template is None else template, constants=constants
        )
        self._threshold = threshold
        self._max_characters = max_characters

    @property
    def pool_timeout_seconds(self) -> float:
        """For a `weighted` verifier, whose parts run in a worker."""
        return self._model.server.longest_seconds

    def check_machine(self) -> None:
        """Raises VerifierUnavailable where the key is not in the environment."""
        self._model.server.check_key()

    def parse_reference(self, raw: object) -> object:
        """Any JSON; null where the judge needs no reference."""
        return json_gold(raw)

    def cache_key(self, response: str, reference: object, task: Task) -> Hashable | None:
        """The text that the judge reads; server, model and sampling are options, which the pool adds."""
        if len(response) > self._max_characters:
            return None
        return self._template.render(response, reference, task)

    def verify(self, response: str, reference: object, task: Task | None = None) -> Verdict:
        """The verdict; blocks. Not inside an event loop: use verify_async."""
        return asyncio.run(self._judge(response, reference, task, in_turn=False))

    async def verify_async(self, response: str, reference: object, task: Task | None = None) -> Verdict:
        """The verdict, awaited."""
        return await self._judge(response, reference, task, in_turn=True)

    async def _judge(self, response: str, reference: object, task: Task | None, *, in_turn: bool) -> Verdict:
        if len(response) > self._max_characters:
            return wrong(detail=f"the response has more than {self._max_characters} characters")
        text = self._template.render(response, reference, task or Task())
        return await self._model.verdict(NOTE, text, self._verdict, in_turn=in_turn)

    def _verdict(self, text: str) -> Verdict:
        """Raises ValueError for a reply without a verdict."""
        said, score = self._answer.read(text)
        return Verdict(
            Outcome.CORRECT if score >= self._threshold else Outcome.WRONG,
            score,
            extracted=storable(said),
            detail=storable(text[-_DETAIL_CHARACTERS:]),
            method="judge",
        )
