"""Builds the parts of a run and connects them: the one place that shows which part knows which."""

import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from asyncrl.algorithms.advantages import find_advantage
from asyncrl.controller.completion import (
    RecordedCompletion,
    RowCompletion,
    make_adaptive,
    make_completion,
    make_dropped,
    make_grader,
    make_pilot_meter,
    make_teacher,
)
from asyncrl.controller.context import RunContext, TrainerSession
from asyncrl.controller.controller import Controller
from asyncrl.controller.http_service import ControllerService, Endpoint
from asyncrl.controller.inputs import Inputs, hidden_files, make_conversations, make_episodes, make_evaluator
from asyncrl.controller.progress import RolloutSide, Supervisor, TrainerSide, change_servers, describe_run
from asyncrl.controller.take_parts import (
    CompactedJournal,
    Evaluations,
    MeasuredRows,
    ReportedSteps,
    SharedGpus,
)
from asyncrl.controller.trainer_wire import TrainerWire
from asyncrl.evaluation.schedule import EvaluationServers, HeldOutSchedule
from asyncrl.journal.compaction import Compaction
from asyncrl.journal.responses import read_admissions, read_visits
from asyncrl.journal.writer import Journal
from asyncrl.loops import RunPart, RunPhase, RunTasks, Waits
from asyncrl.model.dtype import has_float32_head
from asyncrl.model.source import model_folder
from asyncrl.model.unsampled import find_unsampled
from asyncrl.observe.metrics.batch_columns import (
    BatchColumns,
    optional_columns,
    row_columns,
    unjudged_columns,
)
from asyncrl.observe.metrics.prometheus import RunMetrics
from asyncrl.observe.metrics.step_metrics import Meters, Observer, StepReport, StepResponses
from asyncrl.observe.metrics.turn_metrics import AgentMeter
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import object_files
from asyncrl.records import ScoredSequence, branch_id
from asyncrl.replay.group import Group, trajectory_id
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.repetition import make_repetition
from asyncrl.replay.settings import QueueSettings
from asyncrl.rollout.agents.kit import make_agent_kit
from asyncrl.rollout.agents.opponents import opponent_servers
from asyncrl.rollout.complete import GroupCompletion
from asyncrl.rollout.credits import Shaping
from asyncrl.rollout.drain import Drain
from asyncrl.rollout.early_abort import EarlyAbort
from asyncrl.rollout.filter import Oversampling, group_signal
from asyncrl.rollout.generate import Generator
from asyncrl.rollout.reflection import ReflectionWords
from asyncrl.rollout.request_rules import Limits, OpenTurns, RequestRules
from asyncrl.rollout.turn_player import TurnPlayer
from asyncrl.run.metrics_file import Metrics
from asyncrl.serving.fleet import Fleet
from asyncrl.serving.join import FleetSettings
from asyncrl.serving.publication import Load, find_load
from asyncrl.serving.sglang.columns import served_columns
from asyncrl.system.places import EVALUATION
from asyncrl.tasks.order import TaskOrder
from asyncrl.tasks.task_list import title_of
from asyncrl.turns.conversation import Conversations
from asyncrl.wire.access import Keys
from asyncrl.wire.fetch import TrainerCopies
from asyncrl.wire.file_service import FileRoutes


