"""Memory is planned for what a batch can hold, and measured by process and by control group."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from fakes.control_groups import GIB, Groups
from fakes.shapes import tiny_shape

from asyncrl.errors import InputError
from asyncrl.launch.machine_check import check_machine
from asyncrl.launch.meters.memory import (
    SERVER_PROCESS_BYTES,
    TRAINER_PROCESS_BYTES,
    MemoryLimitMeter,
    MemoryMeter,
    gpu_bytes,
    host_bytes,
    largest_micro_batch,
    run_bytes,
    trainer_memory,
)
from asyncrl.launch.meters.usage import find_families
from asyncrl.launch.placement import GpuMap
from asyncrl.model.memory import server_memory
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import parse_recipe
from asyncrl.recipe.sections.serving import CPU_CACHE_TOKENS
from asyncrl.system.gpus import Gpu, free_gpu_bytes
from asyncrl.system.machine import MachineMemory, group_memory

ON_CPU = GpuMap("no NVIDIA GPU is here")


def make_recipe(tokens: int, **others: object) -> Recipe:
    raw = {
        "name": "t",
        "model": {"path": "m", "context_tokens": 1000},
        "data": {"train": "d"},
        "evaluation": {"every_steps": 0},
        "rollout": {"groups_per_batch": 2, "samples_per_group": 4, "max_new_tokens": 100},
        "trainer": {"tokens_per_micro_batch": tokens},
        **others,
    }
    return parse_recipe(raw, source="test")


@pytest.mark.parametrize(
    ("budget", "longest_prompt", "planned"),
    [
        # 2 prompts of 50 tokens, 8 responses of 100: all of a batch, whatever the budget.
        (8192, 50, 900),
        (600, 50, 600),
        # One sequence is never divided: 50 + 100 tokens.
        (32, 50, 150),
        # Prompts that nobody knows: up to what the context of 1000 leaves.
        (8192, None, 2600),
        (32, None, 1000),
    ],
)
def test_a_micro_batch_is_no_larger_than_batch_and_sequences_allow(
    budget: int, longest_prompt: int | None, planned: int
) -> None:
    assert largest_micro_batch(make_recipe(budget), tiny_shape(), longest_prompt) == planned


def test_a_context_for_long_evaluations_makes_no_training_sequence_longer() -> None:
    data = {"train": "d", "max_prompt_tokens": 50}
    recipe = make_recipe(32, data=data, evaluation={"every_steps": 0, "max_new_tokens": 900})
    assert largest_micro_batch(recipe, tiny_shape()) == 50 + 100


def test_short_prompts_make_the_plan_smaller() -> None:
    recipe = make_recipe(8192)
    assert run_bytes(recipe, tiny_shape(), longest_prompt=50) < run_bytes(recipe, tiny_shape())


def test_a_cache_that_cannot_hold_the_longest_trajectory_is_refused() -> None:
    recipe = make_recipe(600, serving={"max_total_tokens": 157})
    with pytest.raises(InputError, match=r"have 150, .*Raise serving.max_total_tokens to 158"):
        check_machine(recipe, tiny_shape(), ON_CPU, longest_prompt=50)
    check_machine(recipe, tiny_shape(), ON_CPU, longest_prompt=49)


def test_what_turns_observe_counts_for_caches_and_micro_batches() -> None:
    turns = {"environment": "game", "max_turns": 3, "max_observed_tokens": 10}
    recipe = make_recipe(600, serving={"max_total_tokens": 157}, turns=turns)
    with pytest.raises(InputError, match=r"with what its turns observe have 150, "):
        check_machine(recipe, tiny_shape(), ON_CPU, longest_prompt=30)
    check_machine(recipe, tiny_shape(), ON_CPU, longest_prompt=29)
    alone = largest_micro_batch(make_recipe(64), tiny_shape(), 30)
    assert largest_micro_batch(make_recipe(64, turns=turns), tiny_shape(), 30) == alone + 20
    rendered = make_recipe(64, turns=turns, prompt={"history": "as_rendered"})
    # Branches repeat what was sampled.
    more = rendered.rollout.max_new_tokens
    assert largest_micro_batch(rendered, tiny_shape(), 30) == alone + 20 + more


def test_a_run_that_needs_more_than_memory_gib_is_refused_and_one_that_may_have_it_is_not() -> None:
    said = r"GiB of memory, 0\.1 GiB are what memory_gib allows.*Set memory_gib where you know better"
    with pytest.raises(InputError, match=said):
        check_machine(make_recipe(600, memory_gib=0.1), tiny_shape(), ON_CPU)
    # A key-value cache that this machine has no room for.
    total = psutil.virtual_memory().total
    serving = {"max_total_tokens": total // 64}
    assert run_bytes(make_recipe(600, serving=serving), tiny_shape()) > total
    with pytest.raises(InputError, match="are free"):
        check_machine(make_recipe(600, serving=serving), tiny_shape(), ON_CPU)
    check_machine(make_recipe(600, serving=serving, memory_gib=1e6), tiny_shape(), ON_CPU)


def test_a_container_with_too_little_memory_is_refused_however_much_its_machine_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = MachineMemory(total=2**28, available=2**27, is_bounded=True)
    monkeypatch.setattr("asyncrl.launch.machine_check.machine_memory", lambda: small)
    with pytest.raises(InputError, match=r"0\.1 GiB are left by the control group of this process"):
        check_machine(make_recipe(600), tiny_shape(), ON_CPU)


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuMap:
    """The trainer on the second GPU of a machine, with 8 GB free, a server on the first, with 40 MB."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 0, 40\necho 1, 8192\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    server, trainer = (Gpu(number, str(number), "NVIDIA H100") for number in range(2))
    return GpuMap(visible=(server, trainer), trainer=(trainer,), servers=((server,),))


