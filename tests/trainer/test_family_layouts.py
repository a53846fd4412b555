"""The steps of each family on two ranks, in each layout, are those of one process."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes.layout_runs import CASES_PER_SPAWN, assert_same_steps, run_cases
from fakes.layout_worker import take_steps
from fakes.models import VOCABULARY, write_tokenizer
from fakes.template import Template
from families.known import tiny, write_tiny
from families.properties import of_each_family

LAYOUTS = {
    # Tensor-parallel experts need sequence_parallel.
    "tensor": {"tensor": 2, "sequence_parallel": True},
    "pipeline": {"pipeline": 2},
    "context": {"context": 2},
    "expert": {"expert": 2},
}
SIZES = {"num_hidden_layers": 4, "vocab_size": VOCABULARY + 1}
"""Two kinds of layers in each stage; the last row is past the tokenizer: no layout samples it."""
Case = tuple[str, str]
"""Architecture and layout."""


class Steps:
    """Takes the steps of several cases in one spawn, when the first of them is asked for."""

    def __init__(self, cases: Sequence[Case], template: Template, root: Path) -> None:
        self._batches = [
            cases[first : first + CASES_PER_SPAWN] for first in range(0, len(cases), CASES_PER_SPAWN)
        ]
        self._template = template
        self._root = root

    def compare(self, architecture: str, layout: str) -> None:
        together = self._root / f"{architecture}, {layout}"
        if not together.is_dir():
            (batch,) = (each for each in self._batches if (architecture, layout) in each)
            cases = [
                {
                    "name": f"{name}, {key}",
                    "model": str(self._model(name)),
                    "trainer": {"num_processes": 2, "parallel": LAYOUTS[key], **tiny(name).trainer},
                }
                for name, key in batch
            ]
            run_cases(cases, 2, self._template, self._root)
        assert_same_steps(together, self._alone(architecture))

    def _model(self, architecture: str) -> Path:
        folder = self._root / "models" / architecture
        if not folder.is_dir():
            write_tokenizer(write_tiny(folder, architecture, **SIZES), range(VOCABULARY))
        return folder

    def _alone(self, architecture: str) -> Path:
        result = self._root / architecture
        if not result.is_dir():
            take_steps(self._model(architecture), dict(tiny(architecture).trainer), result)
        return result


@pytest.fixture(scope="module")
def steps(
    request: pytest.FixtureRequest, template: Template, tmp_path_factory: pytest.TempPathFactory
) -> Steps:
    """Counts of the tests that were selected."""
    ours = [item for item in request.session.items if item.path == request.path]
    cases = [(item.callspec.params["architecture"], item.originalname.split("_")[1]) for item in ours]
    return Steps(cases, template, tmp_path_factory.mktemp("families"))


@of_each_family("TP 2")
def test_tensor_ranks_take_the_steps_of_one(architecture: str, steps: Steps) -> None:
    steps.compare(architecture, "tensor")


@of_each_family("PP 2")
def test_pipeline_ranks_take_the_steps_of_one(architecture: str, steps: Steps) -> None:
    steps.compare(architecture, "pipeline")


@of_each_family("CP 2")
def test_context_ranks_take_the_steps_of_one(architecture: str, steps: Steps) -> None:
    steps.compare(architecture, "context")


@of_each_family("EP 2")
def test_expert_ranks_take_the_steps_of_one(architecture: str, steps: Steps) -> None:
    steps.compare(architecture, "expert")
