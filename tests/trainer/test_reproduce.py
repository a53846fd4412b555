"""`asyncrl reproduce` on a run of a real trainer whose batches came from a real journal."""

import io
import json
import math
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from fakes.commands import Command
from fakes.launch_trainer import finish_trainer, read_log, start_trainer
from fakes.models import random_batch, write_model, write_tokenizer
from fakes.queue_service import FakeQueueService
from fakes.recipes import make_recipe
from fakes.records import correctness_differs
from fakes.sequences import with_kept_sets
from fakes.template import Forked, Template
from rich.console import Console

from asyncrl.journal.compaction import compact
from asyncrl.journal.conservation import read_ledger
from asyncrl.journal.queue_state import load_batch
from asyncrl.journal.reader import GroupFilter, JournalReader
from asyncrl.journal.starts import UNSAMPLED, record_start, set_fact
from asyncrl.journal.writer import Journal
from asyncrl.launch import prepare
from asyncrl.model.unsampled import find_unsampled
from asyncrl.observe.terminal.live import LiveLine
from asyncrl.readers.page.groups import list_groups, read_group
from asyncrl.readers.page.runs import Run
from asyncrl.readers.report.write import write_report
from asyncrl.recipe.file import dump_recipe
from asyncrl.records import Finish, Score, Segment, Task, VerifierSpec
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.settings import QueueSettings
from asyncrl.run.metrics_file import MetricsWriter, read_metrics
from asyncrl.run.reproduction import plan_reproduction
from asyncrl.trainer.reproduce import differences, is_exact, is_same, table

pytestmark = pytest.mark.usefixtures("forked_trainers")

NUM_STEPS = 4
TRAINER = {"num_steps": NUM_STEPS, "checkpoint_every_steps": 2, "keep_checkpoints": 2}
TRAINER |= {"warmup_steps": 2, "learning_rate": 1e-3}


def words_of(step: int) -> str:
    """The text of each response that this step trains on."""
    return f"what step {step} learns from"


def record_batches(path: Path, recipe: str, *, has_kept_sets: bool) -> None:
    """Takes the random batches of all steps through a queue into the journal at `path`."""
    journal = Journal(path)
    record_start(journal, 0, recipe)
    settings = QueueSettings(groups_per_batch=4, samples_per_group=3, max_staleness=0, num_steps=NUM_STEPS)
    queue = ReplayQueue(journal, settings, has_signal=correctness_differs)
    for version in range(NUM_STEPS):
        queue.announce(version)
        batch = random_batch(version)
        sequences = (with_kept_sets(batch) if has_kept_sets else batch).sequences
        for first in range(0, len(sequences), 3):
            members = sequences[first : first + 3]
            prompt = tuple(members[0].prompt_tokens)
            group = queue.admit(Task(f"train:{first}", "?", prompt, "1", VerifierSpec("math")))
            for trajectory, member in zip(group.trajectories, members, strict=True):
                tokens, logprobs = member.response_tokens, member.behavior_logprobs
                told = {name: bytearray(own) for name, own in member.columns.items()}
                segment = Segment(version, tokens, logprobs, columns=told)
                queue.append(group, trajectory, [segment], Finish.STOP)
                queue.score(
                    group, trajectory, Score("correct", 1.0, 1.0, "1", "", 0.0), words_of(version + 1)
                )
            names = [trajectory.trajectory_id for trajectory in group.trajectories]
            queue.make_ready(
                group, {name: member.advantage for name, member in zip(names, members, strict=True)}
            )
        assert queue.take(version) is not None
    journal.close()


