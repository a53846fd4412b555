"""A proposer and a checker of sums: the corpus of both, and the agent that plays an episode."""

import asyncio
from random import Random
from statistics import fmean
from typing import Any

import pytest

from asyncrl.examples.agent_roles import play, wrong_sums
from asyncrl.examples.checked_sums import (
    CheckedSumsOptions,
    draw_check,
    draw_corpus,
    draw_sum,
)
from asyncrl.examples.rows import build_tokenizer
from asyncrl.rollout.agents.task import AgentTask

OPTIONS = CheckedSumsOptions(num_examples=400)


def test_half_of_the_corpus_are_answers_to_check_and_half_of_these_are_right() -> None:
    examples = list(draw_corpus(CheckedSumsOptions(num_examples=4000), without=set()))
    checks = [example for example in examples if example.prompt.endswith("?")]
    assert len(checks) == len(examples) / 2
    shown = [int(example.prompt.partition("=")[2].rstrip("?")) for example in checks]
    are_right = [sum(e.terms) == value for e, value in zip(checks, shown, strict=True)]
    assert fmean(are_right) == pytest.approx(0.5, abs=0.03)


def test_a_check_works_the_sum_or_agrees_with_what_is_shown() -> None:
    random = Random(0)
    worked = draw_check((347, 285), random, direct=0.0, noise=0.0)
    assert worked.response == "<think>7+5+0=12;4+8+1=13;3+2+1=6</think>\\boxed{632}"
    for _ in range(50):
        agreed = draw_check((347, 285), random, direct=1.0, noise=0.0)
        assert agreed.prompt == f"347+285={agreed.response.removeprefix(chr(92) + 'boxed{').rstrip('}')}?"


def test_the_tokenizer_knows_all_that_the_roles_read_and_write() -> None:
    tokenizer = build_tokenizer()
    for example in draw_corpus(OPTIONS, without=set()):
        text = example.prompt + example.response
        assert tokenizer.decode(tokenizer.encode(text).ids[1:]) == text


def test_held_out_sums_are_not_in_the_corpus() -> None:
    first = next(iter(draw_corpus(OPTIONS, without=set()))).terms
    left = draw_corpus(OPTIONS, without={(min(first), max(first))})
    assert all(sorted(example.terms) != sorted(first) for example in left)


def episode(proposes: str, checks: Any) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """The scores, and who was asked what; `checks` is the checker's reply to a text."""
    asked: list[tuple[str, str]] = []

    async def post(task: AgentTask, body: dict[str, Any]) -> dict[str, Any]:
        text = body["messages"][-1]["content"]
        asked.append((body["model"], text))
        said = proposes if body["model"] == "proposer" else checks(text)
        return {"choices": [{"message": {"role": "assistant", "content": said}}]}

    return asyncio.run(play(AgentTask("t:0", "347+285=", [], "", "", post=post))), asked


def box(value: object) -> str:
    return f"<think>...</think>\\boxed{{{value}}}"


@pytest.mark.parametrize("proposed", [632, 631])
def test_the_checker_reads_the_proposed_answer_and_one_that_is_right_where_that_is_wrong(
    proposed: int,
) -> None:
    scores, asked = episode(box(proposed), lambda text: box(632))
    assert scores == {"proposer": float(proposed == 632), "checker": 1.0}
    assert asked[:2] == [("proposer", "347+285="), ("checker", f"347+285={proposed}?")]
    ((role, other),) = asked[2:]
    shown = int(other.removeprefix("347+285=").removesuffix("?"))
    assert role == "checker" and shown in (wrong_sums(632) if proposed == 632 else [632])
    # To agree or to disagree with all is right once.
    for always in (lambda text: box(text[8:-1]), lambda text: box(1)):
        assert episode(box(proposed), always)[0]["checker"] == 0.5
    assert episode(box(proposed), lambda text: "so?")[0]["checker"] == 0.0


def test_without_an_answer_the_checker_is_silent() -> None:
    assert episode("7+5+0=12", box) == ({"proposer": 0.0}, [("proposer", "347+285=")])


def test_a_wrong_sum_has_three_digits_and_is_not_the_sum() -> None:
    random = Random(0)
    for _ in range(300):
        total = sum(draw_sum(random))
        wrong = wrong_sums(total)
        assert wrong and total not in wrong and all(len(str(value)) == 3 for value in wrong)
