"""A run on this machine: servers, controller and trainer, from start-up to the last process gone.

The launcher and the controller share one process: when it dies, by whatever signal, the kernel takes the
others with it, and the same command resumes from the journal and the last checkpoint.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import aiohttp

from asyncrl.controller.assemble import assemble
from asyncrl.controller.controller import Controller
from asyncrl.controller.inputs import Inputs
from asyncrl.controller.status_writer import StatusWriter
from asyncrl.errors import InputError, ServerError
from asyncrl.journal.starts import (
    MODEL,
    UNSAMPLED,
    ServerChanges,
    StartRecord,
    changed_data,
    code_digests,
    last_environment,
    read_changes,
    record_data,
    record_environment,
    record_rendering,
    record_start,
    set_fact,
    words_of_change,
)
from asyncrl.journal.writer import Journal
from asyncrl.launch.meters.memory import MemoryMeter
from asyncrl.launch.meters.usage import UsageMeter, metering
from asyncrl.launch.placement import GpuMap
from asyncrl.launch.restarts import failure_recorded, first_cause, keep_training, record_cause, wait_for_start
from asyncrl.launch.servers import LocalServers, server_needs, start_like
from asyncrl.launch.site.site import ControllerDisk, LocalSite, Site, trainer_needs
from asyncrl.launch.stopping import LastResort, stop_on_signals
from asyncrl.launch.terminal_and_file import TerminalAndFile
from asyncrl.launch.trackers import FLUSH_SECONDS, TrackerProcesses
from asyncrl.launch.trainers import LocalSupervisor, TrainerFailed, TrainerRanks
from asyncrl.loops import RunPhase
from asyncrl.model.folder import model_digest, read_shape
from asyncrl.model.side_models import TEACHER, read_side_models
from asyncrl.model.source import model_folder
from asyncrl.model.unsampled import find_unsampled
from asyncrl.observe.alarms.learning import EmptySteps
from asyncrl.observe.alarms.watch import AlarmWatch, rules_of
from asyncrl.observe.metrics.mishaps import RecentEvents
from asyncrl.observe.terminal.live import LiveLine
from asyncrl.observe.terminal.stage import stage
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import dump_recipe
from asyncrl.recipe.sections.serving import LOOPBACK
from asyncrl.run.folder import RunFolder, data_digests
from asyncrl.run.metrics_file import Metrics, MetricsWriter, read_metrics
from asyncrl.run.status import starting, write_status
from asyncrl.serving.sglang.http import new_session
from asyncrl.system.machine import changed_engines, describe_environment
from asyncrl.system.places import CHECKPOINTS
from asyncrl.wire.access import Keys, new_token, read_keys, write_token

log = logging.getLogger(__name__)

Outcome = Literal["finished", "stopped", "unmeasured"]
"""Everything is there; Ctrl-C or SIGTERM came before; or an evaluation after training failed."""


async def train(inputs: Inputs, folder: RunFolder, last_resort: LastResort, *, gpus: GpuMap) -> Outcome:
    """Runs the recipe to its end, or until Ctrl-C, after which `last_resort` bounds what is left.

    Raises InputError with the last lines of a process that does not start, ServerError or TrainerFailed with
    those of one that cannot be kept alive. Every process has ended when this returns or raises.
    """
    recipe = inputs.recipe
    # In place of what an earlier start left in status.json. A disk that refuses is told of later.
    with contextlib.suppress(OSError):
        status = starting(step=folder.resumption.version, total_steps=recipe.trainer.num_steps)
        write_status(folder.path, status)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(failure_recorded(folder.path))
        journal = Journal(folder.journal)
        stack.callback(journal.close)
        keys = read_keys(new_token(), recipe.serving.api_key_variable)
        write_token(folder.token, keys.token)
        stack.callback(folder.token.unlink, missing_ok=True)
        session = await stack.enter_async_context(new_session(keys))
        site = await _open_site(stack, recipe, gpus)
        recipe = _reachable(recipe, site)
        inputs = dataclasses.replace(inputs, recipe=recipe)
        digests = data_digests(recipe)
        changed = changed_data(journal, digests)
        server_changes = read_changes(journal, recipe.serving)
        # Before the servers, which a cluster spreads over its nodes: ranks need room next to each other.
        await site.place(trainer_needs(recipe))
        servers = await _place_servers(recipe, folder.logs, session, server_changes, keys, site)
        path = folder.path.absolute()  # Once: no other process needs this one's current folder.
        trainers = TrainerRanks(recipe, run_folder=path, logs=folder.logs, token=keys.token, site=site)
        measured = read_metrics(folder.metrics)
        metrics = stack.enter_context(MetricsWriter(folder.metrics))
        events = stack.enter_context(RecentEvents())
        memory = MemoryMeter()
        observer = _open_observer(stack, recipe, folder, metrics, measured, memory, events)
        trackers = TrackerProcesses(recipe.trackers, path, folder.logs)
        stack.push_async_callback(trackers.stop)
        await trackers.start()
        controller = assemble(
            dataclasses.replace(inputs, has_moved_rows="data.train" in changed),
            journal=journal,
            session=session,
            supervisor=LocalSupervisor(recipe, servers, trainers, journal),
            observer=observer,
            server_urls=servers.urls,
            added_servers=[url for url in server_changes.added if url not in servers.urls],
            evaluation_urls=servers.evaluation_urls,
            teacher_url=servers.side_urls.get(TEACHER),
            opponent_urls=servers.opponent_urls(),
            run_folder=path,
            keys=keys,
            known=measured.up_to(folder.resumption.version),
        )
        await stack.enter_async_context(controller)
        site.hand_out(ControllerDisk(controller.queue_url, model_folder(recipe.model), path, keys))
        folder.controller_url.write_text(controller.queue_url)
        stack.callback(folder.controller_url.unlink, missing_ok=True)
        _record_start(journal, inputs, folder, digests)
        await stack.enter_async_context(_metering(journal, inputs, folder, servers, trainers, gpus, memory))
        _say_what_resumes(controller, folder, metrics, changed)
        if recipe.cluster.backend == "ray" and not recipe.cluster.shared_disk:
            log.warning(
                "%s is on the node %s alone (cluster.shared_disk is false): if that is lost, so is the run, "
                "and only there does the same command resume.",
                *(path, site.address),
            )
        status_writer = StatusWriter(
            folder.path,
            version=folder.resumption.version,
            total_steps=recipe.trainer.num_steps,
            queue=controller.queue,
            fleet=controller.fleet,
            waits=controller.context.waits,
            state=controller.context.state,
        )
        await stack.enter_async_context(status_writer.running())
        stack.push_async_callback(_end_processes, servers, trainers)
        await _run(controller, servers, trainers, folder, metrics, events, last_resort)
        if not controller.context.state.is_stopped:
            trackers.allow(FLUSH_SECONDS)
        journal.barrier_blocking()
        return _outcome(controller.context.state)


async def _end_processes(servers: LocalServers, trainers: TrainerRanks) -> None:
    """Side by side: each has its own time to end by itself."""
    await asyncio.gather(servers.stop(), trainers.stop())


def _outcome(state: RunPhase) -> Outcome:
    if state.is_finished:
        return "finished"
    if state.is_stopped:
        return "stopped"
    log.warning("not all of the evaluation after training was made. The same command makes what is missing.")
    return "unmeasured"


def _open_observer(
    stack: contextlib.AsyncExitStack,
    recipe: Recipe,
    folder: RunFolder,
    metrics: MetricsWriter,
    measured: Metrics,
    memory: MemoryMeter,
    events: RecentEvents,
) -> TerminalAndFile:
    """Opens the observer of the run; its alarms know what earlier starts measured and reported."""
    alarms = AlarmWatch(
        rules_of(
            recipe.alarms, groups_per_batch=recipe.rollout.groups_per_batch, critic_clip=recipe.critic_clip()
        ),
        run=folder.path.absolute().name,
    )
    alarms.restore(measured)
    trained = EmptySteps(recipe.trainer.num_steps)
    trained.restore(measured.up_to(folder.resumption.version).steps)
    live = LiveLine(recipe.trainer.num_steps, limits=recipe.alarms, has_rewards=not recipe.learns_from_rows())
    return stack.enter_context(
        TerminalAndFile(live, metrics, alarms, trained, memory, events, step=folder.resumption.version)
    )


async def _place_servers(
    recipe: Recipe, logs: Path, session: aiohttp.ClientSession, changes: ServerChanges, keys: Keys, site: Site
) -> LocalServers:
    """The run's servers where `site` has room for them, not yet started. Raises InputError."""
    num_evaluation = recipe.evaluation.num_servers
    side_models = read_side_models(recipe)
    needs = server_needs(recipe, changes, num_evaluation=num_evaluation, side_models=side_models)
    return LocalServers(
        recipe,
        model_folder=model_folder(recipe.model),
        logs=logs,
        session=session,
        num_evaluation=num_evaluation,
        side_models=side_models,
        changes=changes,
        keys=keys,
        site=site,
        places=await site.place(needs),
    )


