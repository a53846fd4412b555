"""The benchmark of the controller divides its time among parts, each file among one, and runs."""

import cProfile
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.controller_bench import PARTS, part_of, shares_by_part

BENCH = Path(__file__).parents[1] / "benchmarks" / "controller_bench.py"


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("/x/asyncrl/serving/sglang/messages.py", "parsing"),
        ("/x/asyncrl/serving/sglang/http.py", "HTTP"),
        ("/x/asyncrl/serving/confirmation.py", "segments"),
        ("/x/asyncrl/serving/server.py", "generation"),
        ("/x/asyncrl/rollout/generate.py", "generation"),
        ("/x/asyncrl/rollout/grade.py", "verdicts"),
        ("/x/asyncrl/replay/queue.py", "queue"),
        ("/x/asyncrl/journal/writer.py", "journal, hand-over"),
        ("/x/asyncrl/controller/trainer_wire.py", "takes"),
        ("/usr/lib/python3.11/random.py", "other"),
    ],
)
def test_a_file_belongs_to_one_part(file: str, part: str) -> None:
    assert part_of(file) == part and part in {*PARTS, "other"}


def test_shares_are_of_all_the_time_and_a_call_into_c_is_its_callers() -> None:
    profile = cProfile.Profile(time.thread_time)
    code = compile("sum(range(200_000))", "/x/asyncrl/replay/queue.py", "exec")
    profile.runcall(exec, code, {})
    shares = shares_by_part(profile)
    assert sum(shares.values()) == pytest.approx(1.0) and shares["queue"] > 0.5


@pytest.mark.slow
def test_it_runs_with_two_trees_side_by_side() -> None:
    sizes = ["--streams", "32", "--tokens", "64", "--rounds", "1", "--against", str(BENCH.parents[2])]
    done = subprocess.run([sys.executable, str(BENCH), *sizes], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "there" in done.stdout and "of a core per 10,000 tokens/s" in done.stdout
