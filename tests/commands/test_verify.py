"""`asyncrl verify` as it is run: rows in, the same rows out with a verdict, in order."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.commands import Command

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from asyncrl.commands.main import main; sys.exit(main(['verify', *sys.argv[1:]]))"


def verify(*arguments: str, cwd: Path, rows: list[dict[str, Any]] | None = None, text: str = "") -> Any:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        input="".join(json.dumps(row) + "\n" for row in rows) if rows is not None else text,
        capture_output=True,
        text=True,
        timeout=300,
    )


ROWS = [
    {"id": 1, "gold": "1/2", "response": "\\boxed{0.5}"},
    {"id": 2, "gold": "1/2", "response": "\\boxed{0.6}", "note": "é😀"},
    {"id": 3, "gold": "x^2-1", "response": "\\boxed{(x-1)(x+1)}"},
    {"id": 4, "gold": "42", "response": "42"},
    {"id": 5, "gold": "\\frac{1}{", "response": "\\boxed{1}"},
]


def test_rows_come_back_in_order_with_their_verdicts(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in ROWS))
    done = verify("rows.jsonl", "--workers", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = [json.loads(line) for line in done.stdout.splitlines()]
    assert [{key: row[key] for key in row if key != "verdict"} for row in out] == ROWS
    verdicts = [row["verdict"] for row in out]
    assert [verdict["outcome"] for verdict in verdicts] == [
        "correct",
        "wrong",
        "correct",
        "no_answer",
        "fault",
    ]
    assert [verdict["score"] for verdict in verdicts] == [1.0, 0.0, 1.0, 0.0, None]
    assert set(verdicts[0]) == {"outcome", "score", "extracted", "detail", "seconds"}
    assert "bad gold" in verdicts[4]["detail"]
    assert "5 rows" in done.stderr and "2 correct, 1 wrong, 1 no_answer, 1 fault" in done.stderr


def test_standard_input_options_and_verifiers_of_ones_own(tmp_path: Path) -> None:
    done = verify("-", "--set", 'fallbacks=["last_line"]', cwd=tmp_path, rows=[ROWS[3]])
    assert json.loads(done.stdout)["verdict"]["outcome"] == "correct"
    (tmp_path / "own.py").write_text(
        "from verifiers.verdict import Outcome, Verdict\n"
        "class Ends:\n"
        "    def __init__(self, mark='!'): self.mark = mark\n"
        "    def parse_reference(self, raw): return raw\n"
        "    def verify(self, response, reference):\n"
        "        good = response.endswith(self.mark)\n"
        "        return Verdict(Outcome.CORRECT if good else Outcome.WRONG, float(good))\n"
    )
    done = verify(
        "-",
        "--verifier",
        "./own.py:Ends",
        "--set",
        "mark=?",
        cwd=tmp_path,
        rows=[{"gold": 1, "response": "a?"}],
    )
    assert json.loads(done.stdout)["verdict"]["outcome"] == "correct", done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["bad.jsonl"], "bad.jsonl:2: the row has no 'response'"),
        (
            ["bad.jsonl", "--verifier", "group_judge", "--set", "url=http://x", "--set", "model=m"],
            "cannot judge one alone, and each row of a file has one",
        ),
        (["bad.jsonl", "--set", "fallback=1"], "has no option 'fallback'. Did you mean 'fallbacks'"),
    ],
)
def test_bad_input_ends_with_2_and_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_command: Command
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"gold": 1, "response": "x"}\n{"gold": 1}\n')
    monkeypatch.chdir(tmp_path)
    line, page = whole_command("verify", *words, code=2).err.splitlines()
    assert page == "Read: verifiers/README.md"
    assert sentence in line


def test_a_line_of_standard_input_that_is_no_row_ends_with_2(tmp_path: Path) -> None:
    done = verify("-", cwd=tmp_path, text="not json\n")
    assert done.returncode == 2 and "standard input:1: not JSON" in done.stderr


def test_a_contract_is_checked_and_a_broken_one_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "FAIL" not in whole_command("verify", "--contract", "math").out
    (tmp_path / "own.py").write_text(
        "class Bad:\n"
        "    def parse_reference(self, raw): return raw\n"
        "    def verify(self, response, reference): return 1\n"
    )
    said = whole_command("verify", "--contract", "./own.py:Bad", code=1).out
    assert "FAIL no response makes it raise, hang or fault" in said
