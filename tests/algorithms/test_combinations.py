"""Every combination of terms that a recipe admits, against an oracle in plain floats.

The oracle knows the formulas of the docstrings and nothing of tensors or of the code that it judges: what
advantage and weight each token has, which survive, what trust regions and the clip leave, what KL adds, and
so the gradient of each token's own log-prob, in float64. Shapes: T response tokens.
"""

import dataclasses
import itertools
import math
import random
from typing import Any

import pytest
import torch
from fakes.advantage_formulas import clip_reach, of_group, of_tokens
from fakes.loss_inputs import gradient, make_inputs, with_second_moment_bound
from pydantic import ValidationError

from asyncrl.algorithms.advantages import ADVANTAGES, GroupRewards
from asyncrl.algorithms.batch_advantages import finish_batch
from asyncrl.algorithms.divergences import DIVERGENCES, WEIGHTED_DIVERGENCES
from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.rejections import REJECTIONS, TRUST_REGIONS
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.algorithms.values import end_rewards, generalised_advantages
from asyncrl.algorithms.weights import REDUCTIONS, WEIGHTS
from asyncrl.recipe import Algorithm
from asyncrl.records import Batch, ScoredSequence

LENGTHS = (5, 3, 6, 1, 4, 2, 3, 5, 2)
"""Three groups of three sequences."""
REWARDS = (1.0, 0.0, 0.25, 0.0, 1.0, 0.5, 0.0, 0.75, 1.0)
IDS = [i for i, length in enumerate(LENGTHS) for _ in range(length)]
OWN = [[t for t in range(len(IDS)) if IDS[t] == i] for i in range(len(LENGTHS))]
MASKED = 7
"""A token that does not count."""
LONGEST = 8
SETTINGS = {"mask_low": 0.7, "mask_high": 1.6, "clip_low": 0.15, "clip_high": 0.25}
CAP, GEOMETRIC_LOW, GEOMETRIC_HIGH, VETO_LOW, SECOND_MOMENT = 1.5, 0.9, 1.3, 0.55, 0.03
SEQUENCE_KL, BAND_LOW, BAND_HIGH = 0.015, 0.75, 1.4
TV, KL, PROBABILITY, KPOP, SEQUENCE, TAU_POSITIVE, TAU_NEGATIVE = 0.06, 0.0105, 0.08, 0.011, 0.05, 1.2, 1.4
NUMBERS: dict[str, dict[str, float]] = {
    **dict.fromkeys(("truncated", "sequence_truncated", "sequence_masked"), {"cap": CAP}),
    "geometric_mean": {"low": GEOMETRIC_LOW, "high": GEOMETRIC_HIGH},
    **dict.fromkeys(("second_moment", "second_moment_clip"), {"limit": SECOND_MOMENT}),
    "token_veto": {"low": VETO_LOW},
    "sequence_kl": {"limit": SEQUENCE_KL},
    **dict.fromkeys(("pass_at_k", "pass_at_k_training"), {"k": 2}),
    "dppo_tv": {"limit": TV},
    "dppo_kl": {"limit": KL},
    "ipo": {"limit": PROBABILITY},
    "kpop": {"limit": KPOP},
    "band": {"low": BAND_LOW, "high": BAND_HIGH},
    "off_policy_sequence": {"limit": SEQUENCE},
    "sapo": {"tau_positive": TAU_POSITIVE, "tau_negative": TAU_NEGATIVE},
}
"""Tight enough that each rejects, caps or clips some of the tokens below, and not all. Between the two
directions of a binary KL, each is the larger for some token beyond its limit."""
CHOSEN_REJECTIONS = ([], *([name] for name in REJECTIONS), sorted(REJECTIONS))
CHOSEN_REGIONS = ([], *([name] for name in TRUST_REGIONS), sorted(TRUST_REGIONS))
KL_ESTIMATORS = (*DIVERGENCES, *WEIGHTED_DIVERGENCES)
PENALTIES: list[dict[str, Any]] = [
    {},
    {"behavior_kl_coefficient": 0.3},
    *({"kl": {"coefficient": 0.2, "estimator": name}} for name in KL_ESTIMATORS),
]


