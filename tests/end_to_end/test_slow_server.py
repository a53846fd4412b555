"""Two real servers, one of them really slow: what it holds resumes on the other one."""

import signal
import time
from pathlib import Path

import pytest
from fakes.slow_server import slowed
from fakes.whole_run import WholeRun

from asyncrl.commands.servers import change_servers

HEDGE_SECONDS = 1.0


def serving(run: WholeRun) -> list[str]:
    """URLs of the serving servers, in the order of the fleet."""
    found = change_servers(run.run_folder, "list", "")
    return [server["url"] for server in found if server["state"] == "serving"]


def went_on(run: WholeRun, before: str, after: str, since: float) -> int:
    """Trajectories that `after` continued from a prefix that `before` had streamed."""
    sql = (
        "SELECT count(*) FROM streams AS later JOIN streams AS earlier USING (trajectory_id) "
        f"WHERE earlier.server = '{before}' AND later.server = '{after}' AND later.position > "
        f"earlier.position AND earlier.started_seconds > {since}"
    )
    return int(run.query(sql)[0][0])


def finished_alone(run: WholeRun, url: str, since: float) -> int:
    """Trajectories that ended where they began, on `url`."""
    sql = (
        "SELECT count(*) FROM (SELECT trajectory_id FROM streams JOIN trajectories USING (trajectory_id) "
        "WHERE finish IS NOT NULL GROUP BY trajectory_id HAVING min(server) = max(server) "
        f"AND min(server) = '{url}' AND min(started_seconds) > {since})"
    )
    return int(run.query(sql)[0][0])


@pytest.mark.slow
def test_the_trajectories_of_a_slow_server_go_on_elsewhere_until_it_is_fast_again(
    tmp_path: Path,
) -> None:
    run = WholeRun(
        tmp_path,
        # Long enough for a response to be caught in the middle.
        model={"context_tokens": 120},
        rollout={"groups_per_batch": 4, "samples_per_group": 4, "max_new_tokens": 100},
        serving={
            "num_servers": 2,
            "max_running_requests": 16,
            "hedge_seconds": HEDGE_SECONDS,
        },
        trainer={"num_steps": 4000},
    ).start()
    run.wait_for_step(2)
    run.wait_for(lambda: len(serving(run)) == 2, "two serving servers")
    slow, fast = serving(run)
    (victim,) = (child for child in run.family()[1:] if slow.rpartition(":")[2] in child.cmdline())
    since, steps = time.time(), len(run.steps())
    with slowed(victim, running_seconds=0.15, stopped_seconds=1.5 * HEDGE_SECONDS):
        run.wait_for(lambda: went_on(run, slow, fast, since) > 0, "a trajectory that was hedged")
        run.wait_for_step(steps + 3)
    since = time.time()
    run.wait_for(
        lambda: finished_alone(run, slow, since) > 0, "a trajectory of the server that is fast again"
    )
    run.kill(signal.SIGINT)
    assert run.finish() == 130, run.output()
    assert f"got no token from {slow} for" in run.output()
    # Whatever moved was generated once.
    counters = dict(run.query("SELECT name, value FROM counters"))
    held = run.query("SELECT sum(length(tokens) / 4) FROM segments")[0][0]
    assert counters["tokens_generated"] - counters.get("tokens_dropped:unconfirmed", 0) == held
