"""One schedule from a seed: the real controller, queue, journal and fleet in a simulated world, to its end.

`run_schedule(seed)` returns the world; its `violations` say what went wrong, its `events` what happened.
A run that is killed, stopped or out of disk is started again, as a user would, until it is complete.
"""

import asyncio
import contextlib
import functools
import gc
import itertools
import logging
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from simulation.checks import (
    check_choices,
    check_conservation,
    check_journal,
    check_pilots,
    check_trained,
)
from simulation.environments import make_conversations
from simulation.journal import SimulatedJournal, new_disk
from simulation.loop import Deadlock, DrivenLoop, Livelock
from simulation.plan import Plan, TurnPlan, draw
from simulation.server import SimulatedServer
from simulation.session import SimulatedSession
from simulation.trainer import SimulatedService, SimulatedTrainer, TrainerDied
from simulation.verifying import Codec, SimulatedPool
from simulation.world import World

from asyncrl.controller.assemble import assemble
from asyncrl.controller.controller import ENDING_SECONDS, Controller
from asyncrl.controller.inputs import Inputs
from asyncrl.errors import ServerError
from asyncrl.journal.writer import JournalError
from asyncrl.observe.alarms.rule import Alarm
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import parse_recipe
from asyncrl.records import EnvironmentSpec, Task, VerifierSpec

START_SECONDS = 30.0
PILOT_MIN_CHANCE = 0.4
"""Between the chances of a group of 3 and one of 5, before anything is known of rows: some are stopped."""
TRAINER_SECONDS = 5.0
"""After a request to stop: what the launcher gives the trainer."""
SLACK_SECONDS = 1.0
MAX_SECONDS = 3600.0
"""Of the driven clock, for a whole schedule."""


