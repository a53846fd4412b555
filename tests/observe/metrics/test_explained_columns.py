"""The catalog of metrics explains what a step reports: every column, and no other."""

import re
from pathlib import Path
from typing import get_type_hints

from asyncrl.observe.metrics import step_metrics, turn_metrics
from asyncrl.observe.metrics.columns import EVALUATIONS, groups
from asyncrl.rollout.teacher import TeacherMetrics

SOURCE = Path(__file__).parents[3] / "asyncrl"


def test_the_catalog_explains_each_column_of_a_step_and_no_other() -> None:
    explained = {column for group, found in groups().items() if group != EVALUATIONS for column in found}
    made = columns_of_a_step()
    assert made - explained == set()
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    words = set(re.findall(r"\w+", source))
    # Names are put together of a kind of model or of time, and the rest.
    composed = re.compile(r"^(judge|heldout)_|(_total|_at_start|_\*)$")
    unknown = {column for column in explained - made if column not in words}
    assert {composed.sub("", column) for column in unknown} <= words


def columns_of_a_step() -> set[str]:
    """Of the controller, the trainer and the critic; families by outcome or verifier with a star."""
    # Not above: every process of a run of tests imports this file, and Megatron takes seconds.
    import torch

    from asyncrl.trainer.parts.critic import SUMS, value_metrics
    from asyncrl.trainer.step import exact_split, teacher_distance
    from asyncrl.trainer.step.diagnostics import MAXIMA, NUM_SUMS, step_diagnostics

    known = set(step_diagnostics(torch.zeros(NUM_SUMS), torch.zeros(len(MAXIMA))))
    known |= exact_split.metrics(
        torch.ones(exact_split.NUM_SUMS), dict.fromkeys(exact_split.MAXIMA, 1.0)
    ).keys()
    known |= teacher_distance.metrics(torch.ones(teacher_distance.NUM_SUMS)).keys()
    known |= get_type_hints(TeacherMetrics).keys()
    known |= value_metrics(torch.zeros(len(SUMS))).keys()
    known |= {"critic_grad_norm", "critic_learning_rate", "critic_skipped_steps", "critic_loss_scale"}
    known |= get_type_hints(step_metrics.Staleness).keys()
    known |= get_type_hints(step_metrics.Spike).keys()
    known |= {f"{name}_*" for name in get_type_hints(turn_metrics.Sources)}
    named = "pilots_stopped_share_by_source_*", "reflection_words_mean_by_outcome_*"
    known |= {*named, "reflection_words_mean_by_word_*"}
    families = (
        "score_mean_by_part_*",
        "reward_mean_by_outcome_*",
        "response_tokens_mean_by_outcome_*",
        "outcomes_*",
    )
    return known | {*families, "outcomes_by_verifier_*"}
