"""The training loop: take, step, publish, save - the only finite loop of a run.

Version v is the weights after v steps; only this loop increments it. It waits for `take`, which the
controller answers when enough groups are ready, for the servers' replies to a publish (with interrupt: drain
for the end of all trajectories before), and for the copy that a checkpoint is written from. The first rank
alone speaks to the queue and the servers; the others follow its broadcasts.
"""

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from asyncrl.model.source import model_folder
from asyncrl.recipe import Recipe
from asyncrl.records import Batch, PolicyVersion, PublishOutcome, ScoredSequence
from asyncrl.system.places import CHECKPOINTS
from asyncrl.trainer.bootstrap import end_now
from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
from asyncrl.trainer.network.export import export_version
from asyncrl.trainer.publishing.publish import Publisher
from asyncrl.trainer.publishing.transports import make_publisher
from asyncrl.trainer.ranks import ranks
from asyncrl.trainer.step.learner import Learner
from asyncrl.wire.access import own_token
from asyncrl.wire.file_service import folder_url
from asyncrl.wire.messages import (
    CommitRequest,
    DrainRequest,
    QueueClient,
    TakeReply,
    TakeRequest,
    decode_take,
)

log = logging.getLogger(__name__)


def train(
    learner: Learner, recipe: Recipe, *, run_folder: Path, queue_url: str, files_url: str = ""
) -> PolicyVersion:
    """Trains until the queue ends the run; returns the last version, checkpointed and exported.

    `files_url` hands `run_folder` out, where the controller does not see it."""
    base, section = model_folder(recipe.model), recipe.trainer
    controller = ControllerLink(queue_url, run_folder, files_url)
    checkpoints = Checkpoints(
        run_folder / CHECKPOINTS,
        num_kept=section.keep_checkpoints,
        saves_in_background=section.saves_in_background,
        best_of_every=recipe.evaluation.every_steps if section.keep_best else 0,
        committed=controller.commit,
    )
    publisher: Publisher = make_publisher(
        recipe, run_folder, service_url=lambda: controller.files_url or controller.queue_url, failed=end_now
    )
    queue = controller.connect() if ranks.is_first() else None
    version = saved = checkpoints.load_newest(learner)
    if version > 0 and ranks.is_first():
        # A crash between a save and its commit is repaired here.
        controller.commit(version, checkpoints.path(version))
    outcomes: dict[str, PublishOutcome] = {}
    metrics: dict[str, float] | None = None
    # Where rows are learned there may be no server: a version is published when an evaluation asks for it.
    publishes_all = not recipe.learns_from_rows()
    publication = publisher.write(version, learner.model) if publishes_all else None
    heldout = HeldOutLoss(learner, recipe)
    log.info("ready: version %d of %d", version, section.num_steps)
    while True:
        watch = Stopwatch()
        if recipe.placement.colocated:
            learner.free_cached_memory()
        with watch("wait_seconds"):
            place = "" if publication is None else controller.place_of(publication.folder)
            request = TakeRequest(version, outcomes, place, metrics, **learner.sent())
            while (reply := _take(queue, request)).must_republish:
                if publication is not None:
                    log.warning("%s does not verify on a server: it is written again", publication.folder)
                publication = publisher.write(version, learner.model)
                request = replace(request, publication_folder=controller.place_of(publication.folder))
        checkpoints.check()
        if ranks.is_first():
            checkpoints.heldout.add(reply.heldout if publishes_all else heldout.scores)
        # The last take reports the last step; the controller has nothing left to give.
        if reply.batch is None or version >= section.num_steps:
            break
        assert reply.batch.taken_version == version, (version, reply.batch.taken_version)
        with watch("train_seconds"):
            measured = heldout.before(version, reply.heldout_rows)
            metrics = learner.step(reply.batch) | measured
        version += 1
        metrics |= heldout.after(version)
        publication = None
        with watch("publish_seconds"):
            if publishes_all:
                publication = publisher.prepare(version, learner.model)
        if recipe.rollout.interrupt == "drain":
            with watch("drain_seconds"):
                _drain(queue, version)
        with watch("publish_seconds"):
            if publication is not None:
                outcomes = publisher.install(publication, learner.model, reply.servers, own=reply.own_servers)
        if _is_checkpointed(version, recipe):
            with watch("checkpoint_seconds"):
                checkpoints.begin(learner, version)
            saved = version
        metrics |= watch.seconds | {"step": float(version)}
        metrics |= publisher.columns(outcomes) if publishes_all else {}
        metrics |= learner.passes.utilisation(watch.seconds["train_seconds"])
        metrics["tokens_per_second"] = metrics["num_tokens"] / metrics["train_seconds"]
        _report(metrics, outcomes)
    if saved != version:
        checkpoints.begin(learner, version)
    checkpoints.wait()
    if version > 0:
        _export(learner, checkpoints, version, base, controller)
        if section.keep_best:
            _export_best(learner, checkpoints, version, base, controller)
    publisher.close()
    return version


