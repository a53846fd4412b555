"""Steps of adapters on each family that takes them: what is published is what the trainer has."""

from pathlib import Path

import pytest
import torch
from fakes.learners import make_learner
from fakes.models import random_batch, reference_logprobs, reference_model
from families.known import tiny, write_tiny
from families.properties import of_each_family

from asyncrl.trainer.network.export import export_model, read_weights
from asyncrl.trainer.packing.batch import make_micro_batch
from asyncrl.trainer.publishing.host_weights import digests_of
from asyncrl.trainer.publishing.publish import Publisher

TEMPERATURE = 0.7


@of_each_family("LoRA")
def test_merged_weights_have_the_log_probs_of_the_adapted_policy(architecture: str, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model", architecture)
    learner = make_learner(
        folder,
        trainer={"learning_rate": 3e-2},
        model={"lora": {"rank": 2, "alpha": 8.0, **tiny(architecture).lora}},
    )
    batch = random_batch(0, longest=40, temperature=TEMPERATURE)
    micro = make_micro_batch(batch.sequences, 0)

    def found() -> torch.Tensor:
        (logprobs,) = learner.passes.logprobs(learner.parallel_chunks, [micro], TEMPERATURE)
        return logprobs

    before = found()
    # B begins as zero: A moves from the second step on.
    for step in range(2):
        learner.step(random_batch(step, temperature=TEMPERATURE))
    after = found()
    assert (after - before).abs().max() > 0.01, "the steps changed too little"
    export_model(learner.model, base=folder, target=tmp_path / "export")
    publisher = Publisher(tmp_path / "publications", base=folder, failed=pytest.fail)
    publication = publisher.write(2, learner.model)
    publisher.close()
    assert publication.digests == digests_of(dict(read_weights(tmp_path / "export")))
    assert publication.digests == digests_of(dict(read_weights(publication.folder)))
    # The other kernels of transformers leave soft caps out.
    reference = reference_model(tmp_path / "export", attn_implementation="eager")
    with torch.no_grad():
        expected = torch.cat([reference_logprobs(reference, one, TEMPERATURE) for one in batch.sequences])
    assert (after - expected).abs().max() < 1e-4
