"""The arithmetic recipe on a Ray cluster of three nodes on this machine: two servers and two trainer ranks,
real SGLang and Megatron over gloo. A node is killed in mid-run; the run ends with every token accounted for
and with the accuracy that training gives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.whole_run import WholeRun

from asyncrl.commands.servers import change_servers
from asyncrl.journal.conservation import read_conservation

pytest.importorskip("ray", reason="Ray is not installed: make setup RAY=1")

from fakes.ray_nodes import ray_nodes
from ray.cluster_utils import Cluster

# Ray leaves sockets and files to the end of the process.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.filterwarnings("default")]
RECIPE = Path(__file__).parents[2] / "recipes" / "r1_zero_arithmetic_cpu.yaml"
NUM_STEPS = 30


class ArithmeticRun(WholeRun):
    """The recipe as it is shipped, with a run folder and a layout of its own."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder, self.run_folder = folder, folder / "run"
        self._words = [str(RECIPE), *overrides, f"run_folder={self.run_folder}"]
        self.process = None

    def words(self) -> list[str]:
        return self._words


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    """One of the two nodes with GPUs is enough."""
    with ray_nodes(4, 4, caches=tmp_path / "caches") as cluster:
        yield cluster


def processes_on(node: Any) -> list[str]:
    """The command lines below a node's raylet."""
    (raylet,) = node.all_processes["raylet"]
    return [" ".join(p.cmdline()) for p in psutil.Process(raylet.process.pid).children(recursive=True)]


def node_with(nodes: Cluster, word: str) -> Any:
    return next(node for node in nodes.worker_nodes if any(word in line for line in processes_on(node)))


def serving(run: WholeRun) -> list[str]:
    rows = change_servers(run.run_folder, "list", "")
    return [row["url"] for row in rows if row["state"] == "serving"]


def test_a_run_whose_node_is_killed_ends_with_the_same_books_and_accuracy(
    nodes: Cluster, tmp_path: Path
) -> None:
    run = ArithmeticRun(
        tmp_path,
        "cluster.backend=ray",
        # On pretended GPUs, which no process can use: it then computes on the CPU.
        "placement.device=auto",
        f"cluster.address={nodes.address}",
        "serving.num_servers=2",
        "trainer.num_processes=2",
        f"trainer.num_steps={NUM_STEPS}",
        "trainer.checkpoint_every_steps=4",
        "evaluation.every_steps=0",
        "memory_gib=16",
    )
    run.start()
    run.wait_for(lambda: run.run_folder.exists() and len(run.steps()) >= 6, "step 6", seconds=900)
    run.wait_for(lambda: len(serving(run)) == 2, "two serving servers")
    before = serving(run)
    victim = node_with(nodes, "asyncrl.trainer.main")
    has_server = any("sglang.launch_server" in line for line in processes_on(victim))
    nodes.remove_node(victim, allow_graceful=False)
    run.wait_for(lambda: "The trainer restarts from its last checkpoint" in run.output(), "the restart")
    run.wait_for(lambda: len(run.steps()) >= 12 and len(serving(run)) == 2, "both servers", seconds=400)
    assert (set(serving(run)) != set(before)) == has_server
    assert "was lost" in run.output() and "ActorDiedError" not in run.output()
    assert run.finish(seconds=900) == 0, run.output()
    books = read_conservation(run.run_folder / "journal.sqlite")
    out = sum(tokens for name, tokens in books.items() if name != "generated")
    assert books["generated"] == out > 0 and books["queued"] == 0, books
    ((num_groups, num_steps),) = run.query(
        "SELECT count(*), count(DISTINCT taken_version) FROM groups WHERE taken_version >= 0"
    )
    assert (num_groups, num_steps) == (16 * NUM_STEPS, NUM_STEPS)
    gain = run.evaluation("after")["greedy_accuracy"] - run.evaluation("before")["greedy_accuracy"]
    assert gain > 0.15, run.output()
    logs = "".join(path.read_text() for path in (run.run_folder / "logs").iterdir())
    assert "ready: version" in logs and "fired up and ready to roll" in logs
    assert (run.run_folder / "checkpoints" / f"step-{NUM_STEPS}" / "hf").is_dir()