PARTS = [{"reward": reward, "short": 1 / length} for reward, length in zip(REWARDS, LENGTHS, strict=True)]
VALUES = [0.1 * (t % 5) for t in range(len(IDS))]
"""A critic's."""
GROUPS = (slice(0, 3), slice(3, 6), slice(6, 9))


def chosen(**names: Any) -> Algorithm:
    """The terms of these names, with the settings."""

    def with_numbers(value: Any) -> Any:
        if isinstance(value, list):
            return [with_numbers(name) for name in value]
        return {"name": value, **NUMBERS[value]} if isinstance(value, str) and value in NUMBERS else value

    settings = {"importance_weight": "truncated", **SETTINGS, **names}
    return Algorithm(**{key: with_numbers(value) for key, value in settings.items()})


def advantages_of(name: str) -> list[float]:
    """[T] by the formulas."""
    algorithm = chosen(advantage=name)
    found = [of_group(algorithm, REWARDS[own], LENGTHS[own], 0.3, PARTS[own]) for own in GROUPS]
    return of_tokens(algorithm, [x for own in found for x in own], LENGTHS, VALUES)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_each_advantage_of_the_matrix_is_that_of_its_formula(name: str):
    algorithm, found = chosen(advantage=name), list[float]()
    for own in GROUPS:
        group = GroupRewards(REWARDS[own], LENGTHS[own], greedy_reward=0.3, parts=PARTS[own])
        found += ADVANTAGES[name](group, algorithm)
    sequences = [
        ScoredSequence(str(i), [1], [1] * n, [-1.0] * n, [0] * n, [False] * n, advantage, 0.0)
        for i, (n, advantage) in enumerate(zip(LENGTHS, found, strict=True))
    ]
    found = [sequence.advantage for sequence in finish_batch(Batch(0, 1.0, sequences), algorithm).sequences]
    per_token = torch.tensor([found[i] for i in IDS], dtype=torch.float64)
    if name == "gae":
        ids, values = torch.tensor(IDS), torch.tensor(VALUES, dtype=torch.float64)
        rewards = end_rewards(per_token, ids)
        per_token = generalised_advantages(rewards, values, ids, gamma=0.9, gae_lambda=0.8)
    assert per_token.tolist() == pytest.approx(advantages_of(name), abs=1e-9)


