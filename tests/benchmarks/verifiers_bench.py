"""Our math verifier against PyPI's math-verify, one process each: accuracy, rate and tail latency.

    python tests/benchmarks/verifiers_bench.py [--pairs N] [--skip-cases]

Both get the same boxes and read the gold for each pair; only in the set of groups the gold is read once per
group, by both. math-verify runs with its own time limits (SIGALRM, 5 s). The cases are ours, so the accuracy
on them says how math-verify fares on them, not how we fare on others."""

from __future__ import annotations

import argparse
import json
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

import math_verify

from verifiers.extract import last_box
from verifiers.math.verifier import MathVerifier
from verifiers.verdict import Outcome

CASES = Path(__file__).parents[1] / "verifiers" / "cases"

Pair = tuple[str, str]
"""(gold, answer in the box)"""


def plain_numbers(source: random.Random, count: int) -> list[Pair]:
    """Integers, decimals and fractions of integers; about half of the answers are right."""
    pairs = []
    for _ in range(count):
        gold = plain_number(source)
        pairs.append((gold, gold if source.random() < 0.5 else plain_number(source)))
    return pairs


def plain_number(source: random.Random) -> str:
    sign = source.choice(["", "", "-"])
    kind = source.random()
    if kind < 0.7:
        return f"{sign}{source.randint(0, 2000)}"
    if kind < 0.85:
        return f"{sign}{source.randint(0, 99)}.{source.randint(1, 999)}"
    return f"{sign}{source.randint(1, 99)}/{source.randint(2, 99)}"


SYMBOLIC: list[tuple[str, str, str]] = [
    # (gold, the same in another spelling, something else)
    (r"\frac{\sqrt{3}}{2}", r"\frac{3}{2\sqrt{3}}", r"\frac{\sqrt{2}}{2}"),
    (r"x^2+2x+1", r"(x+1)^2", r"(x-1)^2"),
    (r"\frac{\pi}{4}", r"\frac{1}{4}\pi", r"\frac{\pi}{3}"),
    (r"(-\infty,1)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,1)", r"(-\infty,1]\cup[3,\infty)"),
    (r"\sin 2x", r"2\sin x\cos x", r"2\sin x"),
    (
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        r"\begin{bmatrix}1&2\\3&4\end{bmatrix}",
        r"\begin{pmatrix}1&2\\3&5\end{pmatrix}",
    ),
    (r"1\pm\sqrt{2}", r"1+\sqrt{2}, 1-\sqrt{2}", r"1+\sqrt{2}"),
    (r"6-5i", r"-5i+6", r"6+5i"),
    (r"y=2x+3", r"2x-y+3=0", r"y=2x-3"),
    (r"\frac{x^2-1}{x-1}", r"x+1", r"x-1"),
    (r"2\sqrt{3}+\sqrt{12}", r"4\sqrt{3}", r"3\sqrt{3}"),
    (r"\log_2 3", r"\frac{\ln 3}{\ln 2}", r"\log_3 2"),
]  # fmt: skip


def symbolic(source: random.Random, count: int) -> list[Pair]:
    pairs = []
    for _ in range(count):
        gold, same, other = source.choice(SYMBOLIC)
        # A number of its own in each pair, so that no cache sees it twice.
        shift = source.randint(2, 10**6)
        if "," not in gold and "matrix" not in gold and "=" not in gold and "pm" not in gold:
            gold, same, other = (f"{text}+{shift}" for text in (gold, same, other))
        pairs.append((gold, same if source.random() < 0.5 else other))
    return pairs


