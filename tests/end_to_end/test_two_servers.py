"""Two real servers: one is killed and rejoins, one is removed and added again, while the run trains; what is
removed stays so when the run is started again."""

import signal
from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

from asyncrl.commands.servers import change_servers


def states(run: WholeRun) -> dict[str, str]:
    return {server["url"]: server["state"] for server in change_servers(run.run_folder, "list", "")}


def serving(run: WholeRun, count: int) -> None:
    run.wait_for(lambda: list(states(run).values()) == ["serving"] * count, f"{count} serving servers")


def streams_after(run: WholeRun, url: str, row: int) -> int:
    ((count,),) = run.query(f"SELECT count(*) FROM streams WHERE server = '{url}' AND rowid > {row}")
    return int(count)


@pytest.mark.slow
def test_servers_that_are_killed_removed_and_added_do_not_stop_the_run(tmp_path: Path) -> None:
    run = WholeRun(
        tmp_path,
        rollout={"oversampling": 1.5},
        serving={"num_servers": 2, "hedge_seconds": 20},
        trainer={"num_steps": 4000},
    ).start()
    run.wait_for_step(2)
    serving(run, 2)
    first, second = states(run)
    (victim,) = (child for child in run.family()[1:] if first.rpartition(":")[2] in child.cmdline())
    victim.kill()
    run.wait_for(lambda: states(run)[first] == "restarting", "the killed server's leave")
    before = len(run.steps())
    serving(run, 2)
    assert len(run.steps()) > before, "the run waited for the killed server"
    change_servers(run.run_folder, "remove", second)
    run.wait_for(lambda: states(run) == {first: "serving"}, "the removed server's leave")
    run.wait_for(lambda: len(run.children("sglang.launch_server")) == 1, "the end of its process")
    ((row,),) = run.query("SELECT max(rowid) FROM streams")
    run.wait_for_step(len(run.steps()) + 3)
    assert streams_after(run, first, row) and not streams_after(run, second, row)
    change_servers(run.run_folder, "add", second)
    serving(run, 2)
    run.wait_for(lambda: streams_after(run, second, row) > 0, "a stream from the server that was added")
    change_servers(run.run_folder, "remove", first)
    run.wait_for(lambda: states(run) == {second: "serving"}, "the other server's leave")
    run.kill(signal.SIGINT)
    assert run.finish() == 130, run.output()
    steps = len(run.steps())
    run.start().wait_for_step(steps + 2)
    # The journal remembers that one was removed.
    assert len(run.children("sglang.launch_server")) == len(states(run)) == 1
    run.kill(signal.SIGINT)
    assert run.finish() == 130, run.output()
    counters = dict(run.query("SELECT name, value FROM counters"))
    held = run.query("SELECT sum(length(tokens) / 4) FROM segments")[0][0]
    assert counters["tokens_generated"] - counters.get("tokens_dropped:unconfirmed", 0) == held