def make_batch(name: str) -> LossInputs:
    """Log-ratios of some tenths between the three policies, in float64 so that an oracle can follow."""
    source = random.Random(4)
    size = len(IDS)
    proximal = [-1.0 - source.random() for _ in range(size)]
    behavior = [p + source.gauss(0, 0.35) for p in proximal]
    current = [p + source.gauss(0, 0.25) for p in proximal]
    reference = [p + source.gauss(0, 0.5) for p in proximal]
    mask = [t != MASKED for t in range(size)]
    inputs = make_inputs(current=[0.0] * size, mask=mask, sequence_ids=IDS, advantages=advantages_of(name))
    # Each two sequences have one prompt.
    prompts = [i // 2 for i in IDS]
    counts = [sum(m for p, m in zip(prompts, mask, strict=True) if p == prompt) for prompt in prompts]
    return dataclasses.replace(
        inputs,
        prompt_lengths=torch.tensor(counts, dtype=torch.float64),
        current=torch.tensor(current, dtype=torch.float64, requires_grad=True),
        proximal=torch.tensor(proximal, dtype=torch.float64),
        behavior=torch.tensor(behavior, dtype=torch.float64),
        reference=torch.tensor(reference, dtype=torch.float64),
        advantages=inputs.advantages.double(),
    )


@dataclasses.dataclass
class Oracle:
    """One combination, token by token."""

    inputs: LossInputs
    algorithm: Algorithm

    def __post_init__(self) -> None:
        self.log_rho = (self.inputs.proximal - self.inputs.behavior).tolist()
        around = self.inputs.behavior if self.algorithm.clip_around == "behavior" else self.inputs.proximal
        current = self.inputs.current.detach()
        self.log_r = (current - around).tolist()
        self.moved = (current - self.inputs.behavior).tolist()
        self.policy, self.behavior = current.exp().tolist(), self.inputs.behavior.exp().tolist()
        assert self.inputs.reference is not None
        proximal = self.inputs.proximal.exp().tolist()
        self.divergence = [binary_kl(m, q) for m, q in zip(self.behavior, proximal, strict=True)]
        self.distance = (current - self.inputs.reference).tolist()
        self.counted = self.inputs.mask.tolist()
        self.advantages = self.inputs.advantages.tolist()
        self.outliers = self.find_outliers()
        self.reach = self.find_reach()
        """e^tau of second_moment_clip."""
        self.weights = [self.weight(t) if self.is_kept(t) else 0.0 for t in range(len(IDS))]
        self.keeps = [c and w != 0 for c, w in zip(self.counted, self.weights, strict=True)]
        """Tokens that weight and rejections leave: they have the penalties."""
        self.survives = [keeps and self.is_inside(t) for t, keeps in enumerate(self.keeps)]
        """Those of them inside the trust regions: they have the surrogate as well."""

    def of(self, t: int, chosen: list[bool]) -> list[int]:
        """The chosen tokens of its sequence."""
        return [u for u in OWN[IDS[t]] if chosen[u]]

    def weight(self, t: int) -> float:
        a, rho = self.algorithm, math.exp(self.log_rho[t])
        product = math.exp(sum(self.log_rho[u] for u in self.of(t, self.counted)))
        return {
            "none": 1.0,
            "truncated": min(rho, CAP),
            "sequence_truncated": min(product, CAP),
            "masked": rho if a.mask_low <= rho <= a.mask_high else 0.0,
            "sequence_masked": product if product <= CAP else 0.0,
        }[a.importance_weight.name]

    def is_kept(self, t: int) -> bool:
        a, rho, own = self.algorithm, math.exp(self.log_rho[t]), self.of(t, self.counted)
        mean = math.exp(sum(self.log_rho[u] for u in own) / max(len(own), 1))
        found = {
            "token_range": a.mask_low <= rho <= a.mask_high,
            "geometric_mean": GEOMETRIC_LOW <= mean <= GEOMETRIC_HIGH,
            "second_moment": t not in self.outliers,
            "token_veto": all(math.exp(self.log_rho[u]) >= VETO_LOW for u in own),
            "sequence_kl": sum(self.divergence[u] for u in own) <= SEQUENCE_KL * len(own),
        }
        return all(found[term.name] for term in a.rejection)

    def find_outliers(self) -> set[int]:
        counted = [t for t in range(len(IDS)) if self.counted[t]]
        away = {t for t in counted if self.advantages[t] * self.log_rho[t] > 0}
        kept = sorted(away, key=lambda t: abs(self.log_rho[t]))
        while sum(self.log_rho[t] ** 2 for t in kept) > SECOND_MOMENT * len(kept):
            kept.pop()
        return away - set(kept)

    def find_reach(self) -> float:
        pairs = zip(self.log_rho, self.advantages, self.counted, strict=True)
        squares = [log**2 for log, advantage, counts in pairs if counts and log * advantage > 0]
        return math.exp(min(clip_reach(squares, SECOND_MOMENT), 700.0))

    def is_inside(self, t: int) -> bool:
        a, p, m = self.algorithm, self.policy[t], self.behavior[t]
        pushes, own = self.advantages[t] * self.moved[t] > 0, self.of(t, self.counted)
        mean = -sum(self.moved[u] for u in own) / max(len(own), 1)
        found = {
            "dppo_tv": not pushes or abs(p - m) <= TV,
            "dppo_kl": not pushes or binary_kl(m, p) <= KL,
            "ipo": abs(p - m) <= PROBABILITY,
            "kpop": max(binary_kl(m, p), binary_kl(p, m)) <= KPOP,
            "band": BAND_LOW < p / m < BAND_HIGH,
            "off_policy_sequence": self.advantages[t] >= 0 or mean <= SEQUENCE,
            "second_moment_clip": not pushes or min(0.7, 1 / self.reach) <= p / m <= max(1.5, self.reach),
        }
        return all(found[term.name] for term in a.trust_region)

    def slope(self, t: int) -> float:
        """d loss / d log pi_t, before the denominator."""
        if not self.keeps[t]:
            return 0.0
        pull = self.pull(t)
        if self.survives[t]:
            pull -= self.advantages[t] * self.applied(t) * self.ratio(t)
        return pull * self.scale(t)

    def pull(self, t: int) -> float:
        """Slope of the penalties."""
        a, d = self.algorithm, self.distance[t]
        slopes = {"k1": 1.0, "k2": d, "k3": 1 - math.exp(-d), "k3_plus": d}
        slopes["unbiased"] = math.exp(self.moved[t]) * d
        return a.kl.coefficient * slopes[a.kl.estimator] + a.behavior_kl_coefficient * 2 * self.moved[t]

    def applied(self, t: int) -> float:
        if self.algorithm.surrogate.name != "gmpo":
            return self.weights[t]
        own = self.of(t, self.survives)
        return math.exp(sum(math.log(self.weights[u]) for u in own) / len(own))

    def ratio(self, t: int) -> float:
        """What the surrogate makes of the policy ratio: 0 where the clip ends the gradient."""
        a, own, r = self.algorithm, self.of(t, self.survives), math.exp(self.log_r[t])
        low, high = 1 - (a.clip_low or 1.0), 1 + a.clip_high
        s = math.exp(sum(self.log_r[u] for u in own) / len(own))
        g = math.exp(sum(self.bounded(u, low, high) for u in own) / len(own))
        tau = TAU_POSITIVE if self.advantages[t] > 0 else TAU_NEGATIVE
        gate = 1 / (1 + math.exp(-tau * (r - 1)))
        return {
            "reinforce": 1.0,
            "ratio": r,
            "sapo": 4 * gate * (1 - gate) * r,
            "ppo_clip": 0.0 if self.is_beyond(t, r, low, high) else r,
            "gspo": 0.0 if self.is_beyond(t, s, low, high) else s,
            "cispo": min(max(r, low), high),
            "gmpo": 0.0 if self.is_beyond(t, r, low, high) else g,
        }[a.surrogate.name]

    def bounded(self, t: int, low: float, high: float) -> float:
        if not self.is_beyond(t, math.exp(self.log_r[t]), low, high):
            return self.log_r[t]
        return math.log(high if self.advantages[t] > 0 else low)

    def is_beyond(self, t: int, ratio: float, low: float, high: float) -> bool:
        a = self.advantages[t]
        return (a > 0 and ratio > high) or (a < 0 and ratio < low)

    def scale(self, t: int) -> float:
        """Rejected tokens stay in the denominators."""
        match self.algorithm.reduction:
            case "sequence_mean":
                return 1 / len(self.of(t, self.counted))
            case "prompt_mean":
                return 1 / sum(c for u, c in enumerate(self.counted) if IDS[u] // 2 == IDS[t] // 2)
        return 1.0


def binary_kl(first: float, second: float) -> float:
    return first * math.log(first / second) + (1 - first) * math.log((1 - first) / (1 - second))


def is_typical(weight: str, surrogate: str) -> bool:
    """Every weight and every surrogate at least once; CI runs the other pairs."""
    return weight == "truncated" or surrogate == "ppo_clip"


def pairs_of(*more: str) -> list[Any]:
    """(weight, surrogate), or (weight, surrogate, one of `more`)."""
    rest = [(name,) for name in more] or [()]
    return [
        pytest.param(*pair, *others, marks=[] if is_typical(*pair) else [pytest.mark.exhaustive])
        for pair in itertools.product(sorted(WEIGHTS), sorted(SURROGATES))
        for others in rest
    ]


BATCHES = {name: make_batch(name) for name in sorted(ADVANTAGES)}


@pytest.mark.parametrize(("weight", "surrogate", "around"), pairs_of("proximal", "behavior"))
def test_each_token_has_the_gradient_of_its_formula_or_the_combination_is_refused(
    weight: str, surrogate: str, around: str
):
    """Reductions, trust regions and penalties are drawn; the slow test has all of them."""
    source = random.Random(f"{weight} {surrogate} {around}")
    for advantage, rejection in itertools.product(BATCHES, CHOSEN_REJECTIONS):
        names = {"importance_weight": weight, "surrogate": surrogate, "clip_around": around}
        names |= {
            "advantage": advantage,
            "rejection": rejection,
            "reduction": source.choice(list(REDUCTIONS)),
        }
        check_combination(**names, trust_region=source.choice(CHOSEN_REGIONS), **source.choice(PENALTIES))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight", "surrogate"), list(itertools.product(sorted(WEIGHTS), sorted(SURROGATES)))
)
def test_each_combination_with_trust_regions_and_penalties_has_the_gradient_of_its_formula(
    weight: str, surrogate: str
):
    terms = (BATCHES, CHOSEN_REJECTIONS, REDUCTIONS, CHOSEN_REGIONS)
    penalties = itertools.cycle(PENALTIES)
    for advantage, rejection, reduction, region in itertools.product(*terms):
        names = {"importance_weight": weight, "surrogate": surrogate, "trust_region": region}
        names |= {"advantage": advantage, "rejection": rejection, "reduction": reduction}
        check_combination(**names, **next(penalties))


def check_combination(**names: Any) -> None:
    around, weight = names.get("clip_around"), names["importance_weight"]
    if around == "behavior" and (weight != "none" or names["surrogate"] == "reinforce"):
        with pytest.raises(ValidationError, match="clip_around is behavior"):
            chosen(**names)
        return
    if "second_moment" in names["rejection"] and "second_moment_clip" in names["trust_region"]:
        with pytest.raises(ValidationError, match="both are M2PO"):
            chosen(**names)
        return
    algorithm = chosen(**names)
    inputs = BATCHES[names["advantage"]]
    if {"second_moment", "second_moment_clip"} & {*names["rejection"], *names["trust_region"]}:
        inputs = with_second_moment_bound(inputs, algorithm)
    parts = make_loss(algorithm, max_new_tokens=LONGEST)(inputs)
    oracle = Oracle(inputs, algorithm)
    found = gradient(parts.total, inputs)
    assert are_close(found, [oracle.slope(t) for t in range(len(IDS))]), names
    # Exactly nothing of a token that was rejected, and something of every combination.
    assert not any(x for x, keeps in zip(found, oracle.keeps, strict=True) if not keeps), names
    assert any(found) or not any(oracle.survives), names
    assert are_close(parts.weights.tolist(), oracle.weights), names
    outside = [keeps and not survives for keeps, survives in zip(oracle.keeps, oracle.survives, strict=True)]
    assert parts.outside.tolist() == outside, names


def are_close(found: list[float], wanted: list[float]) -> bool:
    """Faster than pytest.approx. Not a number is close to nothing."""
    return all(abs(a - b) <= 1e-9 for a, b in zip(found, wanted, strict=True))


def test_each_rejection_weight_and_clip_of_the_matrix_takes_some_tokens_and_leaves_some():
    for name, inputs in BATCHES.items():
        for rejection in REJECTIONS:
            oracle = Oracle(inputs, chosen(advantage=name, rejection=[rejection]))
            assert 0 < sum(oracle.survives) < sum(oracle.counted), (name, rejection)
        for region in TRUST_REGIONS:
            region_alone = chosen(advantage=name, trust_region=[region], importance_weight="none")
            oracle = Oracle(with_second_moment_bound(inputs, region_alone), region_alone)
            # No advantage of pass_at_k is negative.
            drops = region != "off_policy_sequence" or min(oracle.advantages) < 0
            assert 0 < sum(oracle.survives) <= sum(oracle.keeps) - drops, (name, region)
        for weight in ("masked", "sequence_masked"):
            oracle = Oracle(inputs, chosen(advantage=name, importance_weight=weight))
            assert 0 < sum(oracle.survives) < sum(oracle.counted), (name, weight)
        for surrogate in ("ppo_clip", "gspo", "gmpo"):
            oracle = Oracle(inputs, chosen(surrogate=surrogate, importance_weight="none"))
            moving = [t for t in range(len(IDS)) if oracle.counted[t] and oracle.advantages[t]]
            assert 0 < sum(oracle.ratio(t) == 0 for t in moving) < len(moving), (name, surrogate)


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
def test_each_weight_scales_the_gradient_of_its_own_token(surrogate: str):
    # At the proximal policy every ratio is 1: the gradient is -A w. Under gmpo w is the geometric mean, here
    # (0.2 x 0.5 x 1 x 2 x 4)^(1/5) = 0.8^0.2.
    weights = [0.2, 0.5, 1.0, 2.0, 4.0]
    inputs = make_inputs(current=[-1.0] * 5, behavior=[-1.0 - math.log(w) for w in weights])
    algorithm = Algorithm(surrogate=surrogate, importance_weight={"name": "truncated", "cap": 9.0})
    found = gradient(make_loss(algorithm, max_new_tokens=8)(inputs).total, inputs)
    wanted = [0.8**0.2] * 5 if surrogate == "gmpo" else weights
    assert found == pytest.approx([-w for w in wanted], rel=1e-5)


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
def test_advantages_per_token_that_add_up_to_zero_still_teach_each_token(surrogate: str):
    advantages = [2.0, -1.0, 0.0, 0.0, -1.0]
    inputs = make_inputs(current=[-1.0] * 5, advantages=advantages)
    algorithm = Algorithm(advantage="gae", surrogate=surrogate)
    found = gradient(make_loss(algorithm, max_new_tokens=8)(inputs).total, inputs)
    assert found == pytest.approx([-a for a in advantages])


@pytest.mark.parametrize("surrogate", ["gspo", "gmpo"])
def test_a_rejected_token_is_not_in_the_ratio_of_its_sequence(surrogate: str):
    # The last token moved by 5 and is out of the range; the others by 0.1 and 0.05: their mean is 0.075.
    algorithm = Algorithm(surrogate=surrogate, rejection=["token_range"], importance_weight="none")
    inputs = make_inputs(
        current=[-0.9, -0.95, -5.0], proximal=[-1.0, -1.0, -10.0], behavior=[-1.0, -1.0, -1.0]
    )
    found = gradient(make_loss(algorithm, max_new_tokens=8)(inputs).total, inputs)
    assert found == pytest.approx([-math.exp(0.075)] * 2 + [0.0], rel=1e-5)


@pytest.mark.parametrize(
    "algorithm", [{"kl": {"coefficient": 0.1}}, {"entropy_bonus": {"coefficient": 0.1}}], ids=str
)
def test_a_rejected_token_has_neither_kl_nor_entropy_bonus(algorithm: dict):
    section = Algorithm(rejection=["token_range"], **algorithm)
    inputs = make_inputs(current=[-1.0, -1.0], behavior=[-1.0, -4.0], reference=[-2.0, -2.0])
    total = make_loss(section, max_new_tokens=8)(inputs).total
    slopes = torch.autograd.grad(total, [inputs.current, inputs.entropies], allow_unused=True)
    for slope in slopes:
        assert slope is None or slope[1] == 0.0
    assert slopes[0][0] != 0.0


@pytest.mark.parametrize(("weight", "surrogate"), pairs_of())
def test_the_gradient_agrees_with_finite_differences_of_the_formula(weight: str, surrogate: str):
    """The docstring's formula, with all that it holds constant (sg) kept at the policy of now."""
    algorithm = chosen(importance_weight=weight, surrogate=surrogate)
    inputs = BATCHES["gae"]
    parts = make_loss(algorithm, max_new_tokens=LONGEST)(inputs)
    found = gradient(parts.total, inputs)
    oracle, step = Oracle(inputs, algorithm), 1e-5
    now = inputs.current.tolist()
    for t in range(len(IDS)):
        ends = [formula(oracle, now, {**dict(enumerate(now)), t: now[t] + d}) for d in (step, -step)]
        assert found[t] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6), t


