"""The arms of the ablation: which keys of a recipe each of them sets, and which term it is a test of."""

import itertools
from dataclasses import dataclass
from typing import Any

WITHOUT_CLIP = {
    "algorithm.surrogate": "ratio",
    "algorithm.clip_around": "behavior",
    "algorithm.importance_weight": "none",
}
"""Ratios to the policy that sampled, bounded by nothing but the arm's own term."""
WHOLE_RATIO = {"algorithm.importance_weight": "truncated", "algorithm.importance_cap": 100.0}
"""The whole ratio of the proximal policy to the one that sampled: its cap is out of reach."""


@dataclass(frozen=True)
class Arm:
    """Keys beyond those of the axis."""

    keys: dict[str, Any]
    term: str | None = None
    """The term of `asyncrl algorithms` that it tests, as "key=name"."""
    reference: str = "none"
    """The arm that its term is compared with: equal but for the term."""


ARMS: dict[str, Arm] = {
    "none": Arm({"algorithm.importance_weight": "none"}),
    "truncated": Arm(
        {"algorithm.importance_weight": "truncated", "algorithm.importance_cap": 2.0},
        "algorithm.importance_weight=truncated",
    ),
    "masked": Arm({"algorithm.importance_weight": "masked"}, "algorithm.importance_weight=masked"),
    "sequence_masked": Arm(
        {"algorithm.importance_weight": "sequence_masked"}, "algorithm.importance_weight=sequence_masked"
    ),
    "geometric": Arm(
        # A hundredth, the default, is the mismatch of engines; stale data need a wider range.
        {
            "algorithm.importance_weight": "none",
            "algorithm.rejection": ["geometric_mean"],
            "algorithm.geometric_low": 0.9,
            "algorithm.geometric_high": 1.1,
        },
        "algorithm.rejection=geometric_mean",
    ),
    "decoupled": Arm(WHOLE_RATIO),
    "a3po": Arm(
        WHOLE_RATIO | {"algorithm.proximal": "interpolated"},
        "algorithm.proximal=interpolated",
        reference="decoupled",
    ),
    "dppo": Arm(WITHOUT_CLIP | {"algorithm.trust_region": ["dppo_tv"]}, "algorithm.trust_region=dppo_tv"),
    "ipo": Arm(WITHOUT_CLIP | {"algorithm.trust_region": ["ipo"]}, "algorithm.trust_region=ipo"),
    "m2po": Arm(
        WITHOUT_CLIP | {"algorithm.rejection": ["second_moment"]}, "algorithm.rejection=second_moment"
    ),
    "m2po_clip": Arm(
        WITHOUT_CLIP | {"algorithm.trust_region": ["second_moment_clip"]},
        "algorithm.trust_region=second_moment_clip",
    ),
    "vcpo": Arm(
        {
            "algorithm.importance_weight": "truncated",
            "algorithm.importance_cap": 2.0,
            "trainer.learning_rate_scaling": "ess",
        },
        reference="truncated",
    ),
}
"""Those of staleness. In all that do not name a surrogate PPO clips around the policy before the batch.
decoupled is Hilton et al. 2022 (arXiv 2110.00641)."""
MAIN = ("none", "truncated", "decoupled", "dppo")
"""The arms that matter: no correction, our default, the whole ratio, a trust region in place of a clip."""
FACTORS: dict[str, Arm] = {
    f"{advantage}/{reduction}/{clip}": Arm(
        {
            "algorithm.importance_weight": "truncated",
            "algorithm.advantage": advantage,
            "algorithm.reduction": reduction,
            "algorithm.clip_high": clip,
        }
    )
    for advantage, reduction, clip in itertools.product(
        ("grpo", "dr_grpo", "rloo"), ("token_mean", "sequence_mean", "dr_grpo_constant"), (0.2, 0.28)
    )
}
"""Advantages x reductions x clips at lag 0, all with truncated weights."""


def arm_of(name: str) -> Arm:
    return ARMS[name] if name in ARMS else FACTORS[name]