def record_run(
    folder: Path,
    *,
    num_processes: int,
    trainer: dict | None = None,
    resumed: dict | None = None,
    **sections: dict,
) -> Path:
    """A run folder as real trainer processes left it, with its journal and its metrics. `resumed` are keys of
    the trainer that another start, after step 2, changes."""
    run = folder / "run"
    run.mkdir()
    trainer = TRAINER | {"num_processes": num_processes} | (trainer or {})
    model = write_model(folder / "model")
    recipe = make_recipe(model, trainer=trainer, **sections)
    has_kept_sets = recipe.rollout.is_truncated()
    record_batches(run / "journal.sqlite", dump_recipe(recipe), has_kept_sets=has_kept_sets)
    journal = Journal(run / "journal.sqlite")
    starts = [(0, NUM_STEPS, recipe)]
    if resumed is not None:
        starts = [(0, 2, recipe), (2, NUM_STEPS, make_recipe(model, trainer=trainer | resumed, **sections))]
    rows = []
    for begin, end, current in starts:
        if begin:
            record_start(journal, begin, dump_recipe(current))
        with FakeQueueService([load_batch(journal, step, 1.0) for step in range(begin, end)]) as queue:
            processes = start_trainer(run, queue.url, current)
            assert finish_trainer(processes) == [0] * num_processes, read_log(run)
        # As the controller names it.
        rows += [{**take.step_metrics, "step": take.version} for take in queue.takes if take.step_metrics]
    journal.close()
    with MetricsWriter(run / "metrics.jsonl") as metrics:
        for row in rows:
            metrics.step(row)
    return run


