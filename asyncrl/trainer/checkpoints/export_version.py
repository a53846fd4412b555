"""A checkpoint as a Hugging Face folder beside its state, and its adapter alone as `peft` loads it."""

import logging
from pathlib import Path

from asyncrl.run.checkpoints import EXPORT
from asyncrl.system.files import writing
from asyncrl.trainer.network.adapters import export_adapter
from asyncrl.trainer.network.export import export_model
from asyncrl.trainer.step.learner import Learner

log = logging.getLogger(__name__)


def export_version(learner: Learner, checkpoint: Path, *, base: Path) -> Path:
    """The folder of the learner's weights, in `checkpoint`; configuration and tokenizer are those of `base`.
    A call of every rank. Raises DiskError."""
    folder = checkpoint / EXPORT
    with writing(f"{checkpoint.name} as a Hugging Face folder", checkpoint):
        export_model(learner.model, base=base, target=folder)
        _export_adapter(learner, checkpoint / "adapter")
    return folder


def _export_adapter(learner: Learner, folder: Path) -> None:
    """Writes what `peft` loads, where there is an adapter."""
    if learner.model.lora is None:
        return
    export_adapter(learner.model, base=learner.base_name, target=folder)
    log.info("the adapter alone, as peft loads it, in %s", folder)
