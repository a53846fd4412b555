"""Lines of a selection: whole conversations, and which messages and tokens of them the policy wrote."""

import json
from pathlib import Path

from fakes.turned_run import write_turned_run

from asyncrl.data.rows import Row
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.responses import read_graded, read_tokens
from asyncrl.model.tokenizer import TextCodec
from asyncrl.readers.selection.candidate import Candidate
from asyncrl.readers.selection.lines import LineMaker, Origin
from asyncrl.records import VerifierSpec


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