class HeldOutLoss:
    """The loss on held-out rows, where rows are learned: before the first step, and after evaluated ones.

    A mean over all learned tokens of all rows, as the loss of a step is over its batch. Columns of a step;
    none without held-out rows. A call of every rank.
    """

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._learner = learner
        self._recipe = recipe
        self._rows: Sequence[ScoredSequence] = ()
        self.scores: dict[PolicyVersion, float] = {}
        """Version -> its held-out loss, negative: higher is better."""

    def before(self, version: PolicyVersion, rows: Sequence[ScoredSequence]) -> dict[str, float]:
        """Before a step; the first batch of a process comes with `rows`. The base model's loss, once."""
        self._rows = rows or self._rows
        if version or not self._rows:
            return {}
        return {f"{name}_at_start": value for name, value in self._measured(version).items()}

    def after(self, version: PolicyVersion) -> dict[str, float]:
        """After the step that made `version`, where it is one to evaluate."""
        every, last = self._recipe.evaluation.every_steps, self._recipe.trainer.num_steps
        is_due = version == last or (every > 0 and version % every == 0)
        if not (is_due and self._rows):
            return {}
        found = self._measured(version)
        self.scores[version] = -found["heldout_loss"]
        return found

    def _measured(self, version: PolicyVersion) -> dict[str, float]:
        found = self._learner.measure(Batch(version, 1.0, list(self._rows)))
        kept = ("loss", "perplexity", "dpo_accuracy", "dpo_margin")
        return {f"heldout_{name}": found[name] for name in kept if name in found}


class Stopwatch:
    """Wall-clock seconds by name, added up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin


def _is_checkpointed(version: PolicyVersion, recipe: Recipe) -> bool:
    """Whether this version gets a checkpoint: every n-th, the last and, if the best is kept, each evaluated
    one."""
    section, every = recipe.trainer, recipe.evaluation.every_steps
    is_evaluated = section.keep_best and every > 0 and version % every == 0
    return version % section.checkpoint_every_steps == 0 or version == section.num_steps or is_evaluated


@dataclass(frozen=True, slots=True)
class ControllerLink:
    """How this trainer speaks to the controller, and names folders to it."""

    queue_url: str
    run_folder: Path
    files_url: str
    """Hands out the run folder; empty where the controller sees it."""

    def connect(self) -> QueueClient:
        return QueueClient(self.queue_url, token=own_token())

    def place_of(self, folder: Path) -> str:
        """The folder's place as told to the controller: its path, or the URL to fetch it from."""
        return folder_url(self.files_url, folder, self.run_folder) if self.files_url else str(folder)

    def commit(self, version: PolicyVersion, folder: Path) -> None:
        """Tells the queue that a checkpoint on disk holds the batches before `version`. From any thread."""
        # Not training's connection, which is busy in a take; and one that idles between saves gets closed.
        queue = self.connect()
        try:
            queue.commit(CommitRequest(version, self.place_of(folder)))
        finally:
            queue.close()


def _take(queue: QueueClient | None, request: TakeRequest) -> TakeReply:
    def take() -> np.ndarray:
        assert queue is not None
        return np.frombuffer(queue.take_encoded(request), np.uint8)

    # Each rank decodes it: arrays are quicker to send and to read than objects.
    return decode_take(ranks.first_alone(take).data)


def _drain(queue: QueueClient | None, version: PolicyVersion) -> None:
    """Waits until nothing is generated any more; generation starts again at the next take."""

    def drain() -> None:
        assert queue is not None
        queue.drain(DrainRequest(version))

    ranks.first_alone(drain)


def _export(
    learner: Learner, checkpoints: Checkpoints, version: PolicyVersion, base: Path, controller: ControllerLink
) -> None:
    checkpoint = checkpoints.path(version)
    folder = export_version(learner.model, checkpoint, base=base, base_name=learner.base_name)
    if controller.files_url and ranks.is_first():
        # Its copy of the checkpoint gets the export too.
        controller.commit(version, checkpoint)
    log.info("done: version %d as a Hugging Face folder in %s", version, folder)


def _export_best(
    learner: Learner, checkpoints: Checkpoints, last: PolicyVersion, base: Path, controller: ControllerLink
) -> None:
    """Exports the best checkpoint on held-out tasks; leaves its weights in `learner`."""
    best = ranks.broadcast(checkpoints.best() if ranks.is_first() else None)
    if best is None or best == last:
        return
    checkpoints.load(learner, best)
    log.info("version %d did best on held-out data: %.4f", best, checkpoints.heldout.accuracy(best) or 0.0)
    _export(learner, checkpoints, best, base, controller)


def _report(metrics: dict[str, float], outcomes: dict[str, PublishOutcome]) -> None:
    log.info(
        "step %(step)d: loss %(loss).4f, gradient norm %(grad_norm).3g, %(num_tokens)d tokens in "
        "%(train_seconds).2f s, waited %(wait_seconds).2f s, published in %(publish_seconds).2f s",
        metrics,
    )
    for url, outcome in outcomes.items():
        if outcome.detail:
            healed = "installed by way of more" if outcome.is_installed else "not installed"
            log.warning("%s on %s: %s", healed, url, outcome.detail)
