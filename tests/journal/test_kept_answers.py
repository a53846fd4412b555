"""The file in which `asyncrl eval` keeps answers, verdicts and results."""

import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.journal.kept_answers import AnswerStore, KeptAnswer, KeptVerdict, read_results

FIRST, SECOND = KeptAnswer([5, 6, 1], False), KeptAnswer([7], True)


def test_answers_and_verdicts_are_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    with AnswerStore(tmp_path / "new" / "answers.sqlite") as store:
        store.add_answers([(b"a", 0, FIRST), (b"a", 3, SECOND), (b"b", 0, SECOND)])
        store.add_verdicts(
            {b"x": KeptVerdict("wrong", 0.25, "4\ud800"), b"y": KeptVerdict("correct", 1.0, None)}
        )
    with AnswerStore(tmp_path / "new" / "answers.sqlite") as store:
        assert store.answers(b"a", 4) == {0: FIRST, 3: SECOND}
        assert store.answers(b"a", 3) == {0: FIRST}
        found = store.verdicts([b"x", b"y", b"z"])
        # What SQLite cannot hold is replaced.
        assert found == {b"x": KeptVerdict("wrong", 0.25, "4\ufffd"), b"y": KeptVerdict("correct", 1.0, None)}
        store.forget_answers(b"a")
        assert (store.answers(b"a", 4), store.answers(b"b", 1)) == ({}, {0: SECOND})


def test_of_two_answers_to_one_place_the_first_stays(tmp_path: Path) -> None:
    with AnswerStore(tmp_path / "answers.sqlite") as one, AnswerStore(tmp_path / "answers.sqlite") as other:
        one.add_answers([(b"a", 0, FIRST)])
        other.add_answers([(b"a", 0, SECOND), (b"a", 1, SECOND)])
        assert one.answers(b"a", 2) == {0: FIRST, 1: SECOND}


def test_no_two_starts_of_servers_have_one_seed(tmp_path: Path) -> None:
    seeds = []
    for _ in range(3):
        with AnswerStore(tmp_path / "answers.sqlite") as store:
            seeds += [store.new_seed(0), store.new_seed(0)]
    assert len(set(seeds)) == 6 and all(0 <= seed < 2**31 for seed in seeds)
    with AnswerStore(tmp_path / "other.sqlite") as store:
        # The same starts draw the same.
        assert store.new_seed(0) == seeds[0]
        assert store.new_seed(1) != seeds[1]


def test_a_process_that_is_killed_leaves_what_it_had_added(tmp_path: Path) -> None:
    file = tmp_path / "answers.sqlite"
    program = f"""
        import os, signal
        from pathlib import Path
        from asyncrl.journal.kept_answers import AnswerStore, KeptAnswer
        store = AnswerStore(Path({str(file)!r}))
        store.add_answers([(b"a", 0, KeptAnswer([1], False))])
        store.add_answers((b"a", n, KeptAnswer([1], False)) if n < 3 else os.kill(os.getpid(), signal.SIGKILL)
                          for n in range(1, 4))
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=os.environ, check=False)
    assert ended.returncode == -9
    with AnswerStore(file) as store:
        assert store.answers(b"a", 4) == {0: KeptAnswer([1], False)}


def test_the_result_with_most_samples_stays_and_a_fresh_one_replaces_any(tmp_path: Path) -> None:
    file = tmp_path / "answers.sqlite"

    def kept() -> list[tuple[str, int]]:
        return [(result.label, result.result["k"]) for result in read_results(file)]

    assert read_results(file) == []
    with AnswerStore(file) as store:
        store.keep_result("sums", "s", "m", "base", {"k": 64}, num_samples=64)
        store.keep_result("sums", "s", "m", "base again", {"k": 16}, num_samples=16)
        assert kept() == [("base", 64)]
        store.keep_result("sums", "other", "m", "base", {"k": 16}, num_samples=16)
        store.keep_result("sums", "s", "m", "step 0", {"k": 64}, num_samples=64)
        assert kept() == [("base", 16), ("step 0", 64)]
        store.keep_result("sums", "s", "m", "base", {"k": 8}, num_samples=8, is_fresh=True)
        assert sorted(kept()) == [("base", 8), ("base", 16)]


def test_another_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    text, newer = tmp_path / "text", tmp_path / "newer"
    text.write_text("no database, but long enough to have a header of its own" * 40)
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(
        InputError, match="text cannot hold the answers of evaluations: file is not a database"
    ):
        AnswerStore(text)
    with pytest.raises(InputError, match="text cannot be read as the answers of evaluations"):
        read_results(text)
    for read in (AnswerStore, read_results):
        with pytest.raises(InputError, match="in layout 9, .* reads 1 only. Move it away to ask again"):
            read(newer)
