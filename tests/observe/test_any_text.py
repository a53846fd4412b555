"""Journal and page hold whatever a model writes and a program says: surrogates, NUL, markup."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from fakes.completions import completion_on
from fakes.records import correctness_differs, make_queue
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console

from asyncrl.journal.reader import GroupFilter
from asyncrl.observe.metrics.mishaps import RecentEvents, write_post_mortem
from asyncrl.observe.terminal.live import LiveLine
from asyncrl.readers.page.app import export
from asyncrl.readers.page.groups import list_groups, read_group
from asyncrl.readers.page.runs import Run
from asyncrl.recipe import Algorithm, Verifying
from asyncrl.records import Finish, Segment, Task, VerifierSpec
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.grade import Grader
from asyncrl.run.metrics_file import MetricsWriter, read_metrics
from asyncrl.tasks.verifier_cache import VerifierCache
from verifiers.storable import MAX_EXTRACTED_CHARACTERS, MAX_WORDS_CHARACTERS, storable

ANYTHING = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.sampled_from(
        [
            "</script><script>alert(1)</script>",
            "<!--",
            "<b onmouseover=x>",
            "]]>",
            "{{ 7 * 7 }}",
            "{% raise %}",
            "\u2028\u2029\x85\x1b[2J\r",
            "\ud83d",
            "\ude00",
            "\x00" * 3,
            "&amp;&#0;",
            "x" * 300_000,
        ]
    ),
)
"""What a response, an exception's message or an extracted answer may be."""

ECHO = """
from verifiers.verdict import Outcome, Verdict


class Echo:
    def parse_reference(self, raw):
        return raw

    def verify(self, response, reference):
        return Verdict(Outcome.CORRECT, 1.0, extracted=response, detail=response, method=response)

    verify_fast = verify
"""


def grade(queue: ReplayQueue, folder: Path, responses: list[str]) -> None:
    """One group, taken by a step, whose trajectories are graded by the real pool."""
    queue.announce(0)
    texts = {(number,): text for number, text in enumerate(responses)}
    task = Task("train:1", storable(responses[0]), (0,), "", VerifierSpec("./echo.py:Echo"))
    group = queue.admit(task)
    for number, trajectory in enumerate(group.trajectories):
        queue.append(
            group, trajectory, [Segment(0, [number], [float("-inf") if number else -0.5])], Finish.STOP
        )

    async def run() -> None:
        algorithm = Algorithm()
        async with Grader(
            Verifying(timeout_seconds=60), VerifierCache(folder), max_fault_retries=0
        ) as grader:
            generator = SimpleNamespace(limit_tokens=lambda trajectory: 10, run=lambda group: nothing())
            codec = SimpleNamespace(decode=lambda tokens: texts[tuple(tokens)])
            completion = completion_on(queue, generator, grader, codec, algorithm, correctness_differs)
            await completion.run(group)

    asyncio.run(run())
    queue.take(0)
    queue.journal.barrier_blocking()


async def nothing() -> AsyncIterator[None]:
    for none in ():
        yield none


def graded_run(folder: Path, responses: list[str]) -> Path:
    """A run folder with one trained group, one trajectory per response."""
    (folder / "echo.py").write_text(ECHO)
    recipe = {
        "name": "any",
        "model": {"path": str(folder)},
        "data": {"train": str(folder / "none.jsonl")},
        "evaluation": {"every_steps": 0},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    queue = make_queue(folder, batch=1, samples=len(responses))
    grade(queue, folder, responses)
    queue.journal.close()
    return folder


@settings(max_examples=5, phases=[Phase.generate])
@given(responses=st.lists(ANYTHING, min_size=30, max_size=30))
def test_any_response_and_detail_reach_journal_and_page(
    tmp_path_factory: pytest.TempPathFactory, responses: list[str]
) -> None:
    folder = graded_run(tmp_path_factory.mktemp("run"), responses)
    run = Run("any", folder)
    (group,) = list_groups(run, GroupFilter())
    details = read_group(run, group["group_id"])
    assert details is not None
    found = [trajectory["extracted"] for trajectory in details["trajectories"]]
    assert found == [storable(text, limit=MAX_EXTRACTED_CHARACTERS) for text in responses]

    page = export([run], num_groups=10)
    page.encode("utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    embedded = json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    shown = embedded["/api/runs/any/groups/0"]["trajectories"][0]["detail"]
    assert shown == storable(responses[0], limit=MAX_WORDS_CHARACTERS)


@settings(max_examples=100)
@given(text=ANYTHING)
def test_any_warning_reaches_the_metrics_the_terminal_and_the_post_mortem(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.mktemp("run")
    with MetricsWriter(folder / "metrics.jsonl") as writer:
        writer.event("warning", text=text, step=0, count=1)
        writer.step({"step": 1, "outcomes": {"said": text}})
    metrics = read_metrics(folder / "metrics.jsonl")
    assert metrics.events[0]["text"] == metrics.steps[0]["outcomes_said"] == storable(text)

    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    LiveLine(10, console=Console(file=output, width=80)).note(text)
    output.flush()
    printed = output.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "\x1b" not in printed and "\x00" not in printed

    with RecentEvents() as events:
        events.add(text)
        path = write_post_mortem(folder, RuntimeError(text), state={"Waits": text}, events=events)
    assert "Waits" in path.read_text(encoding="utf-8")
