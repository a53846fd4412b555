"""Which tests run side by side and in which order, and what a test leaves open is closed after it.

`make quick` runs two processes of tests, `make test` three, because many tests wait. A group of tests stays
in one of them: the tests of a file, of one engine, or of a part that watches the whole machine. Groups that
take minutes are the first.
"""

import contextlib
import functools
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from asyncrl.journal.writer import Journal, JournalError
from asyncrl.system.machine import torch_is_cpu_build

if TYPE_CHECKING:
    from fakes.commands import Command

# What `make test` was given is not for the makes that tests call.
for _name in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "ARGS"):
    os.environ.pop(_name, None)
# Three processes share two cores: their threads would wait for each other, busily. Runs set their own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before Triton is imported anywhere: a CPU runs its kernels by the interpreter (`make setup TRITON=1`).
if torch_is_cpu_build():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# A script starts what is in its background with Ctrl-C ignored, and so would be all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
# No draw may be too slow, nor the time that it takes too different from another's: that would be the machine.
_ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in each run: a test that fails has been broken by what was changed since it passed.
settings.register_profile("few", _ANY_MACHINE, derandomize=True, max_examples=30)
# More of them, others in each run, as `make test-all` wants them.
settings.register_profile("random", _ANY_MACHINE)
settings.load_profile("few")
HEAVY = (
    # SGLang servers, Megatron, training.
    *("end_to_end", "serving/engine", "trainer", "gpu", "chaos", "measuring"),
    *("model/test_memory.py", "examples/test_base_model.py"),
    "examples/test_ready_made.py",
    *("commands/test_train_errors.py", "launch/test_trial.py"),
    # Schedules and answers by the thousand, processes by the dozen.
    *("simulation", "sandbox", "verifiers/code", "newcomer/test_processes.py", "test_wheel.py"),
    "turns/test_python_tool.py",
    *("verifiers/test_cases.py", "verifiers/math/test_substitution.py"),
    # They wait for deadlines and for what other processes do.
    *("verifiers/test_pool.py", "launch/test_servers.py", "launch/test_stopping.py"),
    # Three nodes of Ray.
    "launch/site/test_ray_cluster.py",
    *("model/test_source.py", "launch/test_prepare.py"),
    *("verifiers/test_contract.py", "commands/test_verify_data.py"),
    # Each loads torch or the libraries of a hub in processes of its own.
    *("system/test_machine.py", "recipe/test_qwen_recipes.py", "recipe/test_published.py"),
    # Every pair of loss terms; a process for every rank and server.
    *("algorithms/test_combinations.py", "launch/test_placement.py"),
    # They draw reports, search the processes of the machine, or wait for trackers.
    *("readers/report", "commands/test_report.py", "commands/test_compare.py"),
    *("observe/test_any_text.py", "observe/metrics/test_mishaps.py", "launch/test_trackers.py"),
    *(
        "newcomer/test_border.py",
        "newcomer/test_newcomer.py",
        "commands/test_plan.py",
        "commands/test_doctor.py",
        "commands/test_init.py",
        "commands/test_track.py",
    ),
    # A browser, a terminal, a command or a local hub for each test.
    *(
        "readers/page/test_in_browser.py",
        "readers/page/test_trajectories.py",
        "readers/page/test_overview.py",
        "readers/page/test_app.py",
    ),
    *("readers/page/test_shell_in_browser.py", "readers/page/test_narrow_in_browser.py"),
    "readers/page/test_turns.py",
    "observe/test_pseudo_terminal.py",
    *("commands/test_verify.py", "commands/test_check_resumed.py", "verifiers/test_cache.py"),
    *("data/test_files.py", "evaluation/test_evaluation_set.py", "examples/test_pinned_wheel.py"),
    *("launch/test_engine_only.py", "launch/meters/test_usage.py"),
    *("commands/test_prompt.py", "controller/test_status_writer.py"),
    *(
        "examples/test_tool_sums.py",
        "examples/test_recipes.py",
        "recipe/test_keys.py",
    ),
    # Hundreds of drawn answers, tasks, samples or queues.
    *(
        "verifiers/math/test_properties.py",
        "examples/test_code_pretrain.py",
        "readers/compare/test_intervals.py",
    ),
    # Processes by the dozen.
    *("turns/test_pool.py", "turns/test_contract.py", "turns/environments"),
    *("verifiers/test_groups.py", "verifiers/test_judgement.py", "verifiers/test_own_verifiers.py"),
    *("verifiers/test_task.py", "rollout/test_group_verdicts.py", "readers/audit/test_hacks.py"),
    *("commands/test_audit.py", "commands/test_missing_golds.py", "controller/test_agents.py"),
    *("rollout/agents/test_hosts.py", "verifiers/test_letter_choice.py"),
    *("launch/test_engine_options.py", "readers/page/test_export_in_browser.py", "test_flakes.py"),
    # Functions drawn by the hundred.
    *("verifiers/math/test_points.py", "verifiers/math/test_spellings.py"),
    # Each loads reasoning-gym in processes of its own.
    *("data/test_gym.py", "verifiers/test_gym.py", "examples/test_gym_pretrain.py"),
)
"""Files and folders that `make quick` leaves out."""
TYPICAL = (
    *(
        "end_to_end/test_whole_run.py",
        "trainer/step/test_learner.py",
        "trainer/checkpoints/test_checkpoint.py",
    ),
    *("serving/engine/test_log_probs.py", "simulation/test_schedules.py", "sandbox/test_pool.py"),
    *("verifiers/test_pool.py", "verifiers/code/test_cheats.py", "launch/test_stopping.py"),
)
"""Those of them that `make test` runs; the others are exhaustive."""
LONGEST_FIRST = ("sandbox", "families", "layouts", "end_to_end", "engines", "trainer", "simulation")
GROUPS = {
    # They share servers.
    "serving/engine": "engines",
    "trainer/test_engine_logprobs.py": "engines",
    "trainer/publishing/test_transports.py": "engines",
    # A server for each family, and two ranks for each of many layouts: minutes, where all are run.
    "trainer/test_families.py": "families",
    "trainer/test_family_layouts.py": "layouts",
    "trainer/test_layouts.py": "layouts",
    # They fork one template, which has imported Megatron, or import it themselves.
    "trainer": "trainer",
    "end_to_end/test_broken_verifiers.py": "elsewhere",
    "end_to_end/test_changed_files.py": "elsewhere",
    # Programs of one user share its limit of processes, and tests look for what all sandboxes left behind.
    "sandbox": "sandbox",
    "verifiers/code": "sandbox",
    "turns/test_python_tool.py": "sandbox",
    "newcomer/test_processes.py": "sandbox",
}
EACH_ALONE = ("end_to_end/test_dying_processes.py", "end_to_end/test_evaluations.py")
"""Every test starts servers of its own."""


