"""Answers and verdicts that are not asked for again, on a server that counts its requests."""

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import FakeEngine
from fakes.model_folder import write_tokenizer
from fakes.process_owner import FakeProcesses
from fakes.records import make_score, make_task

from asyncrl.evaluation.evaluator import Evaluator
from asyncrl.evaluation.kept_answers import KeptAnswers, canonical, source_digest, weights_digest
from asyncrl.journal.kept_answers import AnswerStore
from asyncrl.loops import Waits
from asyncrl.model.tokenizer import TextCodec
from asyncrl.records import SamplingParams, Score, Task, VerifierSpec
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.sglang.http import new_session
from asyncrl.tasks.verifier_cache import VerifierCache
from verifiers.registry import load_verifier

TASKS = [make_task(1), dataclasses.replace(make_task(2), prompt_tokens=(7, 8, 10))]


class Counting:
    """A grader that counts; `rewards` are its next verdicts, then all is right."""

    def __init__(self) -> None:
        self.graded: list[str] = []
        self.rewards: list[float | None] = []

    async def grade(self, task: Task, text: str, *, num_turns: int) -> Score:
        self.graded.append(task.task_id)
        return make_score(self.rewards.pop(0) if self.rewards else 1.0)


class Asking:
    """An evaluator with its server, and what both were asked since the last look."""

    def __init__(self, engine: FakeEngine, evaluator: Evaluator, grader: Counting) -> None:
        self.engine, self.evaluator, self.grader = engine, evaluator, grader

    async def ask(
        self, num_samples: int, *, tasks: Sequence[Task] = TASKS, is_greedy: bool = False, **changes: Any
    ) -> list[list[float | None]]:
        """Correctness of the samples of each task."""
        evaluator = dataclasses.replace(self.evaluator, **changes)
        groups = await evaluator.answer(tasks, num_samples=num_samples, is_greedy=is_greedy)
        return [[answer.score.correctness for answer in group] for group in groups]

    def taken(self) -> tuple[int, int]:
        """(requests to the server, verdicts) since the last call."""
        found = sum(len(body["rid"]) for body in self.engine.bodies), len(self.grader.graded)
        self.engine.bodies.clear()
        self.grader.graded.clear()
        return found


@contextlib.asynccontextmanager
async def asking(folder: Path, **changes: Any) -> AsyncIterator[Asking]:
    codec, grader, engine = TextCodec(write_tokenizer(folder / "model")), Counting(), FakeEngine()
    with AnswerStore(folder / "answers.sqlite") as store:
        async with engine, new_session() as session:
            engine.version, waits = "0", Waits()
            settings = FleetSettings(max_running_requests=32)
            fleet = Fleet([engine.url], settings, session=session, waits=waits, processes=FakeProcesses())
            fleet.members.serve_fixed(0)
            sampling = SamplingParams(1.0, 8, codec.stop_token_ids)
            kept = KeptAnswers(store, "weights", {}, VerifierCache(folder), {})
            parts = (fleet, waits, grader, codec, sampling, 5000, "run", itertools.count())
            yield Asking(engine, Evaluator(*parts, kept=dataclasses.replace(kept, **changes)), grader)  # type: ignore[arg-type]
            await fleet.members.close()


async def test_a_second_call_asks_only_for_the_samples_that_are_missing(tmp_path: Path) -> None:
    async with asking(tmp_path) as first:
        await first.ask(3)
        assert first.taken() == (6, 6)
    async with asking(tmp_path) as second:
        assert await second.ask(3) == [[1.0] * 3] * 2
        assert second.taken() == (0, 0)
        await second.ask(8)
        assert second.taken() == (10, 10)
        assert second.evaluator.kept is not None and second.evaluator.kept.take_num_found() == 6 + 6
        await second.ask(2)
        assert second.taken() == (0, 0)


async def test_most_likely_answers_and_samples_are_kept_apart(tmp_path: Path) -> None:
    async with asking(tmp_path) as found:
        await found.ask(1)
        found.taken()
        await found.ask(1, is_greedy=True)
        assert found.taken() == (2, 2)
        hot = dataclasses.replace(found.evaluator.sampling, temperature=0.5, top_p=0.9)
        await found.ask(1, is_greedy=True, sampling=hot)
        # The likeliest token is the same at every temperature; samples are not.
        assert found.taken() == (0, 0)
        await found.ask(1, sampling=hot)
        assert found.taken() == (2, 2)


@pytest.mark.parametrize(
    ("settings", "is_greedy"),
    [
        ({"max_new_tokens": 7}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"top_k": 5}, False),
        ({"stop_token_ids": (1, 12)}, False),
    ],
)
async def test_another_way_to_sample_asks_again(
    tmp_path: Path, settings: dict[str, Any], is_greedy: bool
) -> None:
    async with asking(tmp_path) as found:
        await found.ask(1, is_greedy=is_greedy)
        found.taken()
        sampling = dataclasses.replace(found.evaluator.sampling, **settings)
        await found.ask(1, is_greedy=is_greedy, sampling=sampling)
        assert found.taken() == (2, 2)


