"""The tables of docs/planning.md are what `asyncrl plan` prints."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = (DOCS.parents[1] / "docs" / "planning.md").read_text(encoding="utf-8")
sys.path.insert(0, str(DOCS))

from planned_models import MODELS, PUBLISHED, budget_lines, cell, fit_lines, hours_lines  # noqa: E402


def test_models_fit_as_the_page_says(tmp_path: Path) -> None:
    lines = fit_lines(tmp_path)
    assert "\n".join(lines) in PAGE and len(lines) == 2 + len(MODELS)


def test_published_runs_are_planned_as_the_page_says(tmp_path: Path) -> None:
    lines = hours_lines(tmp_path)
    assert "\n".join(lines) in PAGE and len(lines) == 2 + len(PUBLISHED)


def test_a_step_costs_what_the_page_says(tmp_path: Path) -> None:
    page = (DOCS.parents[1] / "docs" / "measurements" / "speed.md").read_text(encoding="utf-8")
    assert "\n".join(budget_lines(tmp_path)) in page


def test_a_line_of_the_command_becomes_a_cell() -> None:
    line = (
        "    16  apart, Adam on the host        65.7 GB   71.9 GB  36.0 GB  trainer.num_processes=12 "
        "trainer.parallel.pipeline=3 trainer.parallel.expert=4 serving.num_servers=2 "
        "serving.tensor_parallel_size=2 trainer.optimizer_cpu_offload=true"
    )
    assert cell(line) == "P3 E4: 12 + 2 x 2, 66 GB, host 36"
    assert cell("     8  does not fit 80 GB each") == "no"