def formula(oracle: Oracle, now: list[float], moved: dict[int, float]) -> float:
    """The sum of the losses at log-probs `moved`, with what is constant taken at `now`."""
    a, total = oracle.algorithm, 0.0
    low, high = 1 - (a.clip_low or 1.0), 1 + a.clip_high
    for t in range(len(IDS)):
        if not oracle.survives[t]:
            continue
        advantage, change, own = (
            oracle.advantages[t],
            math.exp(moved[t] - now[t]),
            oracle.of(t, oracle.survives),
        )
        r = math.exp(oracle.log_r[t])
        if a.surrogate.name in ("ppo_clip", "gspo"):
            mean = math.exp(sum(oracle.log_r[u] for u in own) / len(own))
            ratio = (r if a.surrogate.name == "ppo_clip" else mean) * change
            loss = -min(ratio * advantage, min(max(ratio, low), high) * advantage)
        elif a.surrogate.name == "gmpo":
            mean = math.exp(sum(oracle.bounded(u, low, high) for u in own) / len(own))
            loss = -advantage * mean * (1.0 if oracle.is_beyond(t, r, low, high) else change)
        elif a.surrogate.name == "ratio":
            loss = -advantage * r * change
        elif a.surrogate.name == "sapo":
            tau = TAU_POSITIVE if advantage > 0 else TAU_NEGATIVE
            loss = -advantage * 4 / tau / (1 + math.exp(-tau * (r * change - 1)))
        else:
            weight = min(max(r, low), high) if a.surrogate.name == "cispo" else 1.0
            loss = -weight * advantage * moved[t]
        total += oracle.applied(t) * loss
    return total


