"""A reward model on an SGLang server (`--is-embedding`, POST /classify): its number, mapped into [0, 1].

A server that is not reached, or that gives no number, is a FAULT, never a wrong answer. The text that it
reads is rendered here, by the model's own chat template as the option `template` writes it. It waits rather
than computes: `verify_async` runs in the caller's event loop.
"""

import asyncio
import json
import math
from collections.abc import Hashable, Mapping
from typing import Annotated, Any, Literal, Unpack

from jinja2.exceptions import TemplateError

from verifiers import strict_json
from verifiers.judge_template import read_template, without_special_tokens
from verifiers.plugins import Bounds
from verifiers.servers import ModelServer, ServerOptions, answered, with_path
from verifiers.task import Message, Task
from verifiers.verdict import Outcome, Verdict, as_number, wrong

TEMPLATES = {
    "plain": "{{ question }}\n{{ response }}",
    "chatml": (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
        "{% endfor %}"
    ),
    "llama3": (
        "<|begin_of_text|>{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>"
        "\n\n{{ message.content }}<|eot_id|>{% endfor %}"
    ),
}


class RewardModelVerifier:
    takes_any_gold = True
    takes_task = True

    def __init__(
        self,
        *,
        url: str,
        template: str,
        model: str = "",
        mapping: Literal["sigmoid", "affine"] = "sigmoid",
        scale: Annotated[float, Bounds(-1e6, 1e6)] = 1.0,
        shift: Annotated[float, Bounds(-1e6, 1e6)] = 0.0,
        threshold: Annotated[float, Bounds(0.001, 1)] = 0.5,
        index: Annotated[int, Bounds(0, 1000)] = 0,
        max_characters: Annotated[int, Bounds(1, 4_000_000)] = 50_000,
        **server: Unpack[ServerOptions],
    ) -> None:
        server.setdefault("concurrency", 64)
        self._server = ModelServer(with_path(url, "/classify"), **server)
        self.counters = self._server.counters
        if template not in TEMPLATES and "{" not in template:
            raise ValueError(
                f"Option 'template' is {template!r}, expected {', '.join(TEMPLATES)}, or jinja over "
                f"messages, or over question and response."
            )
        self._template = read_template(TEMPLATES.get(template, template))
        probe = "response-of-a-row"
        if probe not in self._render(probe, Task()):
            raise ValueError("Option 'template' never writes the response: every one would be judged alike.")
        self._model = model
        self._mapping, self._scale, self._shift = mapping, scale, shift
        self._threshold = threshold
        self._index = index
        self._max_characters = max_characters

    @property
    def pool_timeout_seconds(self) -> float:
        """For a `weighted` verifier, whose parts run in a worker."""
        return self._server.longest_seconds

    def check_machine(self) -> None:
        """Raises VerifierUnavailable where the key is not in the environment."""
        self._server.check_key()

    def parse_reference(self, raw: object) -> object:
        """Nothing: the model judges without a reference."""
        return None

    def cache_key(self, response: str, reference: object, task: Task) -> Hashable | None:
        """The text that the model reads; server and mapping are options, which the pool adds."""
        return None if len(response) > self._max_characters else self._render(response, task)

    def verify(self, response: str, reference: object, task: Task | None = None) -> Verdict:
        """The verdict; blocks. Not inside an event loop: use verify_async."""
        return asyncio.run(self._judge(response, task, in_turn=False))

    async def verify_async(self, response: str, reference: object, task: Task | None = None) -> Verdict:
        """The verdict, awaited."""
        return await self._judge(response, task, in_turn=True)

    async def _judge(self, response: str, task: Task | None, *, in_turn: bool) -> Verdict:
        if len(response) > self._max_characters:
            return wrong(detail=f"the response has more than {self._max_characters} characters")
        text = self._render(response, task or Task())
        if not text:
            # A server that is sent no token may die of it: SGLang 0.5.23 does.
            return wrong(detail="the response is empty, and so is the text for the reward model")
        sent = {"text": text}
        body = json.dumps({**sent, "model": self._model} if self._model else sent).encode("ascii")
        return await answered(self._server.ask(body, self._verdict, in_turn=in_turn))

    def _render(self, response: str, task: Task) -> str:
        """Raises ValueError where the template fails."""
        messages = task.conversation()
        if not task.turns:
            messages.append({"role": "assistant", "content": response})
        try:
            return self._template.render(
                question=without_special_tokens(task.question()),
                response=without_special_tokens(response),
                messages=[_plain(message) for message in messages],
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"Option 'template' cannot be rendered: {error}") from error

    def _verdict(self, body: bytes) -> Verdict:
        """Raises ValueError for a reply without a number."""
        self.counters["requests"] += 1
        reply = strict_json.loads(body.decode("utf-8"))
        if isinstance(reply, list) and len(reply) == 1:
            reply = reply[0]
        values = reply.get("embedding") if isinstance(reply, Mapping) else None
        if not isinstance(values, list) or len(values) <= self._index:
            self.counters["unreadable"] += 1
            raise ValueError(f"the reply has no number {self._index} in its embedding")
        number = as_number(values[self._index], "the reward model's number", -math.inf, math.inf)
        meta = reply.get("meta_info")
        tokens = meta.get("prompt_tokens") if isinstance(meta, Mapping) else None
        self.counters["prompt_tokens"] += tokens if isinstance(tokens, int) else 0
        score = self._mapped(number)
        return Verdict(
            Outcome.CORRECT if score >= self._threshold else Outcome.WRONG,
            score,
            extracted=f"{number:.6g}",
            method="reward_model",
        )

    def _mapped(self, number: float) -> float:
        """The number in [0, 1]: x = scale * number + shift, then 1 / (1 + exp(-x)), or x cut to [0, 1]."""
        value = self._scale * number + self._shift
        if self._mapping == "affine":
            return min(1.0, max(0.0, value))
        # Each way only with exponents that do not overflow.
        return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


def _plain(message: Message) -> dict[str, Any]:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return {**message, "content": without_special_tokens(text)}