@functools.cache
def place_of(path: Path) -> str:
    return path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""


def is_in(place: str, folder: str) -> bool:
    return place == folder or place.startswith(f"{folder}/")


@functools.cache
def is_heavy(path: Path) -> bool:
    return any(is_in(place_of(path), folder) for folder in HEAVY)


def is_exhaustive(path: Path) -> bool:
    return is_heavy(path) and place_of(path) not in TYPICAL


@functools.cache
def group_of(nodeid: str) -> str:
    """The name of what runs in one process, in order: several folders, a file, or one test."""
    place = place_of(TESTS.parent / nodeid.partition("::")[0])
    if place in EACH_ALONE:
        return nodeid
    return next((group for folder, group in GROUPS.items() if is_in(place, folder)), place)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is left out is not imported either: torch and Megatron alone take seconds."""
    left_out = config.option.markexpr
    if "not gpu" in left_out and is_in(place_of(collection_path), "gpu"):
        return True
    is_left_out = is_heavy(collection_path) and "not heavy" in left_out
    is_left_out |= (
        collection_path.is_file() and is_exhaustive(collection_path) and "not exhaustive" in left_out
    )
    return True if is_left_out else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_heavy(item.path):
        item.add_marker(pytest.mark.heavy)
    if is_exhaustive(item.path):
        item.add_marker(pytest.mark.exhaustive)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        names = (group_of(item.nodeid), place_of(item.path).partition("/")[0])
        # Not len(items): a list that is being sorted is empty.
        return next(
            (LONGEST_FIRST.index(name) for name in names if name in LONGEST_FIRST), len(LONGEST_FIRST)
        )

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Deals whole groups, in their order. The mark xdist_group has no effect with pytest 9 and xdist 3.8."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing that is collected is garbage: looking for it takes a tenth of the collection, and would take
    half a second in whichever test is next."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", params=["normal", pytest.param("overlap", marks=pytest.mark.exhaustive)])
def shared_engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, list[Path]]]:
    """URL of a real server for at most 16 requests, and two model folders. It holds the first as version 0;
    each test leaves it so. No token of theirs ends a response, unless a request names one."""
    from serving.engine.servers import VOCABULARY, running_server, write_model

    folder = tmp_path_factory.mktemp("engine")
    # Matrices of 1 MiB, which threads digest, and smaller ones.
    sizes = {"ffn_size": 2048, "stop": 10 * VOCABULARY}
    models = [write_model(folder / f"model-{seed}", seed=seed, **sizes) for seed in (0, 1)]
    # A run's server has no overlap schedule on a CPU, but it has one on a GPU.
    without = ["--disable-overlap-schedule"] if request.param == "overlap" else []
    with pytest.MonkeyPatch.context() as patch:
        # As a user's shell may have it: SGLang would then report log-probs of temperature 1.
        patch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
        server = running_server(models[0], folder / "log", without=without, max_running_requests=16)
        with server as (url, _):
            yield url, models


@pytest.fixture(scope="session")
def masked_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """URL of a real server, and its model folder, where the ids 20 to 23 are never sampled: a pad, a reserved
    token, and two past the tokenizer. At most positions the logit of 20 or that of 22 is the largest."""
    from serving.engine.servers import masked_model, running_server

    folder = tmp_path_factory.mktemp("masked")
    model = masked_model(folder / "model")
    with running_server(model, folder / "log", max_running_requests=16) as (url, _):
        yield url, model


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """The finished run of fakes/finished_run.py."""
    from fakes.finished_run import write_run

    return write_run(tmp_path)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> "Command":
    from fakes.commands import Command

    return Command(capsys)


@pytest.fixture
def whole_command(capfd: pytest.CaptureFixture[str]) -> "Command":
    """With what the processes of a command print."""
    from fakes.commands import Command

    return Command(capfd)


@pytest.fixture(autouse=True)
def journals_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[Journal] = []
    open_journal = Journal.__init__

    def remember(journal: Journal, *arguments: object, **named: object) -> None:
        open_journal(journal, *arguments, **named)  # type: ignore[arg-type]
        opened.append(journal)

    monkeypatch.setattr(Journal, "__init__", remember)
    yield
    for journal in opened:
        # One that failed says so again, also when it closes.
        with contextlib.suppress(JournalError):
            journal.close()