def test_a_gpu_without_room_for_what_computes_there_is_refused(two_gpus: GpuMap) -> None:
    assert free_gpu_bytes() == {"0": 40 * 2**20, "1": 8192 * 2**20}
    # 2^17 tokens x 2 layers x 2 x 2 heads x 8 x 4 bytes: 32 MiB and the weights. 0.9 x 40 MiB are 36.
    check_machine(make_recipe(600, serving={"max_total_tokens": 2**17}), tiny_shape(), two_gpus)
    larger = make_recipe(600, serving={"max_total_tokens": 2**18})
    with pytest.raises(InputError, match=r"GPU 0 has 0\.0 GB free.*server 0 needs 0\.1 GB"):
        check_machine(larger, tiny_shape(), two_gpus)
    # The same process on the GPU that has room.
    server, trainer = two_gpus.visible
    check_machine(larger, tiny_shape(), GpuMap(visible=(server, trainer), servers=((trainer,),)))


def test_a_shared_gpu_needs_the_larger_of_both_turns() -> None:
    gpu = Gpu(0, "0", "NVIDIA H100")
    shared = GpuMap(trainer=(gpu,), servers=((gpu,),), is_colocated=True)
    for cache_tokens, is_server_larger in ((1, False), (2**20, True)):
        recipe = make_recipe(600, placement={"colocated": True}, serving={"max_total_tokens": cache_tokens})
        memory = trainer_memory(recipe, tiny_shape())
        server = sum(server_memory(tiny_shape(), recipe, on_gpu=True).values())
        state = memory.weights + memory.gradients + memory.optimizer
        ((_, needed, name),) = gpu_bytes(recipe, tiny_shape(), shared)
        assert name == "trainer 0 with server 0"
        assert needed == (state + server if is_server_larger else memory.computing())
        # On a CPU processes, the copy of a checkpoint and the published version come on top; a server has its
        # weights twice there.
        processes = TRAINER_PROCESS_BYTES + SERVER_PROCESS_BYTES + memory.copies() + memory.weights
        server += server_memory(tiny_shape(), recipe, on_gpu=False)["weights"]
        expected = state + server if is_server_larger else memory.computing()
        assert run_bytes(recipe, tiny_shape()) == processes + expected


def test_gpus_of_which_nobody_knows_are_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert free_gpu_bytes() == {}


