"""Two real servers, one of them really slow: new groups avoid it, what it holds resumes on the other one."""

import signal
import time
from pathlib import Path

import pytest
from fakes.slow_server import slowed
from fakes.whole_run import WholeRun

from asyncrl.commands.servers import change_servers

SLOW_SECONDS = 4.0
HEDGE_SECONDS = 1.0


def is_slow(run: WholeRun) -> dict[str, bool]:
    """Of each serving server, in the order of the fleet."""
    found = change_servers(run.run_folder, "list", "")
    return {server["url"]: server["is_slow"] for server in found if server["state"] == "serving"}


def groups_begun(run: WholeRun, url: str, since: float, until: float) -> int:
    """Groups whose first stream came from `url`, between two moments of Unix time."""
    sql = (
        "SELECT count(DISTINCT group_id) FROM streams JOIN trajectories USING (trajectory_id) "
        f"WHERE position = 0 AND server = '{url}' AND started_seconds BETWEEN {since} AND {until}"
    )
    return int(run.query(sql)[0][0])


def begun_while_slow(run: WholeRun, slow: str, fast: str) -> int:
    """Groups that began on the slow server while it was known as slow and groups began on the fast one."""
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline:
        run.wait_for(lambda: is_slow(run).get(slow, False), f"{slow} to be called slow")
        since = time.time()
        while is_slow(run).get(slow, False) and groups_begun(run, fast, since, time.time()) < 2:
            time.sleep(0.05)
        until = time.time()
        if is_slow(run).get(slow, False):
            return groups_begun(run, slow, since, until)
    raise AssertionError(f"no group began while {slow} was slow: {run.output()}")


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
def test_a_slow_server_gets_no_new_groups_and_its_trajectories_go_on_elsewhere_until_it_is_fast_again(
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
            "slow_share": 0.3,
            "slow_seconds": SLOW_SECONDS,
            "hedge_seconds": HEDGE_SECONDS,
        },
        trainer={"num_steps": 4000},
    ).start()
    run.wait_for_step(2)
    run.wait_for(lambda: len(is_slow(run)) == 2, "two serving servers")
    slow, fast = is_slow(run)
    (victim,) = (child for child in run.family()[1:] if slow.rpartition(":")[2] in child.cmdline())
    since, steps = time.time(), len(run.steps())
    with slowed(victim, running_seconds=0.15, stopped_seconds=1.5 * HEDGE_SECONDS):
        assert begun_while_slow(run, slow, fast) == 0
        run.wait_for(lambda: went_on(run, slow, fast, since) > 0, "a trajectory that was hedged")
        run.wait_for_step(steps + 3)
    since = time.time()
    run.wait_for(
        lambda: finished_alone(run, slow, since) > 0, "a trajectory of the server that is fast again"
    )
    run.kill(signal.SIGINT)
    assert run.finish(seconds=60.0) == 130, run.output()
    for words in (f"server {slow} is slow", f"got no token from {slow} for"):
        assert words in run.output()
    # Whatever moved was generated once.
    counters = dict(run.query("SELECT name, value FROM counters"))
    held = run.query("SELECT sum(length(tokens) / 4) FROM segments")[0][0]
    assert counters["tokens_generated"] - counters.get("tokens_dropped:unconfirmed", 0) == held