def assemble(
    inputs: Inputs,
    *,
    journal: Journal,
    session: aiohttp.ClientSession,
    supervisor: Supervisor,
    observer: Observer,
    server_urls: Sequence[str],
    added_servers: Sequence[str] = (),
    evaluation_urls: Sequence[str] = (),
    teacher_url: str | None = None,
    opponent_urls: Mapping[str, str] | None = None,
    run_folder: Path | None = None,
    keys: Keys | None = None,
    known: Metrics | None = None,
    conversations: Conversations | None = None,
) -> Controller:
    """The controller of a run, with what the journal holds of earlier starts.

    `evaluation_urls`, servers for evaluations alone, need a `run_folder`. `teacher_url` where the recipe has
    a teacher, `opponent_urls` where it has opponents. `keys` are those of `session`; without them no request
    needs one. `known` is what earlier starts measured of what stays. With `conversations` in place of the
    recipe's, rollouts have turns. Raises InputError when the journal's prompts are not in the data."""
    recipe, run_id, keys = inputs.recipe, secrets.token_hex(4), keys or Keys()
    waits = Waits()
    state = RunPhase(waits)
    journal.on_failure(state.fail_from_thread)
    trainer = TrainerSession(waits, state)
    context = RunContext(waits, state, journal, trainer)
    order = inputs.order()
    queue = _restored_queue(inputs, journal, order, waits)
    cluster = recipe.cluster
    endpoint = Endpoint(cluster.bind_address, cluster.port, advertised_host=cluster.host())
    load = find_load(shared_disk=cluster.shared_disk, service_url=endpoint.url, run_folder=run_folder)
    make_fleet = functools.partial(_make_fleet, inputs, session, waits, supervisor, load)
    fleet = make_fleet(server_urls, interrupt=recipe.rollout.interrupt)
    run_tasks = RunTasks(waits, functools.partial(describe_run, queue, fleet, waits))

    hidden = hidden_files(recipe, run_folder, inputs.eval_sets)
    episodes = None if conversations is not None else make_episodes(recipe, run_folder, hidden)
    of_evaluations = make_conversations(inputs, episodes)
    conversations = conversations or of_evaluations
    oversampling = Oversampling(queue, recipe.rollout.oversampling)
    plays_turns = conversations is not None or recipe.agent.is_on()
    generator = _make_generator(
        inputs, run_id, queue, fleet, waits, state, oversampling, plays_turns=plays_turns
    )
    shaping = Shaping(recipe.algorithm, generator.limits)
    player: TurnPlayer | None = None
    if conversations is not None:
        player = TurnPlayer(queue, generator, conversations, shaping, waits)
    opponents = opponent_servers(recipe.serving, opponent_urls, session, waits, supervisor, run_folder)
    kit = make_agent_kit(recipe, inputs.codec, hidden=hidden, opponents=opponents.fleets)
    parts_of_agents = generator, inputs.codec, shaping, waits, state
    agents = None if kit is None else kit.agents(*parts_of_agents, kept=opponents.kept)
    rollouts = agents.player if agents is not None else player or generator
    grader = make_grader(inputs, run_folder, journal)
    player_of_agents = None if agents is None else agents.player
    metrics = RunMetrics(recipe.name, observer, queue, fleet, grader, trainer, player_of_agents)
    dropped = make_dropped(inputs, metrics)
    pilots = make_pilot_meter(recipe)
    adaptive = make_adaptive(recipe, queue, order, pilots)
    teacher = make_teacher(recipe, teacher_url, session, waits, supervisor)
    completion: GroupCompletion | RecordedCompletion | RowCompletion
    if recipe.learns_from_rows():
        completion = RowCompletion(queue)
    else:
        completion = make_completion(
            inputs, queue, rollouts, shaping, grader, waits, dropped, adaptive, teacher
        )
        if inputs.recorded:
            completion = RecordedCompletion(queue, completion, recipe.num_recorded_groups())
    early_abort = EarlyAbort(generator, oversampling, waits, hedge_seconds=recipe.serving.hedge_seconds)

    evaluation_servers: EvaluationServers | None = None
    if evaluation_urls:
        assert run_folder is not None, "the pinned publications need a place"
        evaluation_servers = EvaluationServers(make_fleet(evaluation_urls), waits, run_folder / EVALUATION)
    asked = evaluation_servers.fleet if evaluation_servers else fleet
    evaluator = make_evaluator(inputs, run_id, asked, waits, grader, of_evaluations, kit)
    heldout = HeldOutSchedule(
        recipe.evaluation,
        inputs.heldout_tasks,
        inputs.eval_sets,
        title_of(recipe),
        evaluator,
        evaluation_servers,
        waits,
        state,
        run_tasks,
        journal,
        metrics,
        known=known,
    )
    report = StepReport(
        *(metrics, Meters(queue, fleet), grader, heldout.accuracies, inputs.codec.piece, conversations),
        agents=None if player_of_agents is None else AgentMeter(player_of_agents, queue),
        pilots=pilots,
        columns=_columns_of(recipe),
        teacher=teacher,
    )

    num_steps = recipe.trainer.num_steps
    copies = _make_copies(recipe, run_folder, keys, heldout)
    drainer = Drain(queue, fleet, generator, waits)
    shared_gpus: SharedGpus | None = None
    if recipe.placement.colocated:
        shared_gpus = SharedGpus(
            *(context, fleet, drainer),
            is_evaluating=heldout.is_on_rollout_servers,
            ends_with_its_version=recipe.rollout.interrupt == "drain",
        )
    evaluations = Evaluations(context, heldout, fleet.weight_owner, num_steps)
    words = recipe.view.reflection_words
    reflection = ReflectionWords(words) if words else None
    responses = StepResponses(journal, reflection, recipe.rollout.samples_per_group, waits)
    compaction = Compaction(
        journal,
        keep_steps=recipe.replay.keep_steps,
        keep_checkpoints=recipe.trainer.keep_checkpoints,
        repeat_reach=queue.settings.repeat_reach(),
    )
    batch_columns = BatchColumns(
        queue, metrics, dropped if recipe.has_verdicts() else None, optional_columns(recipe)
    )
    wire = TrainerWire(
        context=context,
        queue=queue,
        fleet=fleet,
        generator=generator,
        drainer=drainer,
        copies=copies,
        keys=keys,
        parts=(
            ReportedSteps(context, report, responses),
            evaluations,
            *([] if shared_gpus is None else [shared_gpus]),
            CompactedJournal(compaction),
            MeasuredRows(_measured_rows(inputs)),
        ),
        columns=(lambda taken, version: {}) if recipe.learns_from_rows() else batch_columns,
        num_steps=num_steps,
        temperature=recipe.rollout.temperature,
        publishes_all=not recipe.learns_from_rows(),
        serves_while_training=shared_gpus is None,
    )
    service = ControllerService(
        wire,
        endpoint=endpoint,
        keys=keys,
        servers=functools.partial(change_servers, fleet, supervisor),
        files=_make_files(recipe, run_folder),
        metrics=metrics,
        has_open_metrics=cluster.open_metrics,
    )
    played = opponents if opponents.fleets else None
    optional = completion if isinstance(completion, RunPart) else None, player, agents, episodes, played
    return Controller(
        recipe=recipe,
        context=context,
        run_tasks=run_tasks,
        queue=queue,
        order=order,
        fleet=fleet,
        added_servers=added_servers,
        generator=generator,
        grader=grader,
        completion=completion,
        wire=wire,
        service=service,
        parts=(early_abort, evaluations, *(part for part in optional if part is not None)),
        sides=(
            RolloutSide(recipe, queue, fleet, heldout, trainer, player_of_agents or player, teacher),
            TrainerSide(recipe, trainer, state, supervisor),
        ),
    )


