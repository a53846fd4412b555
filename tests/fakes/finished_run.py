"""A small finished run: metrics, journal, recipe and tokenizer, with every number known.

Tokens are characters. Group 0 was trained at step 2 (version 1 took it), group 1 dropped as stale, group 2 is
being generated.
"""

import sqlite3
from array import array
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml
from fakes.shapes import tiny_shape
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from asyncrl.journal.schema import create_tables
from asyncrl.journal.starts import (
    RUN_END,
    RunEnd,
    StartRecord,
    Usage,
    record_environment,
    record_usage,
    set_fact,
)
from asyncrl.journal.writer import Journal
from asyncrl.run.metrics_file import MetricsWriter
from asyncrl.system.machine import describe_environment

VOCABULARY = {character: index for index, character in enumerate("0123456789+=\\{}boxed<>/&?")}
END = len(VOCABULARY)
VOCABULARY["<|end|>"] = END

EVALUATION = {
    "num_tasks": 10,
    "greedy_accuracy": 0.8,
    "greedy_low": 0.49,
    "greedy_high": 0.94,
    "response_tokens_mean": 31.0,
    "k": 2,
    "avg_at_k": 0.7,
    "avg_low": 0.5,
    "avg_high": 0.9,
    "pass_at_k": 0.9,
    "pass_low": 0.6,
    "pass_high": 0.98,
}


def tokens(text: str) -> bytes:
    return array("i", [VOCABULARY[character] for character in text]).tobytes()


def logprobs(values: list[float]) -> bytes:
    return array("f", values).tobytes()


def write_run(folder: Path) -> Path:
    """The run folder, next to the model that it trained, in `folder`."""
    run = folder / "run"
    write_metrics(run / "metrics.jsonl")
    write_journal(run / "journal.sqlite")
    write_tokenizer(folder / "model")
    recipe = {
        "name": "sums",
        "run_folder": str(run),
        "model": {"path": str(folder / "model")},
        "data": {"train": str(folder / "none.jsonl")},
        "trainer": {"num_steps": 10},
        "evaluation": {"every_steps": 0},
    }
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return run


def write_metrics(path: Path) -> None:
    with MetricsWriter(path, clock=lambda: 0.0) as writer:
        before = {**EVALUATION, "greedy_accuracy": 0.5, "greedy_low": 0.24, "greedy_high": 0.76}
        writer.evaluation({"step": 0, "when": "before", **before, "response_tokens_mean": 6.0})
        for version in range(10):
            writer.step(
                {
                    "step": version + 1,
                    "reward_mean": 0.1 * version,
                    "correct_mean": 0.1 * version,
                    "response_tokens_mean": 6.0 + version,
                    "step_seconds": 2.0,
                    "train_seconds": 1.0,
                    "wait_seconds": 0.5,
                    "publish_seconds": 0.25,
                    "checkpoint_seconds": 0.0,
                    # The first tenth is start-up: 0.9 must not count.
                    "trainer_idle_share": 0.25 if version else 0.9,
                    "rollout_idle_share": 0.125,
                    "mismatch_kl": 1e-5,
                    "staleness_max": 2,
                }
            )
        writer.evaluation({"step": 10, "when": "after", **EVALUATION})


def write_journal(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    create_tables(db)
    db.executemany(
        "INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (0, "train:1", "1+2=", "trained", 0, 1.0, 1, None),
            (1, "train:2", "2+2=", "dropped", 0, 2.0, None, "stale"),
            (2, "train:3", "3+4=", "open", 1, 3.0, None, None),
        ],
    )
    right = ("stop", "correct", 1.0, 1.0, 0.5, "3", "equal to the reference", 0.001, "{3}<|end|>")
    wrong = ("stop", "wrong", 0.0, 0.0, -0.5, "5", "5 is not 3", 0.001, "<b>5")
    dropped = ("length", "no_answer", 0.0, 0.0, None, None, "no \\boxed{}", 0.001, "4?")
    nothing = (None,) * 9
    db.executemany(
        "INSERT INTO trajectories (trajectory_id, group_id, sample, prompt_tokens, finish, outcome, "
        "correctness, reward, advantage, extracted, detail, verify_seconds, text) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            ("00000000-00", 0, 0, tokens("1+2="), *right),
            ("00000000-01", 0, 1, tokens("1+2="), *wrong),
            ("00000001-00", 1, 0, tokens("2+2="), *dropped),
            ("00000002-00", 2, 0, tokens("3+4="), *nothing),
        ],
    )
    end = array("i", [END]).tobytes()
    db.executemany(
        "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?)",
        [
            ("00000000-00", 0, 0, 0, tokens("{3"), logprobs([-0.5, -0.25])),
            ("00000000-00", 2, 1, 1, end, logprobs([-2.0])),
            ("00000000-01", 0, 0, 0, tokens("<b>5"), logprobs([-1.0, -1.0, -1.0, -1.0])),
            ("00000001-00", 0, 0, 0, tokens("4?"), logprobs([-1.0, -1.0])),
            ("00000002-00", 0, 1, 0, tokens("7"), logprobs([-1.0])),
        ],
    )
    counters = [("tokens_generated", 10), ("tokens_trained", 7), ("tokens_dropped:stale", 2)]
    db.executemany("INSERT INTO counters VALUES (?, ?)", counters)
    db.execute(*set_fact(RUN_END, RunEnd(version=10, reason="num_steps").model_dump_json()))
    db.commit()
    db.close()


def write_tokenizer(folder: Path) -> None:
    folder.mkdir()
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def edit_journal(run: Path, statement: str, *rows: Sequence[Any]) -> None:
    """Runs the statement in the journal of the run folder, once for each row of values."""
    with closing(sqlite3.connect(run / "journal.sqlite")) as db, db:
        db.executemany(statement, rows or [()])


def record_start(run: Path, started: float, usages: list[Usage], *, version: int = 0, **fields: Any) -> None:
    """A start of the run that used `usages`, in the environment of this process changed by `fields`, with the
    model of `shapes.tiny_shape`."""
    record = StartRecord(
        environment=describe_environment([]).model_copy(update=fields),
        shape=tiny_shape(),
        code={},
    )
    journal = Journal(run / "journal.sqlite")
    record_environment(journal, started, version, record)
    record_usage(journal, started, usages)
    journal.close()
