"""The sentence about a trainer rank that ended, and what the controller asks of processes."""

import asyncio
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import DiskError, Diverged, RankLost
from asyncrl.journal.starts import read_changes
from asyncrl.journal.writer import Journal
from asyncrl.launch.placement import GpuMap
from asyncrl.launch.site.site import ChildProcess, LocalSite
from asyncrl.launch.trainers import LocalSupervisor, TrainerFailed, TrainerRanks, _last_words
from asyncrl.recipe.sections.serving import Cluster
from asyncrl.wire.messages import ending_line

FULL = ending_line(DiskError("Publication v4 finds\nno room"))


def last_words(path: Path, log: str, exit_code: int) -> str:
    """The last lines of the rank with that log, when it has ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log)
    rank = ChildProcess(path.stem.replace("-", " "), [], environment={}, log_path=path)
    return _last_words(rank, exit_code)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (f"step 3\n{FULL}", "^trainer 0 stopped. DiskError: Publication v4 finds\nno room$"),
        (f"step 3 without an end{FULL}[W] of torch\n", "^trainer 0 stopped. DiskError: Publication v4"),
        (
            f"step 3\nDiskError: Publication v4 finds no room\n{FULL[:-9]}",
            "the disk under .*run refuses .* Free up disk space .* resumes",
        ),
        ("", "the disk under .*run refuses"),
    ],
)
def test_a_full_disk_is_said_in_whole_also_where_its_own_words_found_no_room(
    tmp_path: Path, log: str, said: str
) -> None:
    words = last_words(tmp_path / "run" / "logs" / "trainer-0.log", log, DiskError.EXIT_CODE)
    assert re.search(said, words), words


def test_of_a_trainer_that_diverged_the_hint_is_said_first(tmp_path: Path) -> None:
    record = ending_line(Diverged("Lower trainer.learning_rate, which is 1"))
    log = f"step 3\n{record}[W] a warning of torch\n"
    words = last_words(tmp_path / "trainer-0.log", log, Diverged.EXIT_CODE)
    assert words == "trainer 0 stopped. Diverged: Lower trainer.learning_rate, which is 1"


def test_of_a_trainer_that_was_killed_the_usual_cause_is_named(tmp_path: Path) -> None:
    log, path = "ready: version 0\n", tmp_path / "trainer-0.log"
    words = last_words(path, log, -signal.SIGKILL)
    assert (
        words.startswith("trainer 0 was killed (SIGKILL), as the kernel does") and "memory runs out" in words
    )
    assert words.endswith("ready: version 0")
    assert last_words(path, log, -signal.SIGTERM).startswith("trainer 0 ended with exit code -15.")


WATCHDOG = (
    """