def _measured_rows(inputs: Inputs) -> list[ScoredSequence]:
    """Rows of data.heldout, where their loss is measured; a pair is two lines."""
    return [
        line.sequence(branch_id(trajectory_id(row, 0), place) if place else trajectory_id(row, 0))
        for row, task in enumerate(inputs.heldout_rows)
        for place, line in enumerate(task.reference.lines())
    ]


def _restored_queue(inputs: Inputs, journal: Journal, order: TaskOrder, waits: Waits) -> ReplayQueue:
    recipe = inputs.recipe
    settings = QueueSettings.of(recipe)
    queue = ReplayQueue(
        journal,
        settings,
        has_signal=_signal_of(recipe),
        repeats=make_repetition(settings),
        changed=waits.notify,
    )
    queue.restore(functools.partial(order.find, may_have_moved=inputs.has_moved_rows))
    if order.has_memory():
        order.recall(read_admissions(journal), read_visits(journal))
        queue.visited = order.visited
    return queue


def _signal_of(recipe: Recipe) -> Callable[[Group], bool]:
    """Whether a group has a gradient: with a teacher each has."""
    if recipe.teacher.is_on():
        return lambda group: True
    return group_signal(find_advantage(recipe.algorithm), recipe.algorithm)


def _columns_of(recipe: Recipe) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """Keeps the columns of a step that mean something; None: all."""
    if recipe.learns_from_rows():
        return row_columns
    return None if recipe.has_verdicts() else unjudged_columns


