"""What is said of a trainer rank that ended."""

import re
import signal
from pathlib import Path

import pytest

from asyncrl.errors import DiskError, Diverged
from asyncrl.launch.process import ChildProcess
from asyncrl.launch.trainers import _last_words


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            "step 3\nDiskError: Publication v4 ... it resumes.\n",
            "trainer 0 stopped. DiskError: Publication v4",
        ),
        (
            "step 3\nDiskError: Publication v4 under /ru",
            "the disk under .*run refuses .* Make room .* resumes",
        ),
        ("", "the disk under .*run refuses"),
    ],
)
def test_a_full_disk_is_said_in_whole_also_where_its_own_words_found_no_room(
    tmp_path: Path, log: str, said: str
) -> None:
    path = tmp_path / "run" / "logs" / "trainer-0.log"
    path.parent.mkdir(parents=True)
    path.write_text(log)
    rank = ChildProcess("trainer 0", [], environment={}, log_path=path)
    words = _last_words(rank, DiskError.EXIT_CODE)
    assert re.search(said, words), words


def test_of_a_trainer_that_diverged_the_hint_is_said_first(tmp_path: Path) -> None:
    path = tmp_path / "trainer-0.log"
    path.write_text("step 3\nDiverged: Lower trainer.learning_rate, which is 1\n[W] a warning of torch\n")
    rank = ChildProcess("trainer 0", [], environment={}, log_path=path)
    words = _last_words(rank, Diverged.EXIT_CODE)
    assert words == "trainer 0 stopped. Diverged: Lower trainer.learning_rate, which is 1"


def test_of_a_trainer_that_was_killed_the_usual_cause_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trainer-0.log"
    path.write_text("ready: version 0\n")
    rank = ChildProcess("trainer 0", [], environment={}, log_path=path)
    words = _last_words(rank, -signal.SIGKILL)
    assert (
        words.startswith("trainer 0 was killed (SIGKILL), as the kernel does") and "memory runs out" in words
    )
    assert words.endswith("ready: version 0")
    assert _last_words(rank, -signal.SIGTERM).startswith("trainer 0 ended with exit code -15.")
