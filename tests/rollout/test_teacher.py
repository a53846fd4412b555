"""The teacher as a run asks it: which tokens, until when, and what its failures become."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fakes.process_owner import FakeProcesses
from fakes.teacher_server import FakeTeacher

from asyncrl.journal.packing import pack_logprobs
from asyncrl.loops import Waits
from asyncrl.model.column_bytes import TEACHER_LOGPROBS, TEACHER_TOP, unpack_top
from asyncrl.records import Columns, Finish, Observed, Segment, Trajectory
from asyncrl.rollout.teacher import Teacher, TeacherFailed
from asyncrl.serving.sglang.http import new_session


def trajectory(name: str = "00000000-00", tokens: tuple[int, ...] = (5, 6)) -> Trajectory:
    """Two turns with an observed token between them, and one after the last."""
    parts = [
        Segment(0, [*tokens[:1]], [-1.0]),
        Observed([30]),
        Segment(1, [*tokens[1:]], [-1.0]),
        Observed([31]),
    ]
    return Trajectory(name, (10, 11), parts, finish=Finish.STOP)


async def asked(
    server: FakeTeacher,
    use: Callable[[Teacher], Awaitable[None]],
    processes: FakeProcesses,
    *,
    max_refused: int = 3,
    clock: Callable[[], float] = lambda: 0.0,
    **options: Any,
) -> None:
    async with server, new_session() as session:
        teacher = Teacher(
            server.url,
            temperature=0.7,
            session=session,
            waits=Waits(),
            processes=processes,
            max_running=2,
            timeout_seconds=5.0,
            max_refused_in_a_row=max_refused,
            pause_seconds=0.0,
            clock=clock,
            **options,
        )
        await use(teacher)


def scored(logprobs: list[float]) -> Columns:
    return {TEACHER_LOGPROBS: pack_logprobs(logprobs)}


def test_each_sampled_token_is_scored_after_all_before_it_and_no_observed_one() -> None:
    server = FakeTeacher()
    whole = trajectory()
    whole.branches.append(Trajectory("00000000-00.1", (12,), [Segment(1, [7], [-1.0])]))
    whole.branches.append(Trajectory("00000000-00.2", (13,)))

    async def use(teacher: Teacher) -> None:
        assert await teacher.scores(whole) == {
            "00000000-00": scored([-0.05, -0.06]),
            "00000000-00.1": scored([-0.07]),
        }

    asyncio.run(asked(server, use, FakeProcesses()))
    first, second = server.bodies
    assert (first["input_ids"], first["logprob_start_len"]) == ([10, 11, 5, 30, 6], 1)
    assert (second["input_ids"], second["logprob_start_len"]) == ([12, 7], 0)
    assert first["sampling_params"] == {"max_new_tokens": 0, "temperature": 0.7}


def test_the_likeliest_tokens_at_the_sampled_ones_are_asked_for_and_those_never_sampled_have_no_share() -> (
    None
):
    server = FakeTeacher()

    async def use(teacher: Teacher) -> None:
        found = await teacher.scores(trajectory())
        assert found is not None
        ids, logprobs = unpack_top(found["00000000-00"][TEACHER_TOP], 2)
        # At the tokens 5 and 6: none at the prompt and none at the observed token 30 between them.
        assert ids.tolist() == [[5, 6, 7], [6, 7, 8]]
        assert logprobs[0].tolist() == pytest.approx([-1.0, -2.0, -math.inf])
        assert logprobs[1].tolist() == pytest.approx([-1.0, -math.inf, -3.0])

    asyncio.run(asked(server, use, FakeProcesses(), top_k=3, never={7}))
    assert [body["top_logprobs_num"] for body in server.bodies] == [3]


def test_a_server_that_tells_fewer_likeliest_tokens_has_failed() -> None:
    server = FakeTeacher()
    server.num_top = 2

    async def use(teacher: Teacher) -> None:
        with pytest.raises(TeacherFailed, match=r"gave \[2\] likeliest tokens at 3 places, expected 3 at 3"):
            await teacher.scores(trajectory())

    async def restart(url: str) -> str | None:
        return None

    asyncio.run(asked(server, use, FakeProcesses(on_restart=restart), top_k=3))


def test_a_server_that_fails_once_is_asked_again() -> None:
    server = FakeTeacher()
    server.failures = 1

    async def use(teacher: Teacher) -> None:
        assert await teacher.scores(trajectory()) == {"00000000-00": scored([-0.05, -0.06])}
        assert teacher.metrics()["teacher_scored_total"] == 1

    asyncio.run(asked(server, use, FakeProcesses()))
    assert len(server.bodies) == 2


def test_a_server_that_died_is_restarted_once_for_all_responses_that_wait() -> None:
    server = FakeTeacher()
    server.failures, server.is_ready = 2, False

    async def restart(url: str) -> str | None:
        server.is_ready = True
        return None

    processes = FakeProcesses(on_restart=restart)

    async def use(teacher: Teacher) -> None:
        names = ["00000000-00", "00000000-01"]
        found = await asyncio.gather(*(teacher.scores(trajectory(name)) for name in names))
        assert found == [{name: scored([-0.05, -0.06])} for name in names]

    asyncio.run(asked(server, use, processes))
    assert processes.done == [("restart", server.url)]


def test_the_run_ends_with_a_sentence_where_it_never_comes_back() -> None:
    server = FakeTeacher()
    server.failures, server.is_ready = 10**6, False

    async def restart(url: str) -> str | None:
        return None

    async def use(teacher: Teacher) -> None:
        with pytest.raises(TeacherFailed, match=r"failed 6 times in a row: .*it fails.* the run resumes"):
            await teacher.scores(trajectory())

    asyncio.run(asked(server, use, FakeProcesses(on_restart=restart)))


def test_a_response_that_is_refused_has_no_scores_and_many_in_a_row_end_the_run() -> None:
    server, now = FakeTeacher(), 0.0
    server.refused = 9

    async def use(teacher: Teacher) -> None:
        nonlocal now
        refused = trajectory(tokens=(9, 6))
        assert await teacher.scores(refused) is None
        assert await teacher.scores(refused) is None
        assert await teacher.scores(trajectory()) is not None
        for _ in range(2):
            assert await teacher.scores(refused) is None
        now = 100.0
        with pytest.raises(
            TeacherFailed, match=r"refused 3 responses in a row \(verifying.max_faults_in_a_row\)"
        ):
            await teacher.scores(refused)

    asyncio.run(asked(server, use, FakeProcesses(), clock=lambda: now))
