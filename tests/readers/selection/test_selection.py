"""What a selection sees, its lines, and the file that it writes."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.small_disk import refused_writes
from fakes.turned_run import write_turned_run
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.data.digests import question_digest
from asyncrl.data.rows import Row
from asyncrl.errors import DiskError, InputError
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.responses import GradedResponse, read_graded, read_tokens
from asyncrl.model.tokenizer import TextCodec
from asyncrl.readers.selection.candidate import Candidate, Fate, Filters
from asyncrl.readers.selection.choices import CHOICES, Rules
from asyncrl.readers.selection.selection import Reading, Selection, missing_responses
from asyncrl.readers.selection.written import TYPES, LineMaker, Origin, Output
from asyncrl.records import Score, VerifierSpec

MATH = VerifierSpec("math")
SCORES = {"correct": 1.0, "wrong": 0.0, "no_answer": 0.0, "fault": None}
RESPONSE = st.fixed_dictionaries(
    {
        "outcome": st.sampled_from([*SCORES, None]),
        "text": st.sampled_from(["a", "b", "c", "d", None]),
        "num_tokens": st.integers(1, 4),
        "step": st.integers(1, 3),
        "has_branches": st.booleans(),
    }
)
GROUPS = st.lists(st.tuples(st.integers(1, 6), st.lists(RESPONSE, max_size=5)), max_size=8)
"""(number of the row, responses) of each group; the data has rows 1 to 5, and 4 and 5 ask the same."""


class Kept:
    """A file in memory."""

    def __init__(self) -> None:
        self.lines: list[Mapping[str, Any]] = []

    @property
    def num_lines(self) -> int:
        return len(self.lines)

    def add(self, line: Mapping[str, Any]) -> None:
        self.lines.append(line)


class Written(Reading):
    """Responses that were never in a file."""

    by_group: dict[int, list[GradedResponse]]

    def graded(self, groups: Sequence[int]) -> list[GradedResponse]:
        return [each for group in groups for each in self.by_group[group]]


def rows() -> list[Row]:
    return [Row("", f"train:{n}", 0, f"{min(n, 4)}+1=", str(n), MATH) for n in range(1, 6)]


def reading(groups: Sequence[tuple[int, Sequence[Mapping[str, Any]]]]) -> Written:
    by_row: dict[str, list[int]] = {}
    for number, (row, _) in enumerate(groups):
        by_row.setdefault(f"train:{row}", []).append(number)
    found = Written(
        None, by_row, Filters(steps=(1, 2)), {question_digest("3 + 1 ="), question_digest("2+1=")}
    )
    found.by_group = {
        number: [response(number, place, **each) for place, each in enumerate(responses)]
        for number, (_, responses) in enumerate(groups)
    }
    return found


def response(
    group: int,
    place: int,
    *,
    outcome: str | None,
    text: str | None,
    num_tokens: int,
    step: int,
    has_branches: bool,
) -> GradedResponse:
    score = None if outcome is None else SCORES[outcome]
    judged = (outcome, score, score, None, None)
    rest = (num_tokens, 0, 0, text is None, False, has_branches)
    return GradedResponse(group, f"{group}-{place}", step, "", "stop", *judged, text, *rest)


def made(row: int, outcome: str, text: str) -> Candidate:
    score = Score(outcome, SCORES[outcome], SCORES[outcome], None, "", 0.0)
    return Candidate(
        f"train:{row}+{text}{outcome}", f"train:{row}", None, None, 0, 0, "stop", text, 2, score, MATH
    )


@given(GROUPS, st.sampled_from([c for c in CHOICES.values() if not c.votes]), st.sampled_from([None, 1, 2]))
def test_all_that_is_seen_has_one_fate_and_no_text_is_written_twice(groups, choice, limit) -> None:
    output, told = Kept(), []
    maker = LineMaker(Origin("run", choice.name, None, None), None, has_turns=False, has_tokens=False)
    selection = Selection(reading(groups), choice, Rules(limit=limit), maker, output)  # type: ignore[arg-type]
    generated = {
        "train:1": [made(1, "correct", "a"), made(1, "fault", "f")],
        "train:2": [made(2, "wrong", "w")],
    }
    asyncio.run(selection.write(rows(), generated, told.append))
    account = selection.account
    assert sum(told) == len(rows())
    assert account.seen["groups"] == len(groups)
    # Row 2 is left out, so nothing is generated for it.
    assert account.seen["responses"] == sum(len(responses) for _, responses in groups) + 2
    assert account.seen["rows"] == len({row for row, _ in groups} | {1, 2, 3, 4, 5})
    columns = ("chosen", "rejected") if choice.is_pairs else ("response",)
    texts = [(line["prompt"], line[column]) for line in output.lines for column in columns]
    assert len(texts) == len({*texts}) == account.fates["responses"][Fate.WRITTEN]
    verdicts = [line[name] for line in output.lines for name in line if name.endswith("verdict")]
    assert "fault" not in verdicts
    assert not {"2+1=", "5+1="} & {prompt for prompt, _ in texts}
    assert limit is None or all(
        sum(line["from_row"] == row.row_id for line in output.lines) <= limit for row in rows()
    )


def test_a_row_lacks_what_it_has_not_and_what_was_compacted() -> None:
    there = {"outcome": "correct", "num_tokens": 1, "step": 1, "has_branches": False}
    groups = [
        (1, [{**there, "text": "a"}, {**there, "text": None}, {**there, "text": "a", "outcome": "fault"}])
    ]
    parts = list(reading(groups).parts(rows()))
    # Rows 2 and 3 are left out: 3 + 1 is another question than 3+1.
    assert missing_responses(parts, wanted=2, replaces_compacted=False) == {
        f"train:{n}": 1 + (n > 1) for n in (1, 3, 4, 5)
    }
    assert missing_responses(parts, wanted=0, replaces_compacted=True) == {"train:1": 1}


def test_a_conversation_has_its_answers_and_says_what_the_policy_wrote(tmp_path: Path) -> None:
    run = write_turned_run(tmp_path)
    (tmp_path / "model" / "config.json").write_text(json.dumps({"eos_token_id": 99}))
    journal, row = (
        JournalReader(run / "journal.sqlite"),
        Row("train", "train:1", 0, "1+1=", "2", VerifierSpec("math")),
    )
    second = read_graded(journal, [0])[1]
    assert second.has_turns and not second.has_branches
    maker = LineMaker(Origin("run", "correct", None, None), TextCodec(tmp_path / "model"), True, True)
    tokens = read_tokens(journal, [second.trajectory_id])
    line = maker.line(row, [Candidate.of(second, row.row_id, row.verifier)], tokens)
    assert line["messages"] == [
        {"role": "user", "content": "1+1="},
        {"role": "assistant", "content": " I guess 7"},
        {"role": "user", "content": "try again"},
        {"role": "assistant", "content": " I guess 8"},
    ]
    assert line["messages_sampled"] == [False, True, False, True]
    assert line["response_sampled"] == [True] * 3 + [False] * 4 + [True] * 3
    assert len(line["response_tokens"]) == 10 and line["prompt_tokens"] == [7, 8, 9]


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    with (
        refused_writes(from_bytes=1000),
        pytest.raises(DiskError, match=f"{name} could not be written: .* Nothing of it is left."),
        Output(tmp_path / name, TYPES) as output,
    ):
        for number in range(3000):
            output.add({"prompt": f"{number}?", "response": str(number)})
    assert not [*tmp_path.iterdir()]


def test_parquet_refuses_rows_of_two_kinds_in_a_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="a column has values of several kinds"),
        Output(tmp_path / "out.parquet", TYPES) as output,
    ):
        output.add({"prompt": "1+1=", "response": "2"})
        output.add({"prompt": [{"role": "user", "content": "1+1="}], "response": "2"})
    assert not [*tmp_path.iterdir()]


def test_without_lines_the_former_file_stays(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("former")
    with Output(tmp_path / "out.jsonl", TYPES):
        pass
    assert [path.read_text() for path in tmp_path.iterdir()] == ["former"]
