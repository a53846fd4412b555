"""The task as an agent gets it: a file for a program, an object for a function."""

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.records import Task

TASK_VARIABLE = "ASYNCRL_TASK"
"""Names the file."""
VERDICT_VARIABLE = "ASYNCRL_VERDICT"
"""Names the file for a score, where the agent may give one."""
MOST_RETRIES = 2
"""Retries of a request without an answer, as many as of OpenAI's clients."""


class AgentRefused(Exception):
    """The endpoint refused a request; the message says why."""


@dataclass(frozen=True, slots=True)
class AgentTask:
    """One task, and the way to the model."""

    task_id: str
    prompt: str
    """The text that a model without an agent would continue."""
    messages: list[dict[str, Any]]
    """The prompt as chat messages."""
    base_url: str
    api_key: str
    row: dict[str, Any] = field(default_factory=dict)
    """The columns of agent.columns."""
    post: Callable[["AgentTask", dict[str, Any]], Awaitable[dict[str, Any]]] | None = None
    """Sends a body and gives the answer; None: a thread does."""

    @classmethod
    def read(cls) -> "AgentTask":
        """The one of this process."""
        content = json.loads(Path(os.environ[TASK_VARIABLE]).read_text())
        return cls(
            **content,
            base_url=os.environ["OPENAI_BASE_URL"],
            api_key=os.environ["OPENAI_API_KEY"],
        )

    async def chat(self, messages: Sequence[dict[str, Any]], **body: Any) -> dict[str, Any]:
        """The answer of /v1/chat/completions, such as OpenAI's clients get. Raises AgentRefused."""
        asked = {"messages": list(messages), "model": "model", **body}
        if self.post is not None:
            return await self.post(self, asked)
        return await asyncio.to_thread(self._post, asked)

    async def say(self, messages: Sequence[dict[str, Any]], **body: Any) -> dict[str, Any]:
        """The model's message, to be put behind `messages`. Raises AgentRefused."""
        answer = await self.chat(messages, **body)
        message: dict[str, Any] = answer["choices"][0]["message"]
        return message

    def url(self) -> str:
        """Takes a call."""
        return f"{self.base_url}/chat/completions"

    def headers(self, retry: int) -> dict[str, str]:
        """Those of a call that is sent for the `retry`-th time more."""
        return {
            "Authorization": f"Bearer {self.api_key}",
            "Content-Type": "application/json",
            "x-stainless-retry-count": str(retry),
        }

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        for retry in range(MOST_RETRIES + 1):
            request = urllib.request.Request(self.url(), json.dumps(body).encode(), self.headers(retry))
            try:
                with urllib.request.urlopen(request) as response:
                    found: dict[str, Any] = json.load(response)
                    return found
            except urllib.error.HTTPError as error:
                raise AgentRefused(f"{error.code}: {error.read().decode(errors='replace')}") from error
            except OSError:
                if retry == MOST_RETRIES:
                    raise
        raise AssertionError("unreachable")


def task_file(task: Task, columns: Sequence[str]) -> str:
    """The file's content: {"task_id", "prompt", "messages", "row"}."""
    messages = [dict(message) for message in task.messages]
    return json.dumps(
        {
            "task_id": task.task_id,
            "prompt": task.prompt,
            "messages": messages or [{"role": "user", "content": task.prompt}],
            "row": {name: task.row.get(name) for name in columns},
        },
        default=str,
    )
