"""Data of many rows is checked once, kept for the next start, and read again where anything changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from fakes.model_folder import write_tokenizer

from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.observe.terminal import stage
from asyncrl.recipe import Recipe
from asyncrl.recipe.sections.section import TASK_ROWS, Section, is_marked
from asyncrl.records import Task
from asyncrl.tasks import digests as naming
from asyncrl.tasks import packed_rows as packed
from asyncrl.tasks import task_list as reading
from asyncrl.tasks.source_choice import read_heldout_tasks
from asyncrl.tasks.task_list import TaskMaker, TaskSet, read_train_tasks
from asyncrl.tasks.verifier_cache import VerifierCache

Start = Callable[..., tuple[TaskSet, int]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts on a file of 40 rows, where so few are many; returns the tasks and how many rows were read."""
    monkeypatch.setattr(packed, "SPILL_BYTES", 500)
    monkeypatch.setattr(naming, "SMALL_BYTES", 100)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    read: list[Any] = []
    add = TaskMaker._add

    def counted(self: TaskMaker, *arguments: Any) -> None:
        read.append(arguments)
        add(self, *arguments)

    monkeypatch.setattr(TaskMaker, "_add", counted)
    write_tokenizer(tmp_path / "model")
    lines = [json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) for n in range(38)]
    broken = json.dumps({"prompt": "1+1=", "answer": "\\frac{1}{"})
    (tmp_path / "train.jsonl").write_text("\n".join([*lines, lines[0], broken]))

    def begin(*, context_tokens: int = 32, **sections: Any) -> tuple[TaskSet, int]:
        read.clear()
        data = {"train": str(tmp_path / "train.jsonl"), "broken_rows": "leave_out"}
        recipe = make_recipe({**data, **sections.pop("data", {})}, **sections)
        codec = TextCodec(tmp_path / "model")
        cache = VerifierCache(tmp_path)
        return read_train_tasks(recipe, codec, cache, context_tokens, stage.LateStage), len(read)

    return begin


def make_recipe(data: dict[str, Any], **sections: Any) -> Recipe:
    raw = {"name": "x", "model": {"path": "m"}, "data": data, "evaluation": {"every_steps": 0}}
    return Recipe.model_validate({**raw, **sections})


def test_the_next_start_reads_no_row_and_has_the_same_tasks_and_warnings(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    first, num_read = start()
    said = [record.getMessage() for record in caplog.records]
    caplog.clear()
    second, num_read_again = start()
    assert (num_read, num_read_again) == (40, 0)
    assert list(second.tasks) == list(first.tasks) and len(first.tasks) == 38
    assert [record.getMessage() for record in caplog.records] == said
    assert "leaves out 2 of 40 rows: 1 repeated" in said[0]


def test_the_next_start_tries_each_verifier_again(start: Start, tmp_path: Path) -> None:
    start()
    cache = VerifierCache(tmp_path)
    recipe = make_recipe({"train": str(tmp_path / "train.jsonl"), "broken_rows": "leave_out"})
    read_train_tasks(recipe, TextCodec(tmp_path / "model"), cache, 32)
    (example,) = cache.examples.values()
    assert (example.where, example.gold) == (f"{tmp_path}/train.jsonl:1", "1")
    assert example.reference.answers[0].number == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"context_tokens": 31},
        {"verifying": {"default": "exact"}},
        {"prompt": {"template": "Q: {{ question }}"}},
        {"data": {"long_prompts": "leave_out"}},
        {"verifying": {"folder": "/elsewhere"}},
    ],
    ids=str,
)
def test_what_decides_about_rows_reads_them_again(start: Start, changed: dict[str, Any]) -> None:
    assert start()[1] == 40
    assert start(**changed)[1] == 40
    assert start()[1] == 0


