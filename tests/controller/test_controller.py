"""The controller between fake servers and a fake trainer: no torch, real wires, real journal.

Longer than other files: one set of fakes, one test for each thing that the controller promises.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.controllers import controller_on, make_recipe
from fakes.engine import STOP, FakeEngine
from fakes.episodes import OBSERVED, FakeEpisodes, conversations
from fakes.supervisor import FakeSupervisor
from fakes.trainer import FakeTrainer

from asyncrl.commands.servers import change_servers
from asyncrl.errors import AsyncrlError, InputError
from asyncrl.journal.evaluations import GREEDY, read_answers
from asyncrl.journal.packing import sequences_of
from asyncrl.journal.writer import JournalError
from asyncrl.launch.restarts import first_cause
from asyncrl.records import ScoredSequence
from asyncrl.replay.group import Group
from asyncrl.serving.publication import Publication
from asyncrl.turns.environment import End, Observation

LIMIT_SECONDS = 60.0


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        yield engine


async def test_a_run_trains_every_batch_once_on_verified_weights(engine: FakeEngine, tmp_path: Path) -> None:
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, notebook):
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        await controller.run(trainer.run)
        assert [batch.taken_version for batch in trainer.batches] == [0, 1, 2, 3]
        names = [s.sequence_id for batch in trainer.batches for s in batch.sequences]
        assert len(names) == len(set(names)) == 4 * 2 * 2
        for batch in trainer.batches:
            for sequence in batch.sequences:
                # Each token says which version made it; the last one is the stop token.
                made_by = [token - 10 for token in sequence.response_tokens[:-1]]
                assert made_by == list(sequence.token_versions[:-1])
                assert all(batch.taken_version - version <= 1 for version in sequence.token_versions)
        assert [row["step"] for row in notebook.steps] == [1, 2, 3, 4]
        assert [(row["when"], row["step"]) for row in notebook.evaluations] == [
            ("before", 0),
            ("during", 2),
            ("after", 4),
        ]
        table = controller.queue.conservation()
        assert table == {**table, "generated": table["trained"], "taken": 0, "queued": 0}
        assert table["trained"] == 4 * 2 * 2 * 5


RANKS = """
from verifiers.verdict import correct, wrong

class First:
    min_responses = 2
    def parse_reference(self, raw): return raw
    def verify_group(self, responses, reference):
        return [correct(detail=f"one of {len(responses)}"), *(wrong() for _ in responses[1:])]