def mixed(source: random.Random, count: int) -> list[Pair]:
    """90 % numbers and fractions, half of them in LaTeX, 10 % symbolic."""
    pairs = []
    for gold, answer in plain_numbers(source, count * 9 // 10):
        if "/" in gold and source.random() < 0.7:
            gold = in_latex(gold)
        pairs.append((gold, in_latex(answer) if "/" in answer else answer))
    pairs += symbolic(source, count - len(pairs))
    source.shuffle(pairs)
    return pairs


def in_latex(fraction: str) -> str:
    if "/" not in fraction:
        return fraction
    top, bottom = fraction.lstrip("-").split("/")
    return f"{'-' if fraction[0] == '-' else ''}\\frac{{{top}}}{{{bottom}}}"


def groups(source: random.Random, count: int) -> list[list[Pair]]:
    """Real groups: 8 to 16 samples of one task, most of them one of two or three answers."""
    made: list[list[Pair]] = []
    while sum(map(len, made)) < count:
        gold, first = mixed(source, 10)[source.randint(0, 9)]
        answers = [gold, first, mixed(source, 10)[0][1]]
        made.append([(gold, source.choice(answers)) for _ in range(source.randint(8, 16))])
    return made


Grade = Callable[[str], bool]


def ours_for(gold: str, verifier: MathVerifier) -> Grade:
    reference = verifier.parse_reference(gold)
    return lambda answer: verifier.verify(f"\\boxed{{{answer}}}", reference).outcome is Outcome.CORRECT


def theirs_for(gold: str) -> Grade:
    parsed = math_verify.parse(f"\\boxed{{{gold}}}")
    return lambda answer: bool(math_verify.verify(parsed, math_verify.parse(f"\\boxed{{{answer}}}")))


def measure(batches: list[list[Pair]], grader: Callable[[str], Grade]) -> tuple[float, float, float]:
    """(pairs per second, p99 in ms, longest in ms); a batch reads its gold once."""
    seconds = []
    for batch in batches:
        started = time.perf_counter()
        grade = grader(batch[0][0])
        reading = time.perf_counter() - started
        for _, answer in batch:
            started = time.perf_counter()
            grade(answer)
            seconds.append(time.perf_counter() - started + reading)
            reading = 0.0
    ordered = sorted(seconds)
    return len(seconds) / sum(seconds), ordered[len(ordered) * 99 // 100] * 1e3, ordered[-1] * 1e3


def accuracy() -> None:
    rows = [
        json.loads(line) for file in sorted(CASES.glob("*.jsonl")) for line in file.open(encoding="utf-8")
    ]
    rows = [
        row
        for row in rows
        if "options" not in row and isinstance(row["gold"], str) and last_box(row["response"])
    ]
    counts = {"asyncrl": [0, 0], "math-verify": [0, 0]}
    for row in rows:
        want = row["expect"] == "correct"
        verifier = MathVerifier()
        ours = (
            verifier.verify(row["response"], verifier.parse_reference(row["gold"])).outcome is Outcome.CORRECT
        )
        theirs = theirs_for(row["gold"])(last_box(row["response"]) or "")
        for name, got in (("asyncrl", ours), ("math-verify", theirs)):
            if got is not want:
                counts[name][0 if got else 1] += 1
    print(
        f"\n{len(rows)} cases of tests/verifiers/cases with a box "
        "(math-verify gets the last box alone, its best setting):"
    )
    for name, (false_positive, false_negative) in counts.items():
        right = 1 - (false_positive + false_negative) / len(rows)
        print(
            f"  {name:<12} {right:7.2%} right, {false_positive} false positives, "
            f"{false_negative} false negatives"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=600, help="pairs per set")
    parser.add_argument("--skip-cases", action="store_true", help="leave out the accuracy on the cases")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    source = random.Random(20)
    sets = {
        "plain numbers": [[pair] for pair in plain_numbers(source, arguments.pairs)],
        "realistic mix": [[pair] for pair in mixed(source, arguments.pairs)],
        "mix in groups": groups(source, arguments.pairs),
        "symbolic": [[pair] for pair in symbolic(source, arguments.pairs)],
    }
    print(f"{'one core':<15}{'asyncrl':>24}{'math-verify 0.9.0':>30}{'ratio':>9}")
    print(f"{'':<15}{'per s   p99 ms   max ms':>26}{'per s   p99 ms   max ms':>28}")
    for name, batches in sets.items():
        verifier = MathVerifier()
        # Warm both: imports, compiled patterns and grammars are not what is compared.
        ours_for(r"\frac{\sqrt2}{2}", verifier)(r"\frac{1}{\sqrt{2}}"), theirs_for(r"\frac12")("0.5")
        ours = measure(batches, lambda gold, verifier=verifier: ours_for(gold, verifier))  # type: ignore[misc]
        theirs = measure(batches, theirs_for)
        print(
            f"{name:<15}{ours[0]:>10.0f}{ours[1]:>8.2f}{ours[2]:>8.1f}"
            f"{theirs[0]:>12.0f}{theirs[1]:>8.1f}{theirs[2]:>8.0f}{ours[0] / theirs[0]:>8.1f}x"
        )
    if not arguments.skip_cases:
        accuracy()


if __name__ == "__main__":
    main()