async def _open_site(stack: contextlib.AsyncExitStack, recipe: Recipe, gpus: GpuMap) -> Site:
    """Where the run's processes start; closed with `stack`. Raises InputError."""
    if recipe.cluster.backend == "local":
        return LocalSite(recipe.cluster, gpus)
    # Only here: training on one machine does not need Ray.
    from asyncrl.launch.site.ray_cluster import open_cluster

    return await stack.enter_async_context(open_cluster(recipe))


def _reachable(recipe: Recipe, site: Site) -> Recipe:
    """With an address for the controller that every node of the site reaches."""
    cluster = recipe.cluster
    if cluster.bind_address != LOOPBACK or cluster.advertised_address is not None:
        return recipe
    return recipe.model_copy(update={"cluster": cluster.model_copy(update={"bind_address": site.address})})


def _record_start(journal: Journal, inputs: Inputs, folder: RunFolder, digests: dict[str, str]) -> None:
    recipe = inputs.recipe
    record_start(journal, folder.resumption.version, dump_recipe(recipe))
    record_data(journal, digests)
    if (digest := model_digest(model_folder(recipe.model))) is not None:
        journal.write(set_fact(MODEL, digest))
    unsampled = find_unsampled(model_folder(recipe.model), recipe.rollout.stop_tokens)
    journal.write(set_fact(UNSAMPLED, str(unsampled)))
    record_rendering(journal, inputs.rendered)


