"""Lengths of what was sampled, summed up."""

import sqlite3
from pathlib import Path

import pytest
from fakes.finished_run import write_journal

from asyncrl.journal.reader import JournalReader
from asyncrl.journal.responses import SampledTokens, read_sampled
from asyncrl.journal.writer import Journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_journal(tmp_path / "journal.sqlite")
    return tmp_path / "journal.sqlite"


# Three prompts of 4 tokens, responses of 3 and 4, 2, 1. A prompt's positions look at 1 + 2 + 3 + 4 tokens;
# those fed back at 5 + 6, 5 + 6 + 7, 5 and none.
WHOLE = SampledTokens(12.0, 10, 6, 3 * 10 + 11 + 18 + 5)


def test_a_prompt_counts_once_for_its_group_and_the_last_token_is_not_fed_back(path: Path) -> None:
    assert read_sampled(JournalReader(path)) == WHOLE


def test_compacted_trajectories_count_with_the_mean_prompt_of_the_others(path: Path) -> None:
    with sqlite3.connect(path) as db:
        for name, length in (("00000000-00", 3), ("00000000-01", 4)):
            db.execute("UPDATE trajectories SET prompt_tokens = x'' WHERE trajectory_id = ?", (name,))
            db.execute("DELETE FROM segments WHERE trajectory_id = ?", (name,))
            db.execute("INSERT INTO compacted VALUES (?, ?, 0, 1, '[]')", (name, length))
    assert read_sampled(JournalReader(path)) == WHOLE


def test_a_run_that_sampled_nothing_has_nothing(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.sqlite").close()
    assert read_sampled(JournalReader(tmp_path / "journal.sqlite")) == SampledTokens(0.0, 0, 0, 0.0)