"""


async def test_a_run_trains_what_a_verifier_of_groups_prefers(engine: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "v.py").write_text(RANKS)
    recipe = make_recipe(trainer={"num_steps": 2})
    parts = controller_on(tmp_path, recipe, [engine], verifier="./v.py:First")
    async with parts as (controller, _):
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        await controller.run(trainer.run)
        advantages = [[s.advantage for s in batch.sequences] for batch in trainer.batches]
        outcomes = dict(controller.grader.outcomes)
    assert [[a > 0 for a in batch] for batch in advantages] == [[True, False, True, False]] * 2
    # Two verdicts for each group, as many of one kind as of the other; some groups were not taken.
    assert outcomes["./v.py:First", "correct"] == outcomes["./v.py:First", "wrong"] >= 4


async def test_a_batch_that_takes_longer_than_the_answer_to_a_take_is_made_once_and_given(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def make_slowly(group: Group) -> list[ScoredSequence]:
        made.append(group.group_id)
        # As a group of a million tokens does.
        time.sleep(0.1)
        return sequences_of(group)

    monkeypatch.setattr("asyncrl.controller.trainer_wire.sequences_of", make_slowly)
    monkeypatch.setattr("asyncrl.controller.http_service.POLL_SECONDS", 0.05)
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, notebook):
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        await controller.run(trainer.run)
    assert [len(batch.sequences) for batch in trainer.batches] == [2 * 2] * 4
    assert len(made) == len(set(made)) == 4 * 2
    # What the verdicts say is not forgotten with the take that was not answered in time.
    assert all(row["correct_mean"] is not None for row in notebook.steps)


async def test_what_the_trainer_knew_of_tokens_is_journaled_once_per_step(
    engine: FakeEngine, tmp_path: Path
) -> None:
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, _):
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        await controller.run(trainer.run)
        await controller.queue.journal.barrier()
        rows = controller.queue.journal.read(
            "SELECT taken_version, trajectory_id FROM trained_tokens ORDER BY 1"
        )
        # The last step too, which the last take tells.
        assert rows == [(batch.taken_version, batch.sequences[0].sequence_id) for batch in trainer.batches]
        assert len(rows) == 4


async def test_the_trainer_is_told_what_evaluations_have_found(engine: FakeEngine, tmp_path: Path) -> None:
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, notebook):
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        await controller.run(trainer.run)
        found = {row["step"]: row["greedy_accuracy"] for row in notebook.evaluations}
        # The one of version 0 was complete before the first batch was given.
        assert 0 in trainer.heldout and trainer.heldout.items() <= found.items()
        # The journal has what each of them is made of.
        for version, accuracy in found.items():
            answers = read_answers(controller.queue.journal, version, "held-out")
            greedy = [answer.correctness == 1.0 for answer in answers if answer.sample == GREEDY]
            assert sum(greedy) / len(greedy) == pytest.approx(accuracy)


async def test_an_evaluation_on_its_own_server_holds_one_version_while_training_continues(
    tmp_path: Path,
) -> None:
    recipe = make_recipe(evaluation={"every_steps": 1, "samples_per_task": 2, "num_servers": 1})
    engine, apart = FakeEngine(), FakeEngine()
    async with (
        engine,
        apart,
        controller_on(tmp_path, recipe, [engine], [apart]) as (controller, notebook),
    ):
        apart.hold()
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        running = asyncio.create_task(controller.run(trainer.run))
        # All steps are made although not even the first evaluation has got an answer.
        while len(trainer.batches) < 4:
            await asyncio.sleep(0.001)
        assert notebook.evaluations == []
        apart.release()
        await running
        rows = [(row["when"], row["step"]) for row in notebook.evaluations]
        assert rows == [("before", 0), ("during", 1), ("during", 2), ("during", 3), ("after", 4)]
        assert all(row["step"] == row["version_min"] == row["version_max"] for row in notebook.evaluations)
        heldout_ids = [rid for body in engine.bodies for rid in body["rid"] if "-eval-" in rid]
        assert heldout_ids == []
        assert list((tmp_path / "run" / "evaluation").iterdir()) == []


async def test_old_steps_are_compacted_while_the_run_continues_and_the_books_balance(
    engine: FakeEngine, tmp_path: Path
) -> None:
    recipe = make_recipe(replay={"keep_steps": 1}, trainer={"num_steps": 6, "keep_checkpoints": 2})
    async with controller_on(tmp_path, recipe, [engine]) as (controller, _):
        await controller.run(FakeTrainer(controller.queue_url, tmp_path, commit_every=1).run)
        await controller.queue.journal.barrier()
        versions = controller.queue.journal.read(
            "SELECT DISTINCT taken_version FROM groups JOIN trajectories USING (group_id) "
            "JOIN segments USING (trajectory_id) ORDER BY 1"
        )
        # At the last take the kept checkpoints are of versions 4 and 5; the older one asks for the batch
        # that version 4 took.
        assert versions == [(4,), (5,)]
        books = controller.queue.conservation()
        assert books["generated"] == books["trained"] > 0
        assert controller.queue.journal.read("SELECT sum(num_tokens) FROM compacted")[0][0] > 0


@pytest.mark.parametrize("version", [0, 2])
async def test_a_damaged_publication_is_written_again_when_no_server_can_load_it(
    engine: FakeEngine, tmp_path: Path, version: int
) -> None:
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, notebook):
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        trainer.damages = {version}
        await controller.run(trainer.run)
        assert trainer.num_republished == 1
        assert [batch.taken_version for batch in trainer.batches] == [0, 1, 2, 3]
        assert [row["when"] for row in notebook.evaluations] == ["before", "during", "after"]
        assert controller.fleet.members.servers[engine.url].num_restarts <= 1


@pytest.mark.parametrize("interrupt", ["continue", "drain"])
async def test_colocated_servers_sleep_while_the_trainer_has_a_batch_and_evaluations_find_them_awake(
    interrupt: str, engine: FakeEngine, tmp_path: Path
) -> None:
    recipe = make_recipe(
        placement={"colocated": True}, rollout={"interrupt": interrupt}, evaluation={"every_steps": 1}
    )
    async with controller_on(tmp_path, recipe, [engine]) as (controller, notebook):
        slept: list[bool] = []

        class Watchful(FakeTrainer):
            def _publish(self) -> Publication:
                slept.append(engine.is_asleep)
                return super()._publish()

        trainer = Watchful(controller.queue_url, tmp_path, is_draining=interrupt == "drain")
        await controller.run(trainer.run)
        # The first publication comes before any batch.
        assert slept == [False, True, True, True, True]
        assert [batch.taken_version for batch in trainer.batches] == [0, 1, 2, 3]
        rows = [(row["when"], row["step"]) for row in notebook.evaluations]
        assert rows == [("before", 0), ("during", 1), ("during", 2), ("during", 3), ("after", 4)]
        assert all(row["step"] == row["version_min"] == row["version_max"] for row in notebook.evaluations)
        table = controller.queue.conservation()
        assert table["generated"] == table["trained"] + sum(
            tokens for name, tokens in table.items() if name.startswith("dropped")
        )


async def test_a_server_that_generates_nothing_is_restarted_then_given_up_and_named(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.controller.controller.WATCH_INTERVAL_SECONDS", 0.05)
    recipe = make_recipe(
        evaluation={"every_steps": 0}, data={"heldout": None}, serving={"request_timeout_seconds": 1.0}
    )
    async with controller_on(tmp_path, recipe, [engine]) as (controller, _):
        engine.hold()
        with pytest.raises(BaseExceptionGroup) as caught:
            await controller.run(FakeTrainer(controller.queue_url, tmp_path).run)
        cause = first_cause(caught.value)
        assert isinstance(cause, AsyncrlError)
        assert "No rollout server is left" in str(cause)
        assert re.search(f"{engine.url}: nothing moved for \\d+ s", str(cause)), cause
        state = controller.run_tasks.state_at_failure
        assert state is not None
        assert "take waits for groups for step 1" in state["What waited for what"]
        assert f"{engine.url}: dead" in state["Servers"]


async def test_remax_generates_one_greedy_trajectory_per_group_and_trains_the_others(
    engine: FakeEngine, tmp_path: Path
) -> None:
    recipe = make_recipe(
        evaluation={"every_steps": 0}, data={"heldout": None}, algorithm={"advantage": "remax"}
    )
    async with controller_on(tmp_path, recipe, [engine]) as (controller, notebook):
        engine.break_streams = 2
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        await controller.run(trainer.run)
        for body in engine.bodies:
            for rid, params in zip(body["rid"], body["sampling_params"], strict=True):
                is_last_sample = "-02-" in rid
                assert params["temperature"] == (0.0 if is_last_sample else 1.0)
        names = [s.sequence_id for batch in trainer.batches for s in batch.sequences]
        assert len(names) == len(set(names)) == 4 * 2 * 2
        table = controller.queue.conservation()
        assert table["generated"] == table["trained"] + table["dropped: baseline"]
        assert table["dropped: baseline"] == 4 * 2 * 5
        # The greedy answers are no samples: two verdicts per group.
        assert sum(notebook.steps[0]["outcomes"].values()) == 2 * 2


async def test_the_greedy_baseline_of_remax_has_turns_too(engine: FakeEngine, tmp_path: Path) -> None:
    def twice(turn: int, text: str) -> Observation | End:
        return End(1.0) if turn else Observation("again")

    recipe = make_recipe(
        evaluation={"every_steps": 0}, data={"heldout": None}, algorithm={"advantage": "remax"}
    )
    played = conversations(FakeEpisodes(twice))
    engine.answers = lambda prefix: [30, 31, STOP]
    async with controller_on(tmp_path, recipe, [engine], conversations=played) as (controller, _):
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        await controller.run(trainer.run)
        greedy = [body for body in engine.bodies if body["sampling_params"][0]["temperature"] == 0.0]
        # The second turn of each continues the first, and what was observed.
        later = [body for body in greedy if OBSERVED == body["input_ids"][0][-len(OBSERVED) :]]
        assert len(greedy) == 2 * len(later) == 2 * 4 * 2
        sequences = [s for batch in trainer.batches for s in batch.sequences]
        assert len(sequences) == 4 * 2 * 2 and all(sequence.observed for sequence in sequences)
        assert controller.queue.conservation()["dropped: baseline"] == 4 * 2 * 2 * 3


async def test_servers_that_were_added_before_a_restart_serve_and_changes_are_told(tmp_path: Path) -> None:
    supervisor = FakeSupervisor()
    one, two = FakeEngine(), FakeEngine()
    async with (
        one,
        two,
        controller_on(
            tmp_path,
            make_recipe(),
            [one],
            added_servers=[two.url],
            supervisor=supervisor,
        ) as (controller, _),
    ):
        trainer = FakeTrainer(controller.queue_url, tmp_path)

        async def train_with_both() -> None:
            await asyncio.gather(trainer.run(), change_once_both_serve())

        async def change_once_both_serve() -> None:
            await controller.context.waits.wait_until(
                lambda: len(controller.fleet.members.serving()) == 2, owner="test", blocker="two servers"
            )
            (tmp_path / "controller.url").write_text(controller.queue_url)
            await asyncio.to_thread(change_servers, tmp_path, "list", "")
            assert supervisor.server_changes == []
            await asyncio.to_thread(change_servers, tmp_path, "remove", one.url)
            with pytest.raises(InputError, match="the last rollout server"):
                await asyncio.to_thread(change_servers, tmp_path, "remove", two.url)

        await controller.run(train_with_both)
        assert [batch.taken_version for batch in trainer.batches] == [0, 1, 2, 3]
        # What was refused did not happen.
        assert supervisor.server_changes == [("remove", one.url)]


async def test_a_run_whose_responses_are_all_cut_off_and_wrong_says_so_once(
    engine: FakeEngine, tmp_path: Path
) -> None:
    recipe = make_recipe(
        trainer={"num_steps": 7},
        rollout={"max_new_tokens": 4},
        evaluation={"every_steps": 0},
    )
    # Five tokens to a response, of which four are allowed.
    async with controller_on(tmp_path, recipe, [engine]) as (controller, notebook):
        await controller.run(FakeTrainer(controller.queue_url, tmp_path).run)
        assert [row["cut_share"] for row in notebook.steps] == [1.0] * 7
        (alarm,) = notebook.alarms
        hint = alarm.words()
        assert "no response was correct" in hint
        assert "100% were cut at rollout.max_new_tokens (4)" in hint
        assert 'The verifier "exact" looks for' in hint


async def test_a_journal_that_fails_ends_the_run_although_nothing_is_written_any_more(
    engine: FakeEngine, tmp_path: Path
) -> None:
    recipe = make_recipe(evaluation={"every_steps": 0})
    # Closing the journal says it again.
    with pytest.raises(JournalError):
        async with controller_on(tmp_path, recipe, [engine]) as (controller, _):
            # Nothing is generated: no call of the run would meet the failure.
            engine.hold()
            running = asyncio.create_task(controller.run(FakeTrainer(controller.queue_url, tmp_path).run))
            while not engine.bodies:
                await asyncio.sleep(0.001)
            controller.queue.journal.write(("INSERT INTO meta VALUES ('k', ?)", ("\ud800",)))
            with pytest.raises(BaseExceptionGroup) as failed:
                await asyncio.wait_for(running, LIMIT_SECONDS)
            cause = first_cause(failed.value)
            assert isinstance(cause, JournalError) and "UnicodeEncodeError" in str(cause)
            engine.release()


async def test_a_stop_during_the_first_evaluation_ends_the_run_and_the_next_start_evaluates(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.controller.controller.ENDING_SECONDS", 0.1)
    engine.hold()
    # It hangs: aborting its requests does not end them either.
    monkeypatch.setattr(engine, "release", lambda: None)
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, notebook):
        trainer = FakeTrainer(controller.queue_url, tmp_path)

        async def train_until_stopped() -> None:
            running = asyncio.create_task(trainer.run())
            while not any("-eval-" in rid for body in engine.bodies for rid in body["rid"]):
                await asyncio.sleep(0.001)
            controller.stop()
            await running

        await controller.run(train_until_stopped)
        assert trainer.batches == [] and notebook.evaluations == []
        assert controller.queue.num_admitted > 0
    monkeypatch.undo()
    engine.release()
    async with controller_on(tmp_path, make_recipe(), [engine]) as (controller, notebook):
        await controller.run(FakeTrainer(controller.queue_url, tmp_path).run)
        assert [row["when"] for row in notebook.evaluations] == ["before", "during", "after"]


async def test_groups_of_turns_are_admitted_only_while_a_server_has_room(
    engine: FakeEngine, tmp_path: Path
) -> None:
    episodes = FakeEpisodes(lambda turn, text: End(float(len(text) % 2)))
    recipe = make_recipe(
        serving={"max_running_requests": 2}, data={"heldout": None}, evaluation={"every_steps": 0}
    )
    engine.hold()
    async with controller_on(tmp_path, recipe, [engine], conversations=conversations(episodes)) as (
        controller,
        _,
    ):
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        work = asyncio.create_task(controller.run(trainer.run))
        while sum("-eval-" not in rid for body in engine.bodies for rid in body["rid"]) < 2:
            await asyncio.sleep(0.001)
        for _ in range(50):
            await asyncio.sleep(0)
        assert controller.queue.num_admitted == 1
        engine.release()
        await work
        assert trainer.batches
