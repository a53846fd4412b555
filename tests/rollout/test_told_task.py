"""What is read of a response: its whole conversation by a verifier, its reflection words by metrics."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncrl.recipe import Verifying
from asyncrl.recipe.sections.alarms import REFLECTION_WORDS, View
from asyncrl.records import Observed, Segment, Task, Trajectory, VerifierSpec
from asyncrl.rollout.grade import Grader
from asyncrl.rollout.reflection import ReflectionWords
from asyncrl.rollout.told_task import conversation_in, told_task
from asyncrl.tasks.verifier_cache import VerifierCache

CODEC = SimpleNamespace(decode=lambda tokens: " ".join(map(str, tokens)))
ANSWER = {"role": "user", "content": "You lost."}


def played(*last: int) -> Trajectory:
    """Two turns, the second of the tokens `last`."""
    parts: list[Segment | Observed] = [
        Segment(0, [1], [-0.5]),
        Segment(1, [2], [-0.5]),
        Observed([8, 9], json.dumps({"seconds": 0.1, "messages": [ANSWER]})),
    ]
    return Trajectory("0-0", (7,), parts + ([Segment(1, list(last), [-0.5] * len(last))] if last else []))


def test_a_conversation_has_each_turn_and_the_messages_that_answered_it() -> None:
    found = conversation_in(played(3, 4), CODEC)  # type: ignore[arg-type]
    assert (found.turns, found.observations) == (("1 2", "3 4"), ((ANSWER,),))


def test_without_notes_of_messages_the_tokens_are_told() -> None:
    trajectory = Trajectory("0-0", (7,), [Segment(0, [1], [-0.5]), Observed([8, 9], "{}")])
    found = conversation_in(trajectory, CODEC)  # type: ignore[arg-type]
    assert found.observations == (({"role": "user", "content": "8 9"},),)


def test_a_turn_that_never_began_is_none() -> None:
    found = conversation_in(played(), CODEC)  # type: ignore[arg-type]
    assert (found.turns, found.observations) == (("1 2",), ((ANSWER,),))


async def test_the_grader_tells_a_verifier_the_row_and_the_conversation(tmp_path: Path) -> None:
    (tmp_path / "v.py").write_text(
        "from verifiers.verdict import correct\n"
        "class V:\n    def parse_reference(self, raw): return raw\n"
        "    def verify(self, response, reference, task):\n"
        "        return correct(detail=f'{task.prompt} {task.row} {task.turns} {task.observations}')\n"
    )
    task = Task("train:7", "p", (7,), "", VerifierSpec("./v.py:V"), row={"seed": 3})
    trajectory = played(3, 4)
    async with Grader(Verifying(), VerifierCache(tmp_path), max_fault_retries=1) as grader:
        score = await grader.grade(task, "3 4", lambda: conversation_in(trajectory, CODEC))  # type: ignore[arg-type]
        single = await grader.grade(task, "3 4")
    assert score.detail == f"p {{'seed': 3}} ('1 2', '3 4') (({ANSWER},),)"
    assert single.detail == "p {'seed': 3} ('3 4',) ()"


def test_messages_of_a_prompt_are_told() -> None:
    task = Task(
        "train:7", "<user>p", (7,), "", VerifierSpec("math"), messages=({"role": "user", "content": "p"},)
    )
    assert told_task(task, "r").question() == "p"


def test_the_turns_of_an_agents_branches_are_told_one_branch_after_the_other() -> None:
    whole = Trajectory("0-0", (1,), [Segment(0, [1], [0.0]), Observed([7], "{}"), Segment(0, [2], [0.0])])
    whole.branches = [Trajectory("0-0.1", (1,), [Segment(0, [3], [0.0])])]
    told = conversation_in(whole, CODEC)  # type: ignore[arg-type]
    assert told.turns == ("1", "2", "3")
    # An agent's notes have no messages: what the model read is told; nothing lies between two branches.
    assert told.observations == (({"role": "user", "content": "7"},), ())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("Wait, wait... WAIT!", {"wait": 3}),
        ("await waiting waits check_it recheck", {"check": 1}),
        ("But 1+1=3 is wrong; let me check.", {"but": 1, "wrong": 1, "check": 1}),
        ("check2 2check", {}),
        ("however\nHowever", {"however": 2}),
    ],
)
def test_words_are_counted_whole(text: str, found: dict[str, int]) -> None:
    words = ReflectionWords(REFLECTION_WORDS)
    assert {word: n for word, n in zip(words.words, words.count(text), strict=True) if n} == found


def test_a_longer_phrase_is_no_shorter_word_and_marks_and_other_scripts_are_taken_as_they_are() -> None:
    words = ReflectionWords(["wait", "wait a minute", "等等", "c++?"])
    assert words.count("Wait a minute. Wait! 不对等等再算 is it c++? a") == [1, 1, 1, 1]


def test_the_default_is_the_published_list_and_an_empty_word_is_refused() -> None:
    assert View().reflection_words[0] == "wait" and len(View().reflection_words) == 10
    with pytest.raises(ValueError, match="reflection_words"):
        View(reflection_words=[" "])