[rank1]:[E1126 10:00:00 ProcessGroupNCCL.cpp:690] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600031 milliseconds \
before timing out.
"""
    + 60 * "frame #1: c10d::ProcessGroupNCCL::Watchdog::run() (libtorch_cuda.so)\n"
)
"""As torch 2.13 writes it, with a part of the stack."""
GONE = "[rank0]: NCCL error: remote process exited or there was a network error, NCCL version 2.29\n" + (
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting.\n"
)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            WATCHDOG,
            "^trainer 1 lost another rank: its ALLREDUCE had no end after 600 s .trainer.rank_timeout_sec",
        ),
        (GONE, "^trainer 1 lost another rank: its connection broke, so that rank or its machine is gone"),
        (
            "[Rank 0] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in "
            "monitoring enqueued collectives.\n",
            "^trainer 1 hung: its GPU made no progress for 480 s",
        ),
        ("double free or corruption\n", "^trainer 1 ended with exit code -6. Its last lines"),
    ],
)
def test_a_rank_that_nccls_watchdog_ended_is_told_in_a_sentence(tmp_path: Path, log: str, said: str) -> None:
    words = last_words(tmp_path / "trainer-1.log", log, -signal.SIGABRT)
    assert re.search(said, words), words


class LostRank:
    """A rank on another node, which is lost some time after its peer has met a broken connection."""

    name, loss_seconds, log_path = "trainer 1", 10.0, Path("trainer-1.log")

    def __init__(self, peer: "ChildProcess") -> None:
        self.why_lost, self._peer, self._code = "", peer, None

    def returncode(self) -> int | None:
        return self._code

    def is_running(self) -> bool:
        return self._code is None

    async def wait(self) -> int:
        await self._peer.wait()
        await asyncio.sleep(0.1)
        self.why_lost, self._code = "its node 10.0.0.3 was lost", -signal.SIGKILL
        return self._code

    def last_lines(self, num_lines: int = 15) -> str:
        return "step 3"


async def test_of_two_ranks_that_end_the_one_on_a_lost_node_is_the_cause(tmp_path: Path) -> None:
    peer = ChildProcess("trainer 0", ["-c", "exit(1)"], environment={}, log_path=tmp_path / "trainer-0.log")
    peer.loss_seconds = 10.0
    await peer.start()
    ranks = TrainerRanks(
        make_recipe(tmp_path), run_folder=tmp_path, logs=tmp_path, site=LocalSite(Cluster(), GpuMap("here"))
    )
    ranks.ranks = [peer, LostRank(peer)]  # type: ignore[list-item]
    with pytest.raises(TrainerFailed, match=r"trainer 1 is lost: its node 10.0.0.3 was lost") as failed:
        await ranks.wait()
    # Nothing is said against the recipe: another start may help.
    assert failed.value.was_killed and not failed.value.is_certain


async def ended_ranks(folder: Path, programs: dict[str, str]) -> TrainerRanks:
    """Ranks whose programs have ended, all before anybody looked."""
    found = [
        ChildProcess(name, ["-c", code], environment={}, log_path=folder / f"{name}.log")
        for name, code in programs.items()
    ]
    for rank in found:
        await rank.start()
        await rank.wait()
    ranks = TrainerRanks(
        make_recipe(folder), run_folder=folder, logs=folder, site=LocalSite(Cluster(), GpuMap("here"))
    )
    ranks.ranks = list(found)
    return ranks


ABORTED = f"print({WATCHDOG!r}, flush=True); import os; os.abort()"


@pytest.mark.parametrize(("code", "said"), [(1, "CUDA out of memory"), (-9, "SIGKILL"), (2, "weight gave")])
async def test_a_rank_that_nccls_watchdog_ended_is_not_the_cause_next_to_one_that_failed(
    tmp_path: Path, code: int, said: str
) -> None:
    failed = "import os; os.kill(os.getpid(), 9)" if code == -9 else f"print({said!r}); exit({code})"
    with pytest.raises(TrainerFailed, match=rf"(?s)^trainer 1 .*{said}"):
        await (await ended_ranks(tmp_path, {"trainer 0": ABORTED, "trainer 1": failed})).wait()


async def test_where_all_that_ended_lost_another_one_of_them_says_so(tmp_path: Path) -> None:
    with pytest.raises(TrainerFailed, match=r"trainer 0 lost another rank: its ALLREDUCE") as failed:
        await (await ended_ranks(tmp_path, {"trainer 0": ABORTED})).wait()
    assert failed.value.was_killed and not failed.value.is_certain


async def test_of_two_ranks_that_end_the_one_that_says_why_is_the_cause(tmp_path: Path) -> None:
    """The other one only lost it: a term of the recipe's own broke on one rank in the middle of a step."""
    names = {"trainer 0": f"exit({RankLost.EXIT_CODE})", "trainer 1": "print('weight gave (3,)'); exit(2)"}
    ranks = await ended_ranks(tmp_path, names)
    with pytest.raises(TrainerFailed, match=r"(?s)trainer 1 .*weight gave \(3,\)") as failed:
        await ranks.wait()
    assert failed.value.is_certain


async def test_servers_and_trainer_are_reached_and_changes_outlive_the_start(tmp_path: Path) -> None:
    done: list[tuple[str, str]] = []

    async def restart(url: str) -> None:
        done.append(("restart", url))

    async def end(url: str) -> None:
        done.append(("end", url))

    local = "http://127.0.0.1:31000"
    servers: Any = SimpleNamespace(processes={local: None}, restart=restart, end=end)
    trainers: Any = SimpleNamespace(kill=lambda why: done.append(("kill", why)))
    recipe = make_recipe(tmp_path)
    journal = Journal(tmp_path / "journal.sqlite")
    supervisor = LocalSupervisor(recipe, servers, trainers, journal)
    await supervisor.restart_server("http://a:1")
    await supervisor.end_server("http://b:1")
    supervisor.kill_trainer("it hangs")
    assert done == [("restart", "http://a:1"), ("end", "http://b:1"), ("kill", "it hangs")]
    supervisor.record_server_change("add", "http://c:1")
    supervisor.record_server_change("remove", local)
    journal.barrier_blocking()
    changes = read_changes(journal, recipe.serving)
    assert list(changes.added) == ["http://c:1"] and changes.removed_local == {local}
