"""Checkpoints from a GPU: copied into page-locked memory, and restored."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fakes.checked_device import is_there, of_cuda_alone
from fakes.learners import copy_weights, make_learner
from fakes.models import random_batch, write_model

pytestmark = [pytest.mark.gpu, is_there]


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    from asyncrl.trainer.ranks import ranks

    ranks.start(threads=1, seed=0)
    yield
    ranks.stop()


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("is_distributed", [False, True])
def test_a_restored_learner_is_the_same_and_takes_the_same_step(
    tmp_path: Path, in_background: bool, is_distributed: bool
):
    from asyncrl.trainer.checkpoints.checkpoint import Checkpoints

    folder = write_model(tmp_path / "model", hidden_size=64, head_dim=32, intermediate_size=128)
    trainer = {"parallel": {"distributed_optimizer": is_distributed}}
    learner = make_learner(folder, trainer=trainer, model={"dtype": "bfloat16"})
    checkpoints = Checkpoints(tmp_path / "checkpoints", num_kept=1, saves_in_background=in_background)
    learner.step(random_batch(0))
    # Training changes what is being copied as soon as it may.
    checkpoints.begin(learner, 1)
    saved = copy_weights(learner.model)
    learner.step(random_batch(1))
    checkpoints.wait()
    again = make_learner(folder, trainer=trainer, model={"dtype": "bfloat16"})
    assert checkpoints.load_newest(again) == 1
    found = copy_weights(again.model)
    assert all(torch.equal(found[name], tensor) for name, tensor in saved.items())
    again.step(random_batch(1))
    wanted, found = copy_weights(learner.model), copy_weights(again.model)
    # Sums on a GPU are not the same to the bit each time.
    assert all(torch.allclose(found[name], tensor, atol=1e-3) for name, tensor in wanted.items())


@of_cuda_alone
def test_large_tensors_are_copied_into_page_locked_memory():
    from asyncrl.trainer.checkpoints.training_state import SMALLEST_PINNED_BYTES, empty_on_host

    large = torch.randn(SMALLEST_PINNED_BYTES // 4, device="cuda")
    host = empty_on_host(large)
    assert host.is_pinned() and not empty_on_host(large[:8]).is_pinned()
    host.copy_(large, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    assert torch.equal(host, large.cpu())