def test_a_machine_with_gpus_needs_host_memory_for_processes_and_copies() -> None:
    recipe = make_recipe(600, trainer={"num_processes": 2})
    memory = trainer_memory(recipe, tiny_shape())
    # Weights and moments of float32: 12 bytes a parameter. Two data-parallel ranks hold the same, and each
    # writes a half, however they divide the optimizer.
    assert 2 * memory.copies() == pytest.approx(3 * memory.weights, rel=1e-3)
    processes = 2 * TRAINER_PROCESS_BYTES + SERVER_PROCESS_BYTES
    assert host_bytes(recipe, tiny_shape()) == processes + 2 * memory.copies()
    divided = {"num_processes": 2, "parallel": {"distributed_optimizer": True}}
    assert host_bytes(make_recipe(600, trainer=divided), tiny_shape()) == processes + 2 * memory.copies()
    waiting = {"num_processes": 2, "saves_in_background": False}
    assert host_bytes(make_recipe(600, trainer=waiting), tiny_shape()) == processes
    offloading = {"num_processes": 2, "optimizer_cpu_offload": True}
    needed = host_bytes(make_recipe(600, trainer=offloading), tiny_shape())
    # 16 bytes a parameter for Adam on each rank, next to the 12 of the copies that both share.
    assert needed == processes + 2 * memory.copies() + 2 * 4 * memory.weights
    ranks, server = (Gpu(0, "0", "NVIDIA H100"), Gpu(1, "1", "NVIDIA H100")), Gpu(2, "2", "NVIDIA H100")
    needs = gpu_bytes(recipe, tiny_shape(), GpuMap(trainer=ranks, servers=((server,),)))
    assert [(gpu.number, name) for gpu, _, name in needs] == [
        (0, "trainer 0"),
        (1, "trainer 1"),
        (2, "server 0"),
    ]
    # There Adam's states are divided by default.
    assert needs[0][1] == trainer_memory(recipe, tiny_shape(), on_gpu=True).computing()
    # The engine takes for its cache what is free; on a CPU it would take everything.
    assert needs[2][1] == server_memory(tiny_shape(), recipe, on_gpu=False)["weights"]
    sized = make_recipe(600, serving={"max_total_tokens": 1000})
    on_both = [server_memory(tiny_shape(), sized, on_gpu=on_gpu)["kv_cache"] for on_gpu in (True, False)]
    assert on_both == 2 * [server_memory(tiny_shape(), recipe)["kv_cache"] * 1000 // CPU_CACHE_TOKENS]


HOLD = "import sys; held = bytearray({size}); print('held', flush=True); sys.stdin.read()"
MIB = 2**20


def start(*words: str, mib: int) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(size=mib * MIB), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    return process


def end(process: "subprocess.Popen[bytes]") -> None:
    process.communicate()


def test_ranks_and_servers_are_told_apart_and_the_largest_counts() -> None:
    # Not those that other tests of this process started.
    others = {child.pid for child in find_families()}
    meter = MemoryMeter()

    def measured() -> dict[str, float]:
        families = find_families().items()
        meter.measure({child: family for child, family in families if child.pid not in others})
        return meter.take_row()

    assert measured().keys() == {"controller_memory_gib"}
    running = [
        start("asyncrl.trainer.main", mib=40),
        start("asyncrl.trainer.main", mib=120),
        start("sglang.launch_server", mib=60),
        start("asyncrl.verifier", mib=200),
    ]
    try:
        first, second = measured(), measured()
    finally:
        for process in running:
            end(process)
    assert (
        first.keys()
        == second.keys()
        == {f"{role}_memory_gib" for role in ("controller", "trainer", "server")}
    )
    # The interpreter itself takes about 10 MiB.
    assert 120 / 1024 < first["trainer_memory_gib"] < 160 / 1024
    assert 60 / 1024 < first["server_memory_gib"] < 100 / 1024
    assert measured().keys() == {"controller_memory_gib"}
    assert meter.take_row() == {}, "a measurement is of one step"


def test_what_a_server_started_belongs_to_it(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    inner = HOLD.format(size=100 * MIB)
    program.write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {inner!r}], stdin=sys.stdin)\n"
    )
    outer = subprocess.Popen(
        [sys.executable, str(program), "sglang.launch_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert outer.stdout is not None and outer.stdout.readline() == b"held\n"
    try:
        meter = MemoryMeter()
        meter.measure(find_families())
        assert meter.take_row()["server_memory_gib"] > 100 / 1024
    finally:
        end(outer)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    return Groups(tmp_path, monkeypatch)


def meter_of(groups: Groups, clock: Callable[[], float] = time.monotonic) -> MemoryLimitMeter:
    groups.process_is_in("0::/job")
    return MemoryLimitMeter(lambda: group_memory(groups.own, groups.mounted), clock)


def stalled(microseconds: int) -> str:
    """Of `memory.pressure`."""
    return (
        f"some avg10=9.00 avg60=1.00 avg300=0.00 total={microseconds}\n"
        f"full avg10=0.00 avg60=0.00 avg300=0.00 total=7"
    )


def test_a_row_has_the_share_in_use_and_the_share_of_the_time_that_processes_waited(groups: Groups) -> None:
    now = [100.0]
    groups.make_v2("job", 16 * GIB, used=8 * GIB, cached=4 * GIB)
    groups.make("job", memory_pressure=stalled(5_000_000))
    meter = meter_of(groups, lambda: now[0])
    now[0] += 20.0
    groups.make_v2("job", 16 * GIB, used=15 * GIB, cached=GIB)
    groups.make("job", memory_pressure=stalled(9_000_000))
    assert meter.row() == {"memory_limit_share": 0.875, "memory_stall_share": 0.2}
    now[0] += 10.0
    assert meter.row() == {"memory_limit_share": 0.875, "memory_stall_share": 0.0}


def test_a_kernel_that_counts_no_waits_leaves_the_column_out(groups: Groups) -> None:
    groups.make_v2("job", 16 * GIB, used=8 * GIB)
    assert meter_of(groups).row() == {"memory_limit_share": 0.5}


def test_two_rows_at_one_moment_divide_by_nothing(groups: Groups) -> None:
    groups.make_v2("job", 16 * GIB, used=8 * GIB)
    groups.make("job", memory_pressure=stalled(5))
    assert meter_of(groups, lambda: 1.0).row() == {"memory_limit_share": 0.5}


@pytest.mark.parametrize("limit", ["max", 64 * GIB, 9223372036854771712])
def test_without_a_limit_there_is_no_column(groups: Groups, limit: int | str) -> None:
    groups.make_v2("job", limit, used=8 * GIB)
    assert meter_of(groups).row() == {}
