"""One gloo process group of one rank for all tests in this process, and trainers forked from a template."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import launch_trainer
from fakes.models import write_model
from fakes.template import Template

from asyncrl.trainer.ranks import ranks
from asyncrl.trainer.ranks.megatron import import_megatron

# Before the tests here are imported, which every process of a run of tests does.
import_megatron()


@pytest.fixture(scope="session", autouse=True)
def process_group() -> Iterator[None]:
    # What `start` sets is for this process alone, not for the runs that other tests start from it.
    before = dict(os.environ)
    ranks.start(threads=1, seed=0)
    os.environ.clear()
    os.environ.update(before)
    yield
    ranks.stop()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that tests read and never write."""
    return write_model(tmp_path_factory.mktemp("model"))


TRAINER = (
    "fakes.models",
    "asyncrl.trainer.checkpoints.checkpoint",
    "asyncrl.trainer.step.learner",
    "asyncrl.trainer.loop",
)


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    with Template(*TRAINER) as template:
        yield template


@pytest.fixture(scope="module")
def forked_trainers(template: Template) -> Iterator[None]:
    """`start_trainer` forks: for modules whose subject is not how a trainer's process begins."""
    launch_trainer.TEMPLATE = template
    yield
    launch_trainer.TEMPLATE = None