def _metering(
    journal: Journal,
    inputs: Inputs,
    folder: RunFolder,
    servers: LocalServers,
    trainers: TrainerRanks,
    gpus: GpuMap,
    memory: MemoryMeter,
) -> contextlib.AbstractAsyncContextManager[None]:
    """Records in what this start runs and, while it is open, what it uses."""
    started_seconds = time.time()
    used = {gpu.device: gpu.name for _, held in gpus.processes() for gpu in held}
    record = StartRecord(
        environment=describe_environment(list(used.values())),
        shape=read_shape(model_folder(inputs.recipe.model)),
        code=code_digests(inputs.recipe),
    )
    before = last_environment(journal)
    if before is not None and (words := changed_engines(before, record.environment)) is not None:
        log.warning("%s", words)
    record_environment(journal, started_seconds, folder.resumption.version, record)
    meter = UsageMeter(
        lambda: [*servers.processes.values(), *trainers.ranks],
        gpus={name: len(held) for name, held in gpus.processes()},
        num_gpus=len(used),
        memory=memory,
    )
    return metering(meter, journal, started_seconds)


def _say_what_resumes(
    controller: Controller, folder: RunFolder, metrics: MetricsWriter, changed: Sequence[str]
) -> None:
    for key in changed:
        log.warning("%s", words_of_change(key))
    num_admitted = controller.queue.num_admitted
    if not num_admitted:
        return
    version = folder.resumption.version
    for remark in folder.resumption.remarks:
        log.warning("%s", remark)
    metrics.resumed(version)
    log.warning("resuming %s at step %d: %d groups admitted", folder.path, version + 1, num_admitted)


async def _run(
    controller: Controller,
    servers: LocalServers,
    trainers: TrainerRanks,
    folder: RunFolder,
    metrics: MetricsWriter,
    events: RecentEvents,
    last_resort: LastResort,
) -> None:
    """Starts the processes and trains, until the end or a request to stop."""
    num_ranks = controller.recipe.trainer.num_processes
    stop_seconds = controller.recipe.trainer.stop_timeout_seconds
    stopping = stop_on_signals(controller.stop, last_resort, step_seconds=stop_seconds)
    async with stopping as stopped:
        beside = ", a teacher" if controller.recipe.teacher.num_started() else ""
        if opponents := controller.recipe.agent.opponents:
            beside += f", {len(opponents)} opponent(s)"
        words = f"starting {len(servers.urls)} rollout server(s){beside} and {num_ranks} trainer rank(s)"
        like = start_like(words, controller.recipe, model_folder(controller.recipe.model))
        with stage(words, like=like) as starting_both:
            await _start_both(controller, servers, trainers, stopped)
            starting_both.is_stopped = stopped.is_set()
        if not stopped.is_set():
            metrics.event("ready", step=folder.resumption.version)
            train = functools.partial(
                keep_training,
                trainers,
                controller,
                stopped,
                folder.path / CHECKPOINTS,
                stop_seconds=stop_seconds,
            )
            try:
                await controller.run(train)
            except Exception as error:
                record_cause(folder.path, first_cause(error), controller.describe(), events)
                raise
    last_resort.next_phase()


async def _start_both(
    controller: Controller, servers: LocalServers, trainers: TrainerRanks, stopped: asyncio.Event
) -> None:
    """Side by side, or servers first where they share GPUs: each measures what is free while it starts."""
    is_colocated, told = controller.recipe.placement.colocated, controller.fleet.members.note_restart
    try:
        if is_colocated:
            await wait_for_start(servers.start(told), stopped, None)
        if not stopped.is_set():
            await trainers.start(controller.queue_url)
        if not is_colocated:
            await wait_for_start(servers.start(told), stopped, trainers)
    except (ServerError, TrainerFailed) as error:
        raise InputError(f"The run cannot start: {error}") from error
