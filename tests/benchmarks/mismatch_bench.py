"""Injected mismatch and staleness, and what the step metrics find of them.

    python tests/benchmarks/mismatch_bench.py [--figure FILE.png]

The engines differ by noise on the logits, a server's policy drifts from the trainer's with each version of
lag; both true divergences are known (tests/fakes/injection.py). Each row is one strength of the one or the
other, the columns the metrics of 20,000 sampled tokens per lag.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.injection import Injection, Recovered, recover

STRENGTHS = (0.02, 0.05, 0.1, 0.2, 0.4)
BUCKETS = {1: "1", 2: "2_3", 4: "4_7", 8: "8_15"}


def sweep() -> dict[tuple[float, float], Recovered]:
    """(noise, drift) -> what was put in and what was found."""
    pairs = [(noise, 0.1) for noise in STRENGTHS] + [(0.05, drift) for drift in STRENGTHS]
    return {(noise, drift): recover(Injection(noise, drift)) for noise, drift in dict.fromkeys(pairs)}


def points(recovered: Recovered) -> list[tuple[str, float, float]]:
    """(what, KL put in, KL found): the dots of a figure, all on the diagonal when the metrics are right."""
    metrics, true = recovered.metrics, recovered.true_kl
    stale = [(f"lag {lag}", true[lag], metrics[f"staleness_kl_lag_{BUCKETS[lag]}"]) for lag in BUCKETS]
    return [("mismatch", true[0], metrics["mismatch_kl"]), *stale]


def draw(dots: list[tuple[str, float, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(4.5, 4.5), layout="constrained")
    for name in dict.fromkeys(name for name, _, _ in dots):
        chosen = [(true, seen) for what, true, seen in dots if what == name]
        axis.scatter(*zip(*chosen, strict=True), s=14, label=name)
    limits = (min(true for _, true, _ in dots) / 2, max(true for _, true, _ in dots) * 2)
    axis.plot(limits, limits, color="0.7", linewidth=1, zorder=0)
    axis.set(xscale="log", yscale="log", xlim=limits, ylim=limits, xlabel="KL put in", ylabel="KL found")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description="Injected mismatch and staleness against the metrics.")
    parser.add_argument("--figure", type=Path, help="also draw found against injected")
    arguments = parser.parse_args()
    found = {pair: points(recovered) for pair, recovered in sweep().items()}
    names = [name for name, _, _ in next(iter(found.values()))]
    print(" noise  drift  " + "  ".join(f"{name:>17}" for name in names))
    for (noise, drift), row in found.items():
        print(f"{noise:6.2f} {drift:6.2f}  " + "  ".join(f"{true:8.5f} {seen:8.5f}" for _, true, seen in row))
    dots = [dot for row in found.values() for dot in row]
    worst = max(abs(seen / true - 1) for _, true, seen in dots)
    print(f"put in, then found; largest relative error {worst:.1%}")
    if arguments.figure:
        draw(dots, arguments.figure)


if __name__ == "__main__":
    main()