def _make_fleet(
    inputs: Inputs,
    session: aiohttp.ClientSession,
    waits: Waits,
    supervisor: Supervisor,
    load: Load,
    urls: Sequence[str],
    interrupt: str = "continue",
) -> Fleet:
    recipe = inputs.recipe
    settings = FleetSettings(
        max_running_requests=recipe.serving.max_running_requests,
        install_seconds=recipe.serving.request_timeout_seconds,
        silence_seconds=recipe.serving.request_timeout_seconds,
        longest_tokens=inputs.longest_trajectory(),
        interrupt=interrupt,
        load=load,
        float32_head=has_float32_head(recipe),
        is_bitwise=recipe.model.bitwise_agreement,
        unsampled=find_unsampled(model_folder(recipe.model), recipe.rollout.stop_tokens),
        top_k=recipe.rollout.top_k,
        returns_routes=recipe.replays_routes(),
    )
    return Fleet(urls, settings, session=session, waits=waits, processes=supervisor)


def _make_files(recipe: Recipe, run_folder: Path | None) -> FileRoutes | None:
    """None where every process sees the disk."""
    if recipe.cluster.shared_disk:
        return None
    assert run_folder is not None, "publications are handed out from the run folder"
    terms = object_files(recipe.algorithm.model_dump())
    return FileRoutes(model_folder(recipe.model), run_folder, terms)


def _make_generator(
    inputs: Inputs,
    run_id: str,
    queue: ReplayQueue,
    fleet: Fleet,
    waits: Waits,
    state: RunPhase,
    oversampling: Oversampling,
    *,
    plays_turns: bool,
) -> Generator:
    rollout = inputs.recipe.rollout
    return Generator(
        queue=queue,
        fleet=fleet,
        waits=waits,
        state=state,
        limits=Limits(
            inputs.rollout_sampling(),
            inputs.context_tokens,
            max_turn_tokens=inputs.recipe.turns.max_turn_tokens,
            tokens_per_round=rollout.tokens_per_round,
            stop=inputs.codec.stop,
        ),
        max_retries=rollout.max_fault_retries,
        run_id=run_id,
        rules=RequestRules(
            is_cache_recomputed=rollout.interrupt == "retract",
            ends_with_its_version=rollout.interrupt == "drain",
            columns=served_columns(inputs.recipe),
        ),
        turns=OpenTurns(keeps_cached=rollout.interrupt == "continue") if plays_turns else None,
        is_parked=oversampling.is_over,
    )


def _make_copies(
    recipe: Recipe, run_folder: Path | None, keys: Keys, heldout: HeldOutSchedule
) -> TrainerCopies:
    return TrainerCopies(
        run_folder or Path(),
        token=keys.token,
        num_kept=recipe.trainer.keep_checkpoints,
        best_of_every=recipe.evaluation.every_steps if recipe.trainer.keep_best else 0,
        heldout=lambda: dict(heldout.accuracies),
    )
