"""Every case of tests/verifiers/cases: {"gold", "response", "expect", "why"}, one a
mathematician would agree with."""

import json
from pathlib import Path
from typing import Any

import pytest

from verifiers.registry import load_verifier

FOLDER = Path(__file__).parent / "cases"
TOPICS = sorted(FOLDER.glob("*.jsonl"))
SLOW = ("integrals_with_jumps",)
"""Topics of which each case takes seconds."""


def rows(topic: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in topic.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    "topic",
    [
        pytest.param(topic, id=topic.stem, marks=[pytest.mark.exhaustive] * (topic.stem in SLOW))
        for topic in TOPICS
    ],
)
def test_every_case_of_a_topic_gets_the_verdict_a_mathematician_expects(topic: Path) -> None:
    mistakes = []
    for number, row in enumerate(rows(topic), start=1):
        verifier = load_verifier("math", row.get("options", {}))
        verdict = verifier.verify(row["response"], verifier.parse_reference(row["gold"]))
        if verdict.outcome.value != row["expect"]:
            mistakes.append(f"{topic.name}:{number} {row} -> {verdict.outcome.value} ({verdict.detail})")
    assert not mistakes, "\n".join(mistakes)


def test_every_topic_has_positives_and_near_misses() -> None:
    counts = {topic.stem: [row["expect"] for row in rows(topic)] for topic in TOPICS}
    only_negative = {"candidates", "hostile"}
    for topic, expectations in counts.items():
        assert set(expectations) - {"correct"}, topic
        assert "correct" in expectations or topic in only_negative, topic
