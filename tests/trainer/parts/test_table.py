"""The table of parts: its order, what the core of a step does not know, and a part from the docs."""

import ast
import random
import re
import runpy
from pathlib import Path

import pytest
import torch
from fakes.learners import copy_weights, make_learner
from fakes.models import random_batch, write_model
from fakes.sequences import scored_by_teacher, with_routes

from asyncrl.records import Batch
from asyncrl.trainer.parts import table
from asyncrl.trainer.parts.critic import Critic
from asyncrl.trainer.parts.reference import KlReward, PastVersions, Reference
from asyncrl.trainer.parts.served_columns import RoutingReplay
from asyncrl.trainer.parts.table import PARTS, Row
from asyncrl.trainer.parts.teacher import Teacher
from asyncrl.trainer.step.part import MiniBatch, StepPart

ROOT = Path(__file__).parents[3]
CORE = ("learner", "objective", "optimizer", "optimizer_state", "part", "passes", "batch_values")
TRAINER = {"learning_rate": 1e-2, "optimizer_steps_per_batch": 2}
KL = {"kl": {"coefficient": 0.1, "place": "reward"}}
CRITIC = {
    "algorithm": {"advantage": "gae", "entropy_bonus": {"target": 3.0}} | KL,
    "critic": {"learning_rate": 1e-2, "targets": "v_trace"},
    "trainer": TRAINER | {"splits_staleness": True, "learning_rate_scaling": "ess"},
}
TEACHER = {
    "algorithm": {"advantage": "reinforce_pp"} | KL,
    "teacher": {"path": "teacher"},
    "trainer": TRAINER,
}
ROUTES = {
    "algorithm": {"routing_replay": "rollout", "kl": {"coefficient": 0.1}},
    "trainer": TRAINER | {"splits_staleness": True},
}
NEEDED = [
    (KlReward, Reference, TEACHER),
    (KlReward, Critic, CRITIC),
    (Teacher, KlReward, TEACHER),
    (RoutingReplay, PastVersions, ROUTES),
]


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}
    return write_model(tmp_path_factory.mktemp("experts"), "Qwen3Moe", norm_topk_prob=True, **sizes)


def in_any_order(source: random.Random) -> list[Row]:
    """The rows in a random order that keeps `after`."""
    left, found = list(PARTS), list[Row]()
    while left:
        ready = [row for row in left if not {each.make for each in left} & set(row.after)]
        found.append(source.choice(ready))
        left.remove(found[-1])
    return found


def exchanged(kind: type, other: type) -> list[Row]:
    """The rows with those of two parts exchanged."""
    rows = list(PARTS)
    a, b = (next(i for i, row in enumerate(rows) if row.make is each) for each in (kind, other))
    rows[a], rows[b] = rows[b], rows[a]
    return rows


def two_steps(folder: Path, sections: dict) -> str:
    """Metrics and weights of two steps, to the last digit."""
    learner, rows = make_learner(folder, **sections), []
    for step in range(2):
        batch: Batch = random_batch(step, temperature=0.8)
        if "teacher" in sections:
            batch = scored_by_teacher(batch)
        if "routing_replay" in sections["algorithm"]:
            batch = with_routes(batch, num_layers=2)
        rows.append(sorted(learner.step(batch).items()))
    return repr((rows, [each.tolist() for each in copy_weights(learner.model).values()]))


def folder_of(sections: dict, folder: Path, experts: Path) -> Path:
    return experts if sections is ROUTES else folder


@pytest.mark.parametrize("sections", [CRITIC, TEACHER, ROUTES], ids=["critic", "teacher", "routes"])
def test_any_order_that_keeps_what_rows_say_makes_the_same_step(
    sections: dict, folder: Path, experts: Path, monkeypatch: pytest.MonkeyPatch
):
    model = folder_of(sections, folder, experts)
    wanted = two_steps(model, sections)
    for seed in range(2):
        monkeypatch.setattr(table, "PARTS", in_any_order(random.Random(seed)))
        assert two_steps(model, sections) == wanted, seed


