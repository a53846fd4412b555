"""A step with each term of the loss beside the default's: `terms_bench.py [--rounds 5] [--other TREE]`.

CPU time of whole steps (process_time, so that a busy machine shows less) on equal batches: 64 responses of 10
to 60 tokens, of staleness 0 to 4, a model of 0.6 million parameters. Each round takes a step with every term,
and a step of the default before each eighth of them; a ratio is a term's step over the median of its round's
default steps. Terms with several optimizer steps per batch are compared with the default of as many.
Advantages are computed by the controller, not here.

With --other, a checkout of another commit, both commits' default steps are taken in turn, each in a process
of its own on one core.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, os.environ.get("ASYNCRL_BENCH_TREE", str(Path(__file__).resolve().parents[2])))
sys.path.insert(0, str(Path(sys.path[0], "tests")))

from fakes.learners import make_learner
from fakes.models import write_model

from asyncrl.records import Batch, ScoredSequence
from asyncrl.trainer.ranks import ranks
from asyncrl.trainer.step.learner import Learner

HERE = Path(__file__).resolve().parents[2]
VOCABULARY = 32
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 3, "intermediate_size": 384}
VERSION = 8
MOST_STALE = 4


@dataclass(frozen=True)
class Arm:
    """A loss that differs from the default in some keys."""

    algorithm: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    critic: dict[str, Any] = field(default_factory=dict)
    steps: int = 1
    """Optimizer steps per batch, here and of the default that it is compared with."""


PLAIN = {"importance_weight": "none", "clip_around": "behavior", "surrogate": "ratio"}
REWARD_KL = {"kl": {"coefficient": 0.01, "place": "reward", "estimator": "k1"}}
ARMS = {
    "weight none": Arm({"importance_weight": "none"}),
    "masked": Arm({"importance_weight": "masked"}),
    "sequence_truncated": Arm({"importance_weight": "sequence_truncated"}),
    "sequence_masked": Arm({"importance_weight": "sequence_masked"}),
    "token_range": Arm({"rejection": ["token_range"]}),
    "geometric_mean": Arm({"rejection": ["geometric_mean"]}),
    "token_veto": Arm({"rejection": ["token_veto"]}),
    "second_moment": Arm({"rejection": ["second_moment"]}),
    "second_moment, 2 steps": Arm({"rejection": ["second_moment"]}, steps=2),
    "second_moment_clip": Arm({**PLAIN, "trust_region": ["second_moment_clip"]}),
    "dppo_tv": Arm({**PLAIN, "trust_region": ["dppo_tv"]}),
    "dppo_kl": Arm({**PLAIN, "trust_region": ["dppo_kl"]}),
    "ipo": Arm({**PLAIN, "trust_region": ["ipo"]}),
    "kpop": Arm({"trust_region": ["kpop"]}),
    "off_policy_sequence": Arm({"trust_region": ["off_policy_sequence"]}),
    "reinforce": Arm({"surrogate": "reinforce"}),
    "ratio": Arm({"surrogate": "ratio"}),
    "gspo": Arm({"surrogate": "gspo"}),
    "cispo": Arm({"surrogate": "cispo"}),
    "gmpo": Arm({"surrogate": "gmpo"}),
    "sapo": Arm({"surrogate": "sapo"}),
    "sequence_mean": Arm({"reduction": "sequence_mean"}),
    "prompt_mean": Arm({"reduction": "prompt_mean"}),
    "dr_grpo_constant": Arm({"reduction": "dr_grpo_constant"}),
    "k1 in the reward": Arm(REWARD_KL),
    "k2": Arm({"kl": {"coefficient": 0.01, "estimator": "k2"}}),
    "k3": Arm({"kl": {"coefficient": 0.01, "estimator": "k3"}}),
    "k3_plus": Arm({"kl": {"coefficient": 0.01, "estimator": "k3_plus"}}),
    "unbiased": Arm({"kl": {"coefficient": 0.01, "estimator": "unbiased"}}),
    "behavior_kl": Arm({"behavior_kl_coefficient": 1e-3}),
    "entropy bonus": Arm({"entropy_bonus": {"coefficient": 0.01}}),
    "entropy_target": Arm({"entropy_bonus": {"target": 0.2}}),
    "clip_cov": Arm({"entropy_control": "clip_cov"}),
    "clip_cov, 2 steps": Arm({"entropy_control": "clip_cov"}, steps=2),
    "kl_cov, 2 steps": Arm({"entropy_control": "kl_cov"}, steps=2),
    "probability_damping": Arm({"probability_damping": 0.2}),
    "top_entropy_share": Arm({"top_entropy_share": 0.2}),
    "top_entropy_share, 2 steps": Arm({"top_entropy_share": 0.2}, steps=2),
    "nll_coefficient": Arm({"nll_coefficient": 0.1}),
    "interpolated": Arm({"proximal": "interpolated"}),
    "interpolated, 2 steps": Arm({"proximal": "interpolated"}, steps=2),
    "batch_std": Arm({"advantage": "dr_grpo", "divides_by_batch_std": True}),
    "reinforce_pp": Arm({"advantage": "reinforce_pp"}),
    "gae": Arm({"advantage": "gae"}),
    "gae, v_trace": Arm({"advantage": "gae"}, critic={"targets": "v_trace"}),
    "learning_rate_scaling ess": Arm(trainer={"learning_rate_scaling": "ess"}),
    "muon": Arm(trainer={"optimizer": "muon"}),
    "splits_staleness": Arm(trainer={"splits_staleness": True}),
}
DEFAULTS_PER_ROUND = 8


def make_batches() -> list[Batch]:
    """The batches of versions VERSION - MOST_STALE to VERSION, so that learners know what is stale."""
    batches = []
    for version in range(VERSION - MOST_STALE, VERSION + 1):
        source, sequences = random.Random(version), []
        for group in range(8):
            prompt = [source.randrange(VOCABULARY) for _ in range(8)]
            for member in range(8):
                length = source.randint(10, 60)
                lag = source.randint(0, MOST_STALE)
                sequences.append(
                    ScoredSequence(
                        sequence_id=f"{group}-{member}",
                        prompt_tokens=prompt,
                        response_tokens=[source.randrange(VOCABULARY) for _ in range(length)],
                        behavior_logprobs=[-3.5 + 0.2 * source.random() for _ in range(length)],
                        token_versions=[version - lag] * length,
                        are_continued=[False] * length,
                        advantage=source.choice([-1.0, 1.0]),
                        reward=float(member % 2),
                        **outcome_of(member),
                    )
                )
        batches.append(Batch(version, 1.0, sequences))
    return batches


def outcome_of(member: int) -> dict[str, str]:
    """Every second one is correct; commits before terms that read it have no such field."""
    has_outcomes = hasattr(ScoredSequence, "is_correct")
    return {"outcome": "correct" if member % 2 else "wrong"} if has_outcomes else {}


def build(folder: Path, arm: Arm) -> Learner:
    # A rate at which the policy, and so what terms mask, stays the same over all rounds.
    trainer = {"learning_rate": 1e-9, "optimizer_steps_per_batch": arm.steps} | arm.trainer
    critic = {"learning_rate": 1e-9} | arm.critic
    sections = {"trainer": trainer, "algorithm": arm.algorithm, "rollout": {"max_staleness": MOST_STALE}}
    return make_learner(
        folder, **sections, **({"critic": critic} if arm.algorithm.get("advantage") == "gae" else {})
    )


def step_seconds(learner: Learner, batch: Batch) -> float:
    begin = time.process_time()
    learner.step(batch)
    return time.process_time() - begin


def measure(num_rounds: int) -> dict[str, list[float]]:
    """Ratio of each arm's step to the default's, by round; "default" has those of its own steps."""
    with tempfile.TemporaryDirectory() as root:
        folder = write_model(Path(root), **SIZES)
        learners = {name: build(folder, arm) for name, arm in ARMS.items()}
        defaults = {
            count: build(folder, Arm(steps=count)) for count in sorted({arm.steps for arm in ARMS.values()})
        }
    batches = make_batches()
    for name, learner in [*learners.items(), *((str(count), each) for count, each in defaults.items())]:
        # One step to warm up; what keeps versions has all that the batch asks for.
        for batch in batches[:-1] if name == "splits_staleness" else batches[-2:-1]:
            learner.step(batch)
    found: dict[str, list[float]] = {name: [] for name in ("default", *ARMS)}
    names = list(ARMS)
    for turn in range(num_rounds):
        seconds, plain = dict[str, float](), {count: list[float]() for count in defaults}
        order = names[turn * 7 % len(names) :] + names[: turn * 7 % len(names)]
        for place, name in enumerate(order):
            if place % (len(order) // DEFAULTS_PER_ROUND) == 0:
                for count, learner in defaults.items():
                    plain[count].append(step_seconds(learner, batches[-1]))
            seconds[name] = step_seconds(learners[name], batches[-1])
        usual = {count: statistics.median(values) for count, values in plain.items()}
        for name, value in seconds.items():
            found[name].append(value / usual[ARMS[name].steps])
        found["default"] += [value / usual[1] for value in plain[1]]
    return found


def table(found: dict[str, list[float]]) -> str:
    """Markdown: medians with the quartiles of the rounds."""
    lines = ["| term | a step over the default's | quartiles |", "|---|---|---|"]
    for name, ratios in found.items():
        low, middle, high = statistics.quantiles(ratios, n=4)
        lines.append(f"| {name} | {middle:.2f} | {low:.2f} to {high:.2f} |")
    return "\n".join(lines)


def work() -> None:
    """Takes as many of the default's steps as each line of standard input says; prints each one's seconds."""
    with tempfile.TemporaryDirectory() as root:
        learner = build(write_model(Path(root), **SIZES), Arm())
    batch = make_batches()[-1]
    learner.step(batch)
    for line in sys.stdin:
        print(json.dumps([step_seconds(learner, batch) for _ in range(int(line))]), flush=True)


def compare(other: Path, num_rounds: int, steps: int = 4) -> list[float]:
    """This tree's default step over that of `other`, by round: medians of steps in turn."""

    def start(tree: Path) -> subprocess.Popen[str]:
        environment = os.environ | {"ASYNCRL_BENCH_TREE": str(tree)}
        command = [sys.executable, str(Path(__file__).resolve()), "--work"]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def ask(process: subprocess.Popen[str]) -> float:
        into, out = process.stdin, process.stdout
        assert into is not None and out is not None
        into.write(f"{steps}\n")
        into.flush()
        return statistics.median(_numbers(out))

    ours, theirs = start(HERE), start(other)
    ratios = []
    for turn in range(num_rounds + 1):
        pair = (ours, theirs) if turn % 2 else (theirs, ours)
        seconds = {process.pid: ask(process) for process in pair}
        # The first round warms up.
        if turn:
            ratios.append(seconds[ours.pid] / seconds[theirs.pid])
    for process in (ours, theirs):
        process.communicate()
    return ratios


def _numbers(out: IO[str]) -> list[float]:
    """The next line that is a list: libraries print too."""
    for line in out:
        if line.startswith("["):
            found: list[float] = json.loads(line)
            return found
    raise SystemExit("The worker ended before its answer.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.other is not None:
        ratios = compare(arguments.other.resolve(), arguments.rounds)
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"the default's step over that of {arguments.other}: {middle:.3f} ({low:.3f} to {high:.3f})")
        return 0
    warnings.filterwarnings("ignore")
    ranks.start(threads=1, seed=0)
    if arguments.work:
        work()
    else:
        print(table(measure(arguments.rounds)))
    ranks.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