@pytest.mark.parametrize("surrogate", ["gspo", "gmpo"])
def test_with_one_advantage_per_sequence_the_gradient_is_that_of_the_papers_objective(surrogate: str):
    """Sequence terms as they are published, over all tokens and without weights, by central differences."""
    algorithm = chosen(surrogate=surrogate, importance_weight="none", reduction="sequence_mean")
    inputs = dataclasses.replace(BATCHES["rloo"], mask=torch.ones(len(IDS), dtype=torch.bool))
    found = gradient(make_loss(algorithm, max_new_tokens=LONGEST)(inputs).total, inputs)
    oracle, step = Oracle(inputs, algorithm), 1e-5
    low, high = 1 - SETTINGS["clip_low"], 1 + SETTINGS["clip_high"]

    def objective(log_r: list[float]) -> float:
        total = 0.0
        for i in range(len(LENGTHS)):
            own = OWN[i]
            advantage = oracle.advantages[own[0]]
            if surrogate == "gspo":
                s = math.exp(sum(log_r[t] for t in own) / len(own))
                total -= min(s * advantage, min(max(s, low), high) * advantage)
            else:
                sign = math.copysign(1.0, advantage)
                logs = [
                    sign * min(sign * log_r[t], sign * min(max(log_r[t], math.log(low)), math.log(high)))
                    for t in own
                ]
                total -= advantage * math.exp(sum(logs) / len(own))
        return total

    for t in range(len(IDS)):
        ends = []
        for change in (step, -step):
            moved = list(oracle.log_r)
            moved[t] += change
            ends.append(objective(moved))
        assert found[t] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6), t
