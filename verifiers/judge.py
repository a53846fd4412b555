"""A language model as judge, by any server with OpenAI's chat completions.

A judge that is not reached, or whose reply has no verdict at its end, is a FAULT, never a wrong answer. The
response cannot leave its place in the question (`judge_template`), and only the end of the reply is read
(`judge_answer`). It waits rather than computes: `verify_async` runs in the caller's event loop.
"""

import asyncio
import json
from collections.abc import Hashable, Mapping
from typing import Annotated, Any

from verifiers import strict_json
from verifiers.golds import json_gold
from verifiers.judge_answer import Kind, answer_of
from verifiers.judge_template import NOTE, TEMPLATES, JudgeTemplate
from verifiers.model_server import ModelServer
from verifiers.options import Bounds
from verifiers.posting import Poster, Unanswered, with_path
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
        temperature: Annotated[float, Bounds(0, 2)] = 0.0,
        max_tokens: Annotated[int, Bounds(1, 1_000_000)] = 1024,
        extra: dict[str, Any] | None = None,
        max_characters: Annotated[int, Bounds(1, 4_000_000)] = 50_000,
        timeout_seconds: Annotated[float, Bounds(0.01, 3600)] = 60.0,
        deadline_seconds: Annotated[float, Bounds(0.01, 36000)] = 300.0,
        attempts: Annotated[int, Bounds(1, 20)] = 4,
        backoff_seconds: Annotated[float, Bounds(0, 60)] = 1.0,
        concurrency: Annotated[int, Bounds(1, 4096)] = 32,
        key_variable: str = "",
    ) -> None:
        poster = Poster(
            with_path(url, "/chat/completions"),
            timeout_seconds=timeout_seconds,
            deadline_seconds=deadline_seconds,
            attempts=attempts,
            backoff_seconds=backoff_seconds,
            max_at_once=concurrency,
        )
        self._server = ModelServer(poster, key_variable)
        self.counters = self._server.counters
        self._answer = answer_of(
            answer, letters={"A": 1.0, "B": 0.0} if letters is None else letters, key=key, scale=scale
        )
        constants = {"low": f"{scale[0]:g}", "high": f"{scale[-1]:g}", "key": key}
        if template is None and letters is not None:
            raise ValueError(
                "Option 'letters' needs the option 'template', which tells the judge their meaning."
            )
        self._template = JudgeTemplate(TEMPLATES[answer] if template is None else template, **constants)
        self._threshold = threshold
        self._max_characters = max_characters
        sampling = {"model": model, "temperature": temperature, "max_tokens": max_tokens, **(extra or {})}
        # A server may know a setting by another name only: null leaves it out.
        self._body = {name: value for name, value in sampling.items() if value is not None}

    @property
    def pool_timeout_seconds(self) -> float:
        """For a `weighted` verifier, whose parts run in a worker."""
        return self._server.longest_seconds

    def check_machine(self) -> None:
        """Raises VerifierUnavailable where the key is not in the environment."""
        self._server.check_key()

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
        messages = [{"role": "system", "content": NOTE}, {"role": "user", "content": text}]
        body = json.dumps({**self._body, "messages": messages, "stream": False}).encode("ascii")
        return await self._server.verdict(body, self._verdict, in_turn=in_turn)

    def _verdict(self, body: bytes) -> Verdict:
        """Raises ValueError for what is no completion, and Unanswered for one without a verdict: the same
        question would be answered the same."""
        self.counters["requests"] += 1
        reply = strict_json.loads(body.decode("utf-8"))
        self._count(reply)
        text = _content(reply)
        try:
            said, score = self._answer.read(text)
        except ValueError as error:
            self.counters["unreadable"] += 1
            raise Unanswered(f"{self._server.url}: {error}; it ends with {text[-80:]!r}") from None
        is_right = score >= self._threshold
        return Verdict(
            Outcome.CORRECT if is_right else Outcome.WRONG,
            score,
            extracted=storable(said),
            detail=storable(text[-_DETAIL_CHARACTERS:]),
            method="judge",
        )

    def _count(self, reply: object) -> None:
        usage = reply.get("usage") if isinstance(reply, Mapping) else None
        for name in ("prompt_tokens", "completion_tokens"):
            number = usage.get(name) if isinstance(usage, Mapping) else None
            if isinstance(number, int) and number > 0:
                self.counters[name] += number


def _content(reply: object) -> str:
    """The text of a completion. Raises ValueError for another reply, and for one that was cut off."""
    try:
        (choice,) = reply["choices"]  # type: ignore[index]
        content, finish = choice["message"]["content"], choice.get("finish_reason")
    except (TypeError, KeyError, ValueError, AttributeError):
        raise ValueError("the reply is no chat completion with one choice") from None
    if finish == "length":
        raise Unanswered("the judge's reply was cut off: raise the option max_tokens")
    if not isinstance(content, str):
        raise ValueError("the judge's reply has no text")
    return content
