"""Mismatch of a mixture of experts between a server and the trainer, with and without routing replay.

    python tests/benchmarks/routing_bench.py [--family Glm4MoeForCausalLM] [--batches 8] [--responses 32]
                                             [--tokens 96] [--dtype bfloat16]

A tiny Qwen3-MoE or GLM-4.5 (4 layers, 16 experts, 4 per token, random weights) samples on a real server; the
trainer, of the same weights (lag 0), finds its log-probs of the same tokens twice: its routers choose, and
they take the experts that the server took. Per row the mean over the batches and its 95% interval:

    routing    share of the choices, one per token and layer, that differ from the server's
    KL         mismatch_kl, the k3 estimate of the KL of the server from the trainer
    capped     share of the tokens whose importance weight is at the cap (algorithm.importance_weight.cap)
    largest    largest |difference of log-probs| of a token
"""

import argparse
import statistics
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.learners import make_learner
from fakes.routed import EXPERTS, make_prompts, sample_routed, write_experts
from serving.engine.servers import running_server

from asyncrl.recipe.server_options import ROUTED_EXPERTS
from asyncrl.records import Batch
from asyncrl.trainer.parts.served_columns import RoutingReplay
from asyncrl.trainer.ranks import ranks

COLUMNS = {"KL": "mismatch_kl", "capped": "capped_share", "largest": "mismatch_logprob_max"}


def sample(
    model: Path, folder: Path, dtype: str, *, batches: int, responses: int, tokens: int
) -> list[Batch]:
    with running_server(model, folder / "server.log", ROUTED_EXPERTS, dtype=dtype) as (url, _):
        return [
            Batch(0, 1.0, sample_routed(url, model, make_prompts(seed, responses), num_tokens=tokens))
            for seed in range(batches)
        ]


def compare(model: Path, batches: list[Batch], dtype: str) -> dict[str, dict[str, list[float]]]:
    """Choice of algorithm.routing_replay -> column -> its value for each batch."""
    found: dict[str, dict[str, list[float]]] = {}
    for replay in ("none", "rollout"):
        learner = make_learner(model, model={"dtype": dtype}, algorithm={"routing_replay": replay})
        rows = []
        for batch in batches:
            own = batch.sequences
            if replay == "none":
                own = [replace(one, columns={}) for one in own]
            rows.append(learner.measure(replace(batch, sequences=own)))
            if (replay := learner.part(RoutingReplay)) is not None:
                rows[-1] |= replay.report()
        found[replay] = {name: [row[column] for row in rows] for name, column in COLUMNS.items()}
        if replay == "rollout":
            found["none"]["routing"] = [row["routing_mismatch"] for row in rows]
            found[replay]["routing"] = [0.0] * len(rows)
    return found


def interval(values: list[float]) -> str:
    """Mean and half a 95% interval, by the normal distribution."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2e} +- {1.96 * spread / len(values) ** 0.5:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Mismatch with and without routing replay.")
    parser.add_argument("--family", choices=EXPERTS, default=next(iter(EXPERTS)))
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--responses", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    ranks.start(threads=1, seed=0)
    with tempfile.TemporaryDirectory() as name:
        model = write_experts(Path(name) / "model", arguments.family)
        sizes = {key: getattr(arguments, key) for key in ("batches", "responses", "tokens")}
        batches = sample(model, Path(name), arguments.dtype, **sizes)
        found = compare(model, batches, arguments.dtype)
    names = ("routing", *COLUMNS)
    print("| routing_replay | " + " | ".join(names) + " |")
    for replay, columns in found.items():
        print(f"| {replay} | " + " | ".join(interval(columns[name]) for name in names) + " |")
    ranks.stop()


if __name__ == "__main__":
    main()