def test_each_key_that_is_read_to_make_tasks_is_marked_as_one_that_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokenizer(tmp_path / "model")
    (tmp_path / "own.py").write_text("from verifiers.exact import ExactVerifier as V\n")
    rows = [{"prompt": f"{n}+1=", "answer": "2", "verifier": "./own.py:V"} for n in range(4)]
    rows += [{"prompt": "1+1=", "answer": "\\frac{1}{"}, {"prompt": "1+1=", "answer": "2"}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = make_recipe(
        {"train": str(tmp_path / "train.jsonl"), "broken_rows": "leave_out", "max_prompt_tokens": 30},
        prompt={"template": "plain", "suffix": "!"},
    )
    codec, cache, read = TextCodec(tmp_path / "model"), VerifierCache(tmp_path), set[str]()

    def noted(section: Section, key: str) -> Any:
        if key in type(section).model_fields:
            read.add(key if isinstance(section, Recipe) else f"{type(section).__name__.lower()}.{key}")
        return object.__getattribute__(section, key)

    with monkeypatch.context() as patched:
        patched.setattr(reading, "table_name", lambda *_: None)
        patched.setattr(Section, "__getattribute__", noted, raising=False)
        tasks = read_train_tasks(recipe, codec, cache, 32)
    assert len(tasks.tasks) == 5
    keys = read & all_keys(Recipe)
    assert keys >= {"data.broken_rows", "verifying.folder", "prompt.suffix"}
    # The sources are part of the name, with what they hold.
    whole = {"agent", "data", "data.train", "data.selection", "teacher", "turns", "verifying"}
    assert [key for key in keys - whole if not is_marked(Recipe, key, TASK_ROWS)] == []


def all_keys(section: type[Section], prefix: str = "") -> set[str]:
    found = set[str]()
    for name, field in section.model_fields.items():
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        found |= {prefix + name, *(key for kind in inner for key in all_keys(kind, f"{prefix}{name}."))}
    return found


def test_a_row_that_changed_is_read_again(start: Start, tmp_path: Path) -> None:
    start()
    path = tmp_path / "train.jsonl"
    path.write_text(path.read_text().replace('"0+1="', '"0+0="'))
    tasks, num_read = start()
    assert num_read == 40 and tasks.tasks[0].prompt == "0+0="


def test_another_tokenizer_reads_the_rows_again(start: Start, tmp_path: Path) -> None:
    start()
    path = tmp_path / "model" / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    assert start()[1] == 40


def test_rows_that_a_function_of_ones_own_makes_are_read_at_each_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def to_row(row): return row\n")
    source = {"path": str(tmp_path / "train.jsonl"), "columns": f"{tmp_path}/own.py:to_row"}
    for _ in range(2):
        assert start(data={"train": source})[1] == 40


def test_a_broken_gold_is_refused_before_any_work_and_nothing_is_kept(start: Start, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(InputError, match=r"train\.jsonl:40: The gold answer"):
            start(data={"broken_rows": "refuse"})
    assert list((tmp_path / "cache" / "asyncrl" / "tasks").iterdir()) == []


def test_only_a_prompt_that_may_be_too_long_is_tokenised_at_the_start(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    count = TextCodec.count_tokens

    def noted(self: TextCodec, texts: list[str], **how: bool) -> list[int]:
        counted.extend(texts)
        return count(self, texts, **how)

    monkeypatch.setattr(TextCodec, "count_tokens", noted)
    monkeypatch.setattr(reading, "_ROWS_PER_COUNT", 7)
    # "10+1=" has 5 bytes, and at most as many tokens; the longest prompt may have 4.
    tasks, _ = start(context_tokens=5, data={"long_prompts": "leave_out"})
    assert counted == [f"{n}+1=" for n in range(10, 38)]
    assert [task.prompt for task in tasks.tasks] == [f"{n}+1=" for n in range(10)]
    assert len(tasks.tasks[0].prompt_tokens) == 4


def test_rows_stay_in_their_order_where_some_wait_for_their_tokens(start: Start, tmp_path: Path) -> None:
    prompts = ["1+1=", "é" * 4, "2+1=", "é" * 20, "3+1="]
    lines = [json.dumps({"prompt": prompt, "answer": "1"}) for prompt in prompts]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    # Four letters of two bytes each are four tokens.
    tasks, _ = start(context_tokens=7, data={"long_prompts": "leave_out"})
    assert [task.prompt for task in tasks.tasks] == ["1+1=", "é" * 4, "2+1=", "3+1="]


@pytest.mark.parametrize("context_tokens", [5, 100])
def test_the_first_wrong_row_is_named_although_its_tokens_are_counted_later(
    start: Start, context_tokens: int
) -> None:
    # Row 11 has a prompt of 5 tokens, row 40 a broken gold.
    line = {5: "11: the prompt has 5 tokens", 100: "40: The gold answer"}[context_tokens]
    with pytest.raises(InputError, match=rf"train\.jsonl:{line}"):
        start(context_tokens=context_tokens, data={"broken_rows": "refuse"})


def test_chat_rows_of_parquet_and_jsonl_make_the_same_tasks(start: Start, tmp_path: Path) -> None:
    (tmp_path / "model" / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    )
    start(seed=1)
    rows = [
        {
            "prompt": [{"content": f"{n % 20}+1=", "role": "user"}],
            "reward_model": {"ground_truth": f"{n % 20 + 1 + n // 50}", "style": "rule"},
            "extra_info": {"index": n},
        }
        for n in range(60)
    ]
    (tmp_path / "verl.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "verl.parquet")
    found = []
    for name in ("verl.jsonl", "verl.parquet"):
        tasks, num_read = start(data={"train": {"path": str(tmp_path / name), "columns": "verl"}})
        assert num_read == 60
        found.append(list(tasks.tasks))
    assert found[0] == found[1]
    # 20 that differ, 30 repeats, 10 with another answer.
    assert len(found[0]) == 30 and found[0][0].prompt == "<0+1=>"


def test_long_reading_shows_how_many_rows_were_read(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(seed=1)
    assert "reading" not in capsys.readouterr().err
    monkeypatch.setattr(stage, "SHOWN_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(reading, "_ROWS_PER_LOOK", 10)
    start(context_tokens=30)
    assert "start   reading data.train" in capsys.readouterr().err


def heldout(folder: Path, limit: int, *weights: float | None) -> list[Task]:
    """Of sources a with 2 rows, b with 9 and c with 9."""
    sources = []
    for name, size, weight in zip("abc", (2, 9, 9), weights, strict=True):
        path = folder / f"{name}.jsonl"
        rows = [{"prompt": f"{name}{n}", "answer": str(n)} for n in range(size)]
        path.write_text("\n".join(map(json.dumps, rows)))
        sources.append({"path": str(path), **({} if weight is None else {"weight": weight})})
    recipe = make_recipe({"train": "x.jsonl", "heldout": sources}, evaluation={"num_tasks": limit})
    return read_heldout_tasks(recipe, TextCodec(write_tokenizer(folder / "model")), VerifierCache(folder), 32)


def test_a_limit_takes_as_many_of_each_held_out_source_and_the_first_ones(tmp_path: Path) -> None:
    found = [task.prompt for task in heldout(tmp_path, 8, None, None, None)]
    assert found == ["a0", "a1", "b0", "b1", "b2", "c0", "c1", "c2"]
    found = [task.prompt for task in heldout(tmp_path, 6, 1, 1, 4)]
    assert found == ["a0", "b0", "c0", "c1", "c2", "c3"]
    assert len(heldout(tmp_path, 100, None, None, None)) == 20


def test_a_limit_that_leaves_a_source_without_a_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"num_tasks is 2, which leaves no task for .*c\.jsonl .*Raise"):
        heldout(tmp_path, 2, None, None, None)
