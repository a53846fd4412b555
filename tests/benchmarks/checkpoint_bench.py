"""What a checkpoint costs: how long training waits for it, CPU time, and memory; for `make bench`.

    python tests/benchmarks/checkpoint_bench.py [--sizes 0.6M,5M,100M] [--rounds 5] [--other TREE]
        [--dtype float32]

Random weights and Adam states of Qwen3 shapes, in one process and in two that share the data, with and
without distributed optimizer. Nothing is trained. Each row is a process tree of its own; with --other, a
checkout of another commit, its rows come in turn with ours. Per row:

    GB        bytes of the checkpoint
    waits     milliseconds until the slowest rank may train on: the first save, the median of the others
    ms/GB     of those others
    CPU ms    of the waiting thread, median, of the slowest rank
    CPU s     of all ranks per save, until it is complete
    peak      of the fullest rank, above what it held before the first save, as a share of the checkpoint

A size takes 28 bytes per parameter and process in float32 and as much disk as three checkpoints.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.recipes import make_recipe

from asyncrl.system.network import free_ports

HERE = Path(__file__).parents[2]
SHAPES = {
    "0.6M": {"hidden_size": 128, "num_hidden_layers": 3, "intermediate_size": 384, "vocab_size": 24},
    "5M": {"hidden_size": 256, "num_hidden_layers": 6, "intermediate_size": 768, "vocab_size": 24},
    "100M": {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 2048, "vocab_size": 16384},
    "250M": {"hidden_size": 1024, "num_hidden_layers": 17, "intermediate_size": 3072, "vocab_size": 16384},
}
COMMON = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
LAYOUTS = {
    "alone": (1, {}),
    "data": (2, {}),
    "data, optimizer": (2, {"distributed_optimizer": True}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="0.6M,5M,100M")
    parser.add_argument("--layouts", default=";".join(LAYOUTS), help="separated by semicolons")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--other", type=Path)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return save_repeatedly(json.loads(options.rank))
    print(
        f"{'size':>5} {'layout':<16} {'tree':<6} {'GB':>6} {'waits':>15} {'ms/GB':>6} {'CPU ms':>6} "
        f"{'CPU s':>6} {'peak':>5}"
    )
    trees = {"this": HERE} | ({"other": options.other.resolve()} if options.other else {})
    for size in options.sizes.split(","):
        for layout in options.layouts.split(";"):
            for name, tree in trees.items():
                print(row(size, layout, name, tree, options.rounds, options.dtype), flush=True)


def row(size: str, layout: str, name: str, tree: Path, rounds: int, dtype: str) -> str:
    count, parallel = LAYOUTS[layout]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        shape = SHAPES[size]
        config = COMMON | shape | {"head_dim": shape["hidden_size"] // 8}
        (root / "config.json").write_text(json.dumps(config))
        task = {"root": scratch, "parallel": parallel, "rounds": rounds, "dtype": dtype}
        environment = os.environ | {
            "PYTHONPATH": str(tree),
            "WORLD_SIZE": str(count),
            "MASTER_PORT": str(free_ports(1)[0]),
        }
        command = [sys.executable, __file__, "--rank", json.dumps(task)]
        ranks = [
            subprocess.Popen(command, env=environment | {"RANK": str(i)}, stdout=subprocess.PIPE, cwd=scratch)
            for i in range(count)
        ]
        found = [json.loads(rank.communicate()[0].splitlines()[-1]) for rank in ranks]
    waits = [max(times) * 1000 for times in zip(*(each["waits"] for each in found), strict=True)]
    later, size_bytes = statistics.median(waits[1:]), found[0]["bytes"]
    seconds = sum(each["cpu"] for each in found)
    busy = max(each["busy"] for each in found)
    peak = max(each["peak"] for each in found) / size_bytes
    return (
        f"{size:>5} {layout:<16} {name:<6} {size_bytes / 1e9:6.3f} {waits[0]:7.0f} {later:7.1f} "
        f"{later / size_bytes * 1e9:6.0f} {busy * 1000:6.1f} {seconds:6.2f} {peak:5.2f}"
    )


def save_repeatedly(task: dict) -> None:
    """One rank: prints its seconds per save, CPU seconds per save, and bytes."""
    warnings.filterwarnings("ignore")
    from asyncrl.model.folder import read_shape
    from asyncrl.model.layout import check_layout
    from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
    from asyncrl.trainer.parts.table import build_learner
    from asyncrl.trainer.ranks import ranks

    root = Path(task["root"])
    trainer = {"num_processes": int(os.environ["WORLD_SIZE"]), "parallel": task["parallel"]}
    recipe = make_recipe(root, trainer=trainer, model={"dtype": task["dtype"]})
    shape = read_shape(root)
    ranks.start(threads=1, seed=0, layout=check_layout(recipe, shape))
    learner = build_learner(shape, recipe)
    make_moments(learner.optimizer)
    checkpoints = Checkpoints(root / "checkpoints", num_kept=1)
    before = reset_peak()
    waits, busy, cpu = [], [], []
    for version in range(1, task["rounds"] + 2):
        used, own, begin = time.process_time(), time.thread_time(), time.perf_counter()
        checkpoints.begin(learner, version)
        waits.append(time.perf_counter() - begin)
        busy.append(time.thread_time() - own)
        checkpoints.wait()
        ranks.broadcast(None)
        cpu.append(time.process_time() - used)
    (folder,) = (root / "checkpoints").glob("step-*")
    size = sum(file.stat().st_size for file in folder.iterdir())
    peak = status("VmHWM") - before
    medians = {"busy": statistics.median(busy[1:]), "cpu": statistics.median(cpu[1:])}
    print(json.dumps(medians | {"waits": waits, "bytes": size, "peak": peak}))
    ranks.broadcast(None)
    ranks.stop()


def make_moments(optimizer) -> None:
    """As a step would, without one."""
    import torch

    for member in optimizer.chained_optimizers:
        for group in member.optimizer.param_groups:
            for parameter in group["params"]:
                member.optimizer.state[parameter] = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.randn_like(parameter).detach(),
                    "exp_avg_sq": torch.rand_like(parameter).detach(),
                }


def reset_peak() -> int:
    """Bytes in memory now; what comes after counts for the peak."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
