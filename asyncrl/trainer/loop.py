"""The training loop: take, step, publish, save - the only finite loop of a run.

Version v is the weights after v steps; only this loop increments it. It waits for `take`, which the
controller answers when enough groups are ready, and for the servers' replies to a publish. The first rank
alone speaks to the queue and the servers; the others follow its broadcasts.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

from asyncrl.recipe import Recipe
from asyncrl.replay.client import QueueClient
from asyncrl.replay.wire import CommitRequest, PublishOutcome, TakeReply, TakeRequest
from asyncrl.trainer import ranks
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.convert import load_weights
from asyncrl.trainer.export import export_model, open_weights
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.publish import Publisher
from asyncrl.types import PolicyVersion

log = logging.getLogger(__name__)


def train(learner: Learner, recipe: Recipe, *, run_folder: Path, queue_url: str) -> PolicyVersion:
    """Trains until the queue ends the run; returns the last version, checkpointed and exported."""
    base, section = Path(recipe.model.path), recipe.trainer
    checkpoints = Checkpoints(run_folder / "checkpoints", num_kept=section.keep_checkpoints)
    publisher = Publisher(run_folder / "publications", base=base, interrupt=recipe.rollout.interrupt)
    queue = QueueClient(queue_url) if ranks.is_first() else None
    version = saved = _restore(learner, checkpoints, queue, base)
    outcomes: dict[str, PublishOutcome] = {}
    metrics: dict[str, float] | None = None
    publication = publisher.write(version, learner.model)
    log.info("ready: version %d of %d", version, section.num_steps)
    while True:
        watch = Stopwatch()
        with watch("wait_seconds"):
            reply = _take(queue, TakeRequest(version, outcomes, str(publication.folder), metrics))
        # The last take reports the last step; the controller has nothing left to give.
        if reply.batch is None or version >= section.num_steps:
            break
        assert reply.batch.step == version, f"asked for step {version}, was given {reply.batch.step}"
        with watch("train_seconds"):
            metrics = learner.step(reply.batch)
        version += 1
        with watch("publish_seconds"):
            publication = publisher.write(version, learner.model)
            outcomes = publisher.install(publication, reply.servers)
        with watch("checkpoint_seconds"):
            if version % section.checkpoint_every_steps == 0 or version == section.num_steps:
                saved = _save(learner, checkpoints, queue, version)
        metrics |= watch.seconds | {"step": float(version)}
        metrics["tokens_per_second"] = metrics["num_tokens"] / metrics["train_seconds"]
        _report(metrics, outcomes)
    if saved != version:
        _save(learner, checkpoints, queue, version)
    if version > 0:
        folder = checkpoints.path(version) / "hf"
        export_model(learner.model, base=base, target=folder)
        log.info("done: version %d as a Hugging Face folder in %s", version, folder)
    publisher.close()
    return version


class Stopwatch:
    """Wall-clock seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begin


def _restore(
    learner: Learner, checkpoints: Checkpoints, queue: QueueClient | None, base: Path
) -> PolicyVersion:
    """The newest checkpoint, else the base model. A crash between a save and its commit is mended here."""
    version = checkpoints.load_newest(learner)
    if version is None:
        load_weights(learner.model, open_weights(base))
        learner.weights_changed()
        return 0
    if queue is not None:
        queue.commit(CommitRequest(version, str(checkpoints.path(version))))
    return version


def _take(queue: QueueClient | None, request: TakeRequest) -> TakeReply:
    return ranks.broadcast(queue.take(request) if queue is not None else None)


def _save(
    learner: Learner, checkpoints: Checkpoints, queue: QueueClient | None, version: PolicyVersion
) -> PolicyVersion:
    """Saves, and only then commits: a batch is trained when a checkpoint on disk holds it."""
    folder = checkpoints.save(learner, version)
    if queue is not None:
        queue.commit(CommitRequest(version, str(folder)))
    return version


def _report(metrics: dict[str, float], outcomes: dict[str, PublishOutcome]) -> None:
    log.info(
        "step %(step)d: loss %(loss).4f, gradient norm %(grad_norm).3g, %(num_tokens)d tokens in "
        "%(train_seconds).2f s, waited %(wait_seconds).2f s, published in %(publish_seconds).2f s",
        metrics,
    )
    for url, outcome in outcomes.items():
        if not outcome.is_installed:
            log.warning("not installed on %s: %s", url, outcome.detail)