def test_the_table_itself_keeps_what_its_rows_say():
    seen: set[object] = set()
    for row in PARTS:
        assert seen >= set(row.after), row.make
        seen.add(row.make)


@pytest.mark.parametrize(("kind", "before", "sections"), NEEDED)
def test_each_order_that_a_row_states_is_needed(
    kind: type, before: type, sections: dict, folder: Path, experts: Path, monkeypatch: pytest.MonkeyPatch
):
    model = folder_of(sections, folder, experts)
    wanted = two_steps(model, sections)
    monkeypatch.setattr(table, "PARTS", exchanged(kind, before))
    try:
        found = two_steps(model, sections)
    except AssertionError:
        # KL in the reward asks for the reference's log-probs.
        assert before is Reference
    else:
        assert found != wanted


def test_every_order_that_a_row_states_is_tried():
    assert {(row.make, before) for row in PARTS for before in row.after} == {case[:2] for case in NEEDED}


def test_the_docs_explain_every_stage():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## A step of the trainer")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == sorted(
        name for name in vars(StepPart) if not name.startswith("_")
    )


@pytest.mark.parametrize("name", CORE)
def test_the_core_of_a_step_reads_no_key_of_a_part(name: str):
    """That it imports no part is a contract of import-linter."""
    source = (ROOT / "asyncrl" / "trainer" / "step" / f"{name}.py").read_text(encoding="utf-8")
    read = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    assert not read & {key for row in PARTS for key in row.keys}


def test_the_keys_of_a_row_are_read_by_the_file_of_its_part():
    for row in PARTS:
        module = ast.parse(Path(ROOT, *row.make.__module__.split(".")).with_suffix(".py").read_text())
        own = ast.parse((ROOT / "asyncrl" / "trainer" / "parts" / "table.py").read_text())
        read = {
            each.attr for tree in (module, own) for each in ast.walk(tree) if isinstance(each, ast.Attribute)
        }
        assert set(row.keys) <= read, row.make


def test_a_critic_or_a_teacher_gives_a_sequence_without_an_advantage_a_gradient(folder: Path):
    plain, critic = make_learner(folder), make_learner(folder, **CRITIC)
    silent = random_batch(0, num_silent=4)
    (scored, *_), (first, *_) = scored_by_teacher(silent).sequences, silent.sequences
    assert (plain.teaches(first), plain.teaches(scored), critic.teaches(first)) == (False, True, True)


def test_the_part_to_copy_measures_the_noise_of_the_gradient(folder: Path, monkeypatch: pytest.MonkeyPatch):
    part = runpy.run_path(str(ROOT / "docs" / "examples" / "gradient_noise.py"))["GradientNoise"]
    monkeypatch.setattr(table, "PARTS", (*PARTS, Row(part, lambda recipe, shape: True)))
    trainer = {"optimizer_steps_per_batch": 2, "learning_rate": 1e-12, "mini_batch_order": "batch"}
    learner = make_learner(folder, trainer=trainer | {"clip_grad_norm": 1e-3})
    batch = random_batch(1)
    found = learner.step(batch)["gradient_noise"]
    # By hand, from the gradients of the halves.
    gradients = []
    for half in learner.pack(learner.objective.finished(batch), 2):
        learner.accumulate(MiniBatch(half, batch.temperature))
        gradients.append(torch.cat([each.main_grad.flatten() for each in learner.model.parameters()]))
    one, two = gradients
    small, large = (one.square().sum() + two.square().sum()) / 2, ((one + two) / 2).square().sum()
    wanted = (small - large) * len(batch.sequences) / (2 * large - small)
    assert wanted > 0 and found == pytest.approx(wanted.item(), rel=1e-3)
    assert "gradient_noise" not in make_learner(folder).step(batch)