class WorldNotebook(logging.Handler):
    """What the user sees: steps, evaluations, warnings."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def step(self, row: dict[str, Any]) -> None:
        self._world.note(f"step {row['step']}")

    def evaluation(self, row: dict[str, Any]) -> None:
        self._world.note(f"evaluation {row['when']} {row['step']}")

    def dropped(self, row: dict[str, Any]) -> None:
        self._world.note(f"{row['num_dropped']} groups dropped before step {row['step']}")

    def alarm(self, alarm: Alarm) -> None:
        self._world.note(alarm.words())

    def emit(self, record: logging.LogRecord) -> None:
        self._world.note(record.getMessage())


class Schedule:
    """Owns the servers and the order of events of one world; the supervisor of its controllers."""

    def __init__(self, world: World, notebook: WorldNotebook) -> None:
        self.world = world
        self.plan = world.plan
        self._notebook = notebook
        self.servers = {
            url: SimulatedServer(world, url)
            for url in (f"http://server-{n}" for n in range(self.plan.num_servers))
        }
        self.num_lives = 0
        self.run_ended = 0.0
        self.table: dict[str, int] = {}

    async def run(self) -> None:
        for server in self.servers.values():
            server.start()
        loop = asyncio.get_running_loop()
        urls = list(self.servers)
        for seconds, index, kind in self.plan.server_faults:
            loop.call_later(seconds, self._break, self.servers[urls[index]], kind)
        for seconds, index, action in self.plan.fleet_changes:
            loop.call_later(seconds, self._change_fleet, action, urls[index])
        is_complete = False
        async with asyncio.timeout(MAX_SECONDS):
            while not is_complete:
                is_complete = await self._controller_life()
                self.num_lives += 1
                if not is_complete and not self.plan.are_servers_external:
                    for server in self.servers.values():
                        await server.restart()
        check_trained(self.world)
        check_conservation(self.world, self.table)
        check_journal(self.world, self.world.connection, self.table)
        check_pilots(self.world, self.world.connection)
        check_choices(self.world, self.world.connection, make_inputs(self.plan).order())

    async def _controller_life(self) -> bool:
        """True when the run came to its end."""
        ends = self.plan.controller_ends
        kind, seconds = ends[self.num_lives] if self.num_lives < len(ends) else ("end", MAX_SECONDS)
        self.world.note(f"controller {self.num_lives} starts, to {kind}")
        journal = SimulatedJournal(self.world)
        session = SimulatedSession(self.world, self.servers)
        controller = assemble(
            make_inputs(self.plan),
            journal=journal,
            session=session,  # type: ignore[arg-type]
            supervisor=self,
            observer=self._notebook,
            server_urls=list(self.servers),
            conversations=make_conversations(self.world),
        )
        self.controller = self.world.controller = controller
        life = asyncio.create_task(self._serve(controller), name="controller")
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(life)
        except TimeoutError:
            return await self._end(kind, life, controller, journal, session)
        self.table = controller.queue.conservation()
        journal.close()
        return True

    async def _serve(self, controller: Controller) -> None:
        async with controller:
            try:
                await controller.run(functools.partial(self._keep_training, controller))
            finally:
                self.run_ended = asyncio.get_running_loop().time()
                if self.world.num_environments:
                    self.world.violate(f"{self.world.num_environments} environments outlive their run")

    async def _end(
        self,
        kind: str,
        life: "asyncio.Task[None]",
        controller: Controller,
        journal: SimulatedJournal,
        session: SimulatedSession,
    ) -> bool:
        self.world.note(f"controller {self.num_lives}: {kind}")
        if kind == "stop":
            controller.stop()
            # The launcher gives the trainer some seconds to save, then kills it.
            timer = asyncio.get_running_loop().call_later(TRAINER_SECONDS, self.kill_trainer, "stop")
            asked = asyncio.get_running_loop().time()
            await life
            timer.cancel()
            took = self.run_ended - asked
            if took > max(TRAINER_SECONDS, ENDING_SECONDS) + SLACK_SECONDS:
                self.world.violations.append(f"it was asked to stop and ran for {took:.1f} s more")
            self.table = controller.queue.conservation()
            journal.close()
            return False
        if kind == "full disk":
            journal.fill_disk()
            try:
                await life
            except BaseException as error:
                if not _is_caused_by(error, JournalError):
                    raise
                self.world.note("ends: the disk is full")
            # A run that needed the journal no more may still come to its end.
            return False
        journal.crash()
        session.cut()
        life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await life
        return False

    async def _keep_training(self, controller: Controller) -> None:
        """The launcher: restarts a trainer that died."""
        service = controller.service
        assert isinstance(service, SimulatedService)
        while True:
            self.trainer = asyncio.create_task(SimulatedTrainer(self.world, service, self.servers).run())
            try:
                return await asyncio.shield(self.trainer)
            except TrainerDied:
                if controller.context.state.is_stopped:
                    return
            except asyncio.CancelledError:
                # The watchdog killed the trainer, or somebody this task.
                if not self.trainer.cancelled():
                    self.trainer.cancel()
                    raise
                if controller.context.state.is_stopped:
                    return

    def kill_trainer(self, why: str) -> None:
        self.world.note(f"the trainer is killed: {why}")
        self.trainer.cancel()

    async def restart_server(self, url: str) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                await self.servers[url].restart()
        except TimeoutError:
            raise ServerError(f"{url} is not ready after {START_SECONDS} s") from None

    async def end_server(self, url: str) -> None:
        """Where it shares no GPU, its process outlives its place in the fleet."""
        if self.plan.is_colocated:
            self.servers[url].die()

    def record_server_change(self, action: str, url: str) -> None:
        """Every life of the controller starts with all servers."""

    def _change_fleet(self, action: str, url: str) -> None:
        if not self.controller.context.state.is_open:
            return
        try:
            self.controller.fleet.members.change_and_list(action, url)
        except ServerError as error:
            self.world.note(f"{action} {url} is refused: {error}")
        else:
            self.world.note(f"{action} {url}")

    def _break(self, server: SimulatedServer, kind: str) -> None:
        if not server.is_up:
            return
        self.world.note(f"{server.url}: {kind} is due")
        if kind == "die":
            server.die()
            if self.plan.are_servers_external:
                asyncio.get_running_loop().call_later(2.0, server.start)
        elif kind == "bounce":
            # Somebody restarted it, and nobody was told. Not one that shares a GPU: that is the run's own.
            server.die()
            if not self.plan.is_colocated:
                server.start()
        elif kind == "hang":
            server.hang(self.world.rng.choice((1.0, 50.0, 500.0)))
        elif kind == "stall":
            server.is_stalled = True
        elif kind == "break_stream":
            server.break_stream()
        else:
            server.faults[kind] = server.faults.get(kind, 0) + 1


def make_recipe(plan: Plan) -> Recipe:
    return parse_recipe(
        {
            "name": "simulated",
            "model": {"path": "m"},
            "data": {"train": "d", "heldout": "h", "selection": _selection_section(plan)},
            "rollout": {
                "groups_per_batch": plan.groups_per_batch,
                "samples_per_group": plan.samples_per_group,
                "pilot_samples": plan.pilot_samples,
                **({} if plan.pilot_samples is None else {"pilot_min_chance": PILOT_MIN_CHANCE}),
                "max_staleness": plan.max_staleness,
                "max_new_tokens": plan.max_new_tokens,
                "interrupt": plan.interrupt,
                "tokens_per_round": plan.tokens_per_round,
                "oversampling": plan.oversampling,
                "abort_staleness": plan.abort_staleness,
            },
            "replay": {
                "order": plan.order,
                "drops_no_signal": plan.drops_no_signal,
                "max_dropped_in_a_row": 5,
                "repeated_groups_per_batch": plan.repeated_groups,
                "max_uses": plan.max_uses,
                "keep_steps": plan.keep_steps,
            },
            "turns": {} if plan.turns is None else _turns_section(plan.turns),
            "placement": {"colocated": plan.is_colocated},
            "trainer": {
                "num_processes": plan.num_servers,
                "num_steps": plan.num_steps,
                "step_timeout_seconds": 60,
                "keep_checkpoints": 1,
            },
            "evaluation": {"every_steps": 2 if plan.has_evaluation else 0, "samples_per_task": 2},
            "serving": {
                "request_timeout_seconds": 30,
                "start_timeout_seconds": START_SECONDS,
                "max_running_requests": plan.max_running_requests,
                "hedge_seconds": plan.hedge_seconds,
            },
        },
        source=f"seed {plan.seed}",
    )


def _selection_section(plan: Plan) -> dict[str, Any]:
    keys = {"solved_visits": 1, "rest_steps": 2} if plan.selection == "retire" else {}
    return {"by": plan.selection, **keys}


def _turns_section(turns: TurnPlan) -> dict[str, Any]:
    return {
        "environment": "simulated" if turns.has_environment else None,
        "tools": ["calculator"] if turns.has_tools else [],
        "max_turns": turns.max_turns,
        "max_turn_tokens": turns.max_turn_tokens,
        "timeout_seconds": turns.timeout_seconds,
        "max_tool_seconds": turns.max_tool_seconds,
        "max_processes": turns.max_processes,
        "num_fault_retries": turns.num_fault_retries,
    }


def make_inputs(plan: Plan) -> Inputs:
    turns = plan.turns
    environment = EnvironmentSpec("simulated") if turns and turns.has_environment else None
    tasks = [
        Task(f"train:{n}", str(n), (10_000 + n, 7), None, VerifierSpec("exact"), environment)
        for n in range(20)
    ]
    heldout = [Task(f"held:{n}", str(n), (20_000 + n, 7), None, VerifierSpec("exact")) for n in range(2)]
    verifiers: Any = mock.Mock(folder=Path())
    verifiers.is_group_wise.return_value = plan.judges_groups
    codec: Any = Codec(turns.stop if turns else ())
    context_tokens = turns.context_tokens if turns else 100
    known = heldout if plan.has_evaluation else []
    return Inputs(make_recipe(plan), tasks, known, codec, verifiers, context_tokens)


def run_schedule(seed: int, plan: Plan | None = None) -> World:
    """Runs schedule `seed` to its end and checks it; anything wrong is in `violations`."""
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=_fast_folder()) as folder:
        world = World(plan or draw(seed), Path(folder), random.Random(f"world {seed}"), new_disk())
        loop = DrivenLoop(random.Random(f"order {seed}"))
        with _simulated(world) as notebook, contextlib.closing(loop):
            try:
                loop.run_until_complete(_run(world, notebook))
            except (Exception, Deadlock, Livelock) as error:
                world.violations.append(f"the run ended with {_explain(error)}")
            _cancel_all(loop)
            world.violations.extend(f"left behind: {context}" for context in loop.errors)
            world.connection.close()
    return world


async def _run(world: World, notebook: WorldNotebook) -> None:
    schedule = Schedule(world, notebook)
    await schedule.run()
    # Now, or a task that a controller left behind would be seen in some replays of a seed and not in others.
    gc.collect()


@contextlib.contextmanager
def _simulated(world: World) -> Iterator[WorldNotebook]:
    lives = itertools.count()
    notebook, ours, others = WorldNotebook(world), logging.getLogger("asyncrl"), logging.getLogger("asyncio")
    is_quiet, ours.propagate, others.disabled = others.disabled, False, True
    ours.addHandler(notebook)
    try:
        with (
            mock.patch(
                "asyncrl.controller.assemble.ControllerService",
                lambda requests, **_: SimulatedService(world, requests),
            ),
            # One name per life of the controller, and the same when the seed is replayed.
            mock.patch("asyncrl.controller.assemble.secrets.token_hex", lambda _: f"life{next(lives)}"),
            mock.patch("asyncrl.rollout.grade.VerifierPool", lambda **_: SimulatedPool(world)),
        ):
            yield notebook
    finally:
        ours.removeHandler(notebook)
        ours.propagate, others.disabled = True, is_quiet


def _cancel_all(loop: DrivenLoop) -> None:
    # A set's order would be that of addresses: another one in each process.
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: (len(task.get_name()), task.get_name()))
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _explain(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_explain(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"


def _is_caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_caused_by(inner, kind) for inner in error.exceptions)
    return isinstance(error, kind)