@pytest.fixture
def forked_ranks(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncrl reproduce` forks its ranks: each would import torch and Megatron for itself."""

    def start(command: list[str], *, env: dict[str, str], start_new_session: bool) -> Forked:
        assert start_new_session and command[:3] == [sys.executable, "-P", "-m"]
        with os.fdopen(os.dup(1), "wb") as output:
            return template.start(command[3], command[4:], environment=env, output=output)

    monkeypatch.setattr(prepare, "subprocess", SimpleNamespace(Popen=start))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_run(tmp_path_factory.mktemp("recorded"), num_processes=1)


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return shutil.copytree(recorded, tmp_path / "run")


@pytest.mark.usefixtures("forked_ranks")
def test_a_step_from_a_checkpoint_is_identical(recorded: Path, whole_command: Command):
    output = whole_command("reproduce", recorded, "4").out
    assert "steps 3 to 4 again, from checkpoint step-2" in output
    assert "step 4 is identical to the last digit." in output
    row = json.loads((recorded / "metrics.jsonl").read_text().splitlines()[3])
    assert output.count(str(row["loss"])) == 2 and output.count(str(row["grad_norm"])) == 2


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("step", [1, 3])
def test_step_n_of_terminal_journal_page_report_and_reproduce_is_one_step(
    step: int, run: Path, whole_command: Command
):
    reader = JournalReader(run / "journal.sqlite")
    # A batch has four groups, in the order of their admission; no token is older than the weights trained.
    wanted = [4 * (step - 1) + i for i in range(4)]
    texts = {t["text"] for i in wanted for t in reader.group(i)["trajectories"]}
    assert texts == {words_of(step)}
    assert reader.read("SELECT group_id FROM groups WHERE taken_version = ? ORDER BY 1", (step - 1,)) == [
        (group_id,) for group_id in wanted
    ]
    # `asyncrl journal`
    said = whole_command("journal", run, "--group", wanted[0]).out
    assert f"The group was taken for step {step};" in said
    # `asyncrl view`
    listed = list_groups(Run("run", run), GroupFilter(step=step))
    assert [(row["group_id"], row["step"]) for row in listed] == [(i, step) for i in reversed(wanted)]
    shown = [read_group(Run("run", run), i) for i in wanted]
    segments = [s for group in shown for t in group["trajectories"] for s in t["segments"]]
    assert {group["step"] for group in shown} == {step} and {s["staleness"] for s in segments} == {0}
    (ledger,) = read_ledger(reader, before=step + 1, limit=1)
    assert (ledger["step"], ledger["taken"], ledger["version"]) == (step, 4, step - 1)
    # The line on the terminal, of a row of metrics.jsonl
    row = read_metrics(run / "metrics.jsonl").steps[step - 1]
    screen = io.StringIO()
    LiveLine(NUM_STEPS, console=Console(file=screen, width=100)).step(row)
    assert screen.getvalue().splitlines()[-1].split()[0] == f"{step}/{NUM_STEPS}"
    # `asyncrl report`
    report = write_report(run)
    assert f"\n  <p>{NUM_STEPS} optimizer steps in " in (run / "report.html").read_text()
    assert report.run.steps == NUM_STEPS
    # `asyncrl reproduce` trains on what the journal names by this step, and compares with its row.
    output = whole_command("reproduce", run, step).out
    assert f"step {step} is identical to the last digit." in output and output.count(str(row["loss"])) == 2
    assert len({other["loss"] for other in read_metrics(run / "metrics.jsonl").steps}) == NUM_STEPS


@pytest.mark.usefixtures("forked_ranks")
def test_a_run_that_began_before_tokens_were_left_out_is_reproduced_with_all(
    recorded: Path, whole_command: Command
):
    model = recorded.parent / "model"
    # Its responses have the last of these.
    write_tokenizer(model, range(39))
    assert find_unsampled(model).ids == (39,)
    try:
        assert "step 4 is identical to the last digit." in whole_command("reproduce", recorded, "4").out
    finally:
        (model / "tokenizer.json").unlink()
        (model / "tokenizer_config.json").unlink()


def test_a_step_is_reproduced_with_the_tokens_that_its_run_left_out(run: Path):
    journal = Journal(run / "journal.sqlite")
    journal.write(set_fact(UNSAMPLED, "2,41-43"))
    journal.close()
    assert plan_reproduction(run, 4).unsampled.ids == (2, 41, 42, 43)


@pytest.mark.usefixtures("forked_ranks")
def test_a_step_over_kept_sets_is_identical(tmp_path: Path, whole_command: Command):
    algorithm = {"kl": {"coefficient": 0.1}, "entropy_bonus": {"coefficient": 0.01}}
    rollout = {"top_p": 0.9, "top_k": 20}
    run = record_run(tmp_path, num_processes=1, algorithm=algorithm, rollout=rollout)
    assert "step 4 is identical to the last digit." in whole_command("reproduce", run, "4").out


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.exhaustive
def test_a_step_of_muon_is_identical(tmp_path: Path, whole_command: Command):
    """From the checkpoint, and from the base model over a change of the matrices' own rate."""
    trainer = {"optimizer": {"name": "muon", "learning_rate": 1e-2}, "optimizer_steps_per_batch": 2}
    run = record_run(
        tmp_path,
        num_processes=2,
        trainer=trainer,
        resumed={"optimizer": {"name": "muon", "learning_rate": 1e-3}},
        model={"dtype": "bfloat16"},
    )
    for since in ("checkpoint step-2", "the base model"):
        output = whole_command("reproduce", run, "4").out
        assert f"again, from {since}" in output
        assert output.count("step 4 is identical to the last digit.") == 1
        shutil.rmtree(run / "checkpoints" / "step-2", ignore_errors=True)


LAYOUTS = [
    pytest.param({"tensor": 2}, id="tensor"),
    pytest.param({"pipeline": 2}, id="pipeline", marks=pytest.mark.exhaustive),
    pytest.param({"context": 2}, id="context", marks=pytest.mark.exhaustive),
    pytest.param(
        {"distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
        id="data, overlapped",
        marks=pytest.mark.exhaustive,
    ),
]


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("parallel", LAYOUTS)
def test_ranks_that_share_the_model_reproduce_what_they_recorded(
    parallel: dict[str, int], tmp_path: Path, whole_command: Command
):
    trainer = {"parallel": parallel, "optimizer_steps_per_batch": 2}
    run = record_run(tmp_path, num_processes=2, trainer=trainer)
    assert whole_command("reproduce", run, "4").out.count("step 4 is identical to the last digit.") == 1


@pytest.mark.usefixtures("forked_ranks")
def test_without_a_checkpoint_before_it_the_base_model_is_taken_and_a_difference_is_named(
    run: Path, whole_command: Command
):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    second = json.loads(lines[1])
    second["grad_norm"] += 1e-12
    (run / "metrics.jsonl").write_text("\n".join([lines[0], json.dumps(second), *lines[2:], ""]))
    output = whole_command("reproduce", run, "2", code=1).out
    assert "steps 1 to 2 again, from the base model" in output
    assert "step 2 is the first that differs from the record: grad_norm." in output
    (line,) = (line for line in output.splitlines() if line.endswith("differs"))
    assert line.split()[:2] == ["grad_norm", str(second["grad_norm"])]


@pytest.mark.usefixtures("forked_ranks")
def test_steps_on_both_sides_of_a_changed_learning_rate_are_identical(tmp_path: Path, whole_command: Command):
    """Two steps, then two more at another rate and schedule from the checkpoint between."""
    falling = {"learning_rate": 1e-2, "learning_rate_schedule": {"name": "cosine", "min_share": 0.1}}
    run = record_run(tmp_path, num_processes=1, resumed=falling | {"warmup_steps": 1})
    rows = read_metrics(run / "metrics.jsonl").steps
    # A cosine over steps 2 to 4.
    wanted = [0.5e-3, 1e-3, 1e-3 + 9e-3 * (1 + math.cos(math.pi / 3)) / 2, 1e-3 + 9e-3 / 4]
    assert [row["learning_rate"] for row in rows] == pytest.approx(wanted)
    shutil.rmtree(run / "checkpoints" / "step-2")
    for step in ("2", "4"):
        output = whole_command("reproduce", run, step).out
        assert f"steps 1 to {step} again, from the base model" in output
        assert f"step {step} is identical to the last digit." in output


@pytest.mark.parametrize(
    ("step", "words"),
    [("5", "step 5 is not in .*which holds steps 1 to 4"), ("0", "step 0 is not in .*steps 1 to 4")],
)
def test_a_step_that_was_not_taken_is_said(recorded: Path, step: str, words: str, command: Command):
    assert re.search(words, command("reproduce", recorded, step, code=2).err)


def test_a_changed_recipe_is_said_with_the_key(run: Path, command: Command):
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["trainer"]["adam_beta1"] = 0.5
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    said = command("reproduce", run, "1", code=2).err
    assert "says trainer.adam_beta1 = 0.5, but the run was trained with 0.9" in said


def test_a_step_that_was_not_reported_is_said(run: Path, command: Command):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:3], ""]))
    assert "has no row for step 4" in command("reproduce", run, "4", code=2).err


def test_a_start_behind_compacted_steps_is_refused(run: Path, command: Command):
    journal = Journal(run / "journal.sqlite")
    journal.write(("UPDATE groups SET state = 'trained'", ()), *compact(0, 2))
    journal.close()
    assert "the tokens of steps 1 to 2 are compacted" in command("reproduce", run, "2", code=2).err


def test_a_rank_of_another_number_of_processes_is_refused(recorded: Path, template: Template, tmp_path: Path):
    log = tmp_path / "log"
    arguments = ["--run-folder", str(recorded), "--step", "4"]
    with log.open("wb") as output:
        rank = template.start(
            "asyncrl.trainer.reproduce",
            arguments,
            environment=os.environ | {"WORLD_SIZE": "2"},
            output=output,
        )
    assert rank.wait(120) == 2
    assert "WORLD_SIZE is 2 but trainer.num_processes is 1" in log.read_text()


@pytest.mark.parametrize(
    ("name", "recorded", "again", "same"),
    [
        # 2% of 0.5 is 0.01; below 0.001 nothing differs.
        ("grad_norm", 0.5, 0.509, True),
        ("grad_norm", 0.5, 0.511, False),
        ("loss", 1e-5, -9e-4, True),
        ("loss", 0.0, 1.1e-3, False),
        ("num_tokens", 1000.0, 1001.0, False),
        ("learning_rate", 1e-4, 1.01e-4, False),
        ("loss", None, 0.1, False),
        ("loss", None, None, True),
    ],
)
def test_on_a_gpu_sums_may_differ_a_little_and_counts_not_at_all(
    name: str, recorded: float | None, again: float | None, same: bool
):
    assert is_same(name, recorded, again, exactly=False) == same
    assert is_same(name, recorded, again, exactly=True) == (recorded == again)


def test_bits_are_compared_on_a_cpu_and_on_a_gpu_that_is_deterministic(monkeypatch: pytest.MonkeyPatch):
    assert is_exact(deterministic=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not is_exact(deterministic=False)
    assert is_exact(deterministic=True)


def test_the_table_marks_what_lies_outside_of_the_tolerance():
    recorded = {"loss": 0.25, "grad_norm": 1.0, "num_tokens": 10.0}
    again = {"loss": 0.251, "grad_norm": 1.5, "num_tokens": 10.0}
    assert differences(recorded, again, exactly=False) == ["grad_norm"]
    assert differences(recorded, again, exactly=True) == ["loss", "grad_norm"]
    lines = table(recorded, again, exactly=False).splitlines()[1:]
    marked = [line.split()[0] for line in lines if line.endswith("differs")]
    assert marked == ["grad_norm"]