async def test_other_weights_and_other_servers_ask_again(tmp_path: Path) -> None:
    async with asking(tmp_path) as found:
        await found.ask(1)
    for changes in ({"model": "others"}, {"servers": {"dtype": "float32"}}):
        async with asking(tmp_path, **changes) as found:
            await found.ask(1)
            assert found.taken() == (2, 2)


async def test_another_verifier_grades_the_kept_answers_and_asks_for_none(tmp_path: Path) -> None:
    async with asking(tmp_path) as found:
        await found.ask(2)
        found.taken()
        for verifier in (VerifierSpec("exact"), VerifierSpec("math", {"letters": "word"})):
            other = [dataclasses.replace(task, verifier=verifier) for task in TASKS]
            await found.ask(2, tasks=other)
            assert found.taken() == (0, 4)
        # Another gold is another question to the verifier.
        await found.ask(2, tasks=[dataclasses.replace(task, reference="9") for task in TASKS])
        assert found.taken() == (0, 4)
        await found.ask(2)
        assert found.taken() == (0, 0)
    async with asking(tmp_path, regrades=True) as found:
        await found.ask(2)
        assert found.taken() == (0, 4)


async def test_a_fault_is_no_verdict_that_is_kept_but_its_answer_is(tmp_path: Path) -> None:
    async with asking(tmp_path) as found:
        found.grader.rewards = [0.0, None]
        assert await found.ask(1) == [[0.0], [None]]
        found.taken()
        assert await found.ask(1) == [[0.0], [1.0]]
        assert found.taken() == (0, 1)


async def test_what_was_finished_is_kept_when_the_rest_is_cancelled(tmp_path: Path) -> None:
    async with asking(tmp_path) as found:
        running = asyncio.create_task(found.ask(40))
        # Requests go out in parts of 32, one at a time; the second part of three does not come back.
        while not found.grader.graded:
            await asyncio.sleep(0)
        found.engine.hold()
        while len(found.engine.bodies) < 2:
            await asyncio.sleep(0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        found.engine.release()
        found.taken()
    async with asking(tmp_path) as found:
        assert [len(group) for group in await found.ask(40)] == [40, 40]
        assert found.taken()[0] == 80 - 32


async def test_a_prompt_that_stands_twice_in_a_set_has_samples_of_its_own_each_time(tmp_path: Path) -> None:
    twins = [TASKS[0], dataclasses.replace(TASKS[0], task_id="train:9")]
    async with asking(tmp_path) as found:
        await found.ask(2, tasks=twins)
        assert found.taken()[0] == 4
        await found.ask(2, tasks=twins)
        assert found.taken() == (0, 0)


async def test_answers_that_are_forgotten_are_asked_for_again(tmp_path: Path) -> None:
    async with asking(tmp_path) as found:
        await found.ask(2)
        found.taken()
        kept = found.evaluator.kept
        assert kept is not None
        slots = found.evaluator.slots(TASKS, num_samples=2, is_greedy=False)
        assert kept.num_missing(slots) == 0
        kept.forget(slots)
        assert kept.num_missing(slots) == 4
        await found.ask(2)
        assert found.taken()[0] == 4


def test_weights_are_told_apart_by_every_byte(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(300_000))
    before = weights_digest(tmp_path)
    changed = bytearray(300_000)
    changed[150_000] = 1
    weights.write_bytes(changed)
    assert weights_digest(tmp_path) != before
    weights.write_bytes(bytes(300_000))
    assert weights_digest(tmp_path) == before


def test_references_are_the_same_text_in_every_process() -> None:
    reference = load_verifier("math").parse_reference([r"\frac{1}{2}", "x + 1"])
    assert canonical(reference) == canonical(load_verifier("math").parse_reference([r"\frac{1}{2}", "x + 1"]))
    assert canonical(frozenset("abc")) == ["set", '"a"', '"b"', '"c"']
    assert canonical(Fraction(1, 2)) != canonical(0.5)
    with pytest.raises(TypeError, match="object has no canonical form"):
        canonical({"a": object()})


def test_the_source_of_a_verifier_of_ones_own_is_its_file(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    text = "class Own:\n    def parse_reference(self, raw): ...\n    def verify(self, response, gold): ...\n"
    file.write_text(text)
    before = source_digest(load_verifier("./own.py:Own", folder=tmp_path))
    assert before == source_digest(load_verifier("./own.py:Own", folder=tmp_path))
    file.write_text(f"{text}# changed\n")
    assert before != source_digest(load_verifier("./own.py:Own", folder=tmp_path))
    assert source_digest(load_verifier("math")) == source_digest(load_verifier("exact"))
