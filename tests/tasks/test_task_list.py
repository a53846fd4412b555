"""Task files: every bad row is named by file and line before any work starts."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from fakes.model_folder import write_tokenizer

from asyncrl.errors import InputError
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe
from asyncrl.records import Task, VerifierSpec
from asyncrl.tasks.source_choice import read_heldout_tasks
from asyncrl.tasks.task_list import TaskSet, read_train_tasks
from asyncrl.tasks.verifier_cache import VerifierCache
from verifiers.own import Gold


def read(folder: Path, *lines: str, context_tokens: int = 32) -> list[Task]:
    path = folder / "train.jsonl"
    path.write_text("\n".join(lines))
    return read_files(folder, path, context_tokens=context_tokens).tasks


def read_files(folder: Path, train: Any, *, context_tokens: int = 32, **sections: Any) -> TaskSet:
    recipe = recipe_on(train, **sections)
    codec = TextCodec(write_tokenizer(folder / "model"))
    return read_train_tasks(recipe, codec, VerifierCache(folder), context_tokens)


def recipe_on(train: Any, *, data: dict[str, Any] | None = None, **sections: Any) -> Recipe:
    paths = str(train) if isinstance(train, Path) else train
    raw = {"name": "x", "model": {"path": "m"}, "data": {"train": paths, **(data or {})}, **sections}
    return Recipe.model_validate({"evaluation": {"every_steps": 0}, **raw})


def row(**fields: Any) -> str:
    return json.dumps({"prompt": "1+1=", "answer": "2", **fields})


def test_a_row_becomes_a_task_with_tokens_and_a_parsed_reference(tmp_path: Path) -> None:
    (task,) = read(tmp_path, row())
    assert (task.task_id, task.prompt, len(task.prompt_tokens)) == ("train:1", "1+1=", 4)
    assert task.verifier == VerifierSpec("math")


def test_a_gold_of_a_users_verifier_is_checked_at_once_and_left_to_the_worker_in_a_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "v.py").write_text(
        "class V:\n"
        "    def parse_reference(self, raw):\n"
        "        if raw != '2': raise ValueError('no two')\n"
        "        return 2\n"
        "    def verify(self, response, reference): ...\n"
    )
    (task,) = read(tmp_path, row(verifier="./v.py:V"))
    assert task.reference == Gold("2")
    with pytest.raises(InputError, match="no two"):
        read(tmp_path, row(verifier="./v.py:V", answer="3"))


def test_blank_lines_are_skipped_and_line_numbers_stay_true(tmp_path: Path) -> None:
    tasks = read(tmp_path, row(), "", row(answer="3"))
    assert [task.task_id for task in tasks] == ["train:1", "train:3"]


def test_a_row_may_name_its_verifier_with_options(tmp_path: Path) -> None:
    named, with_options = read(
        tmp_path, row(verifier="exact"), row(verifier={"name": "numeric", "options": {}})
    )
    assert named.verifier.name == "exact"
    assert with_options.verifier == VerifierSpec("numeric", {})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", r"train\.jsonl:2: not JSON"),
        ("[1]", r"train\.jsonl:2 is a list, expected an object"),
        ('{"answer": "2"}', r'train\.jsonl:2: no "prompt"; the row has answer'),
        ('{"prompt": "1+1="}', r'train\.jsonl:2: no "answer"'),
        ('{"prompt": "", "answer": "2"}', r'train\.jsonl:2: "prompt" is'),
        ('{"prompt": 3, "answer": "2"}', r'train\.jsonl:2: "prompt" is'),
        (row(verifier=7), r'train\.jsonl:2: "verifier" is'),
        (row(verifier="mth"), r"train\.jsonl:2: There is no verifier 'mth'\. Did you mean 'math'"),
        (row(answer=""), r"train\.jsonl:2: "),
        (row(prompt="1" * 40), r"train\.jsonl:2: the prompt has 40 tokens, the model's context 32"),
        (row(prompt=[{"role": "user", "content": "1+1"}]), r"train\.jsonl:2: .*no chat template"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, row(), line)


def test_a_short_prompt_that_the_tokenizer_cannot_encode_is_named_by_file_and_line(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path) / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["unk_token"] = "[UNK]"
    file.write_text(json.dumps(tokenizer))
    (tmp_path / "rows.jsonl").write_text(f"{row(prompt='1+1=')}\n{row(prompt='1é=')}\n")
    with pytest.raises(InputError, match=r"rows\.jsonl:2: the tokenizer has no tokens for '1\\xe9='"):
        read_train_tasks(recipe_on(tmp_path / "rows.jsonl"), TextCodec(tmp_path), VerifierCache(tmp_path), 32)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no rows"):
        read(tmp_path, "")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data.train is .*none\.jsonl, which does not exist"):
        read_files(tmp_path, tmp_path / "none.jsonl")


def write_gsm8k(folder: Path, name: str, *answers: str) -> Path:
    rows = [{"question": f"{n}+1=", "answer": f"so\n{answer}"} for n, answer in enumerate(answers)]
    (folder / name).write_text("\n".join(map(json.dumps, rows)))
    return folder / name


def test_published_rows_are_read_by_their_columns(tmp_path: Path) -> None:
    path = write_gsm8k(tmp_path, "main.jsonl", "#### 1", "#### 2")
    mapping = {"prompt": "question", "answer": "answer", "answer_after": "####", "verifier": "exact"}
    for columns, verifier in (("gsm8k", "math"), (mapping, "exact")):
        tasks = read_files(tmp_path, {"path": str(path), "columns": columns}).tasks
        assert [(task.task_id, task.prompt) for task in tasks] == [("main:1", "0+1="), ("main:2", "1+1=")]
        assert tasks[0].verifier == VerifierSpec(verifier)


def test_a_function_of_ones_own_makes_rows(tmp_path: Path) -> None:
    path = write_gsm8k(tmp_path, "main.jsonl", "#### 1")
    (tmp_path / "own.py").write_text(
        "def to_row(row): return {'prompt': row['question'] + '?', 'answer': 7}\ndef bad(row): return 3\n"
    )
    source = {"path": str(path), "columns": f"{tmp_path}/own.py:to_row"}
    assert read_files(tmp_path, source).tasks[0].prompt == "0+1=?"
    with pytest.raises(InputError, match=r"main\.jsonl:1: columns made '3' of the row, expected an object"):
        read_files(tmp_path, {"path": str(path), "columns": f"{tmp_path}/own.py:bad"})
    with pytest.raises(InputError, match='data.train has columns "gsm8", expected asyncrl, verl, gsm8k'):
        read_files(tmp_path, {"path": str(path), "columns": "gsm8"})


@pytest.mark.parametrize("key", ["config", "split", "revision"])
def test_what_a_file_does_not_have_is_refused(tmp_path: Path, key: str) -> None:
    path = write_gsm8k(tmp_path, "main.jsonl", "#### 1")
    with pytest.raises(InputError, match=f'with the {key} "x", but only a .* Leave the {key} out'):
        read_files(tmp_path, {"path": str(path), key: "x"})


def test_rows_that_repeat_others_are_left_out_and_contradictions_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [row(), row(), row(answer="3"), row(verifier="exact"), row(answer="3"), row(verifier="exact")]
    assert [task.task_id for task in read(tmp_path, *lines)] == ["train:1", "train:3", "train:4"]
    left_out, contradicting = (record.getMessage() for record in caplog.records)
    assert "data.train leaves out 3 of 6 rows: 3 repeated (first " in left_out
    assert "train.jsonl:2)." in left_out
    assert "2 rows with the prompt of an earlier row but another answer, first " in contradicting


def test_broken_golds_and_long_prompts_are_left_out_where_the_recipe_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_gsm8k(tmp_path, "main.jsonl", "#### 1", "none", "#### \\frac{1}{", "#### 4")
    source = {"path": str(path), "columns": "gsm8k"}
    with pytest.raises(InputError, match=r"main\.jsonl:2: .*no '####'.*data\.broken_rows to leave_out"):
        read_files(tmp_path, source)
    kept = read_files(tmp_path, source, data={"broken_rows": "leave_out"}).tasks
    assert [task.task_id for task in kept] == ["main:1", "main:4"]
    assert "leaves out 2 of 4 rows: 2 without an answer that can be parsed" in caplog.records[-1].getMessage()
    long = tmp_path / "long.jsonl"
    long.write_text("\n".join([row(prompt="1" * 40), row()]))
    assert len(read_files(tmp_path, long, data={"long_prompts": "leave_out"}).tasks) == 1
    assert "1 with too long a prompt" in caplog.records[-1].getMessage()
    long.write_text(row(prompt="1" * 40))
    with pytest.raises(InputError, match="holds no rows that can be used: 1 with too long a prompt"):
        read_files(tmp_path, long, data={"long_prompts": "leave_out"})


def test_prompts_above_the_recipes_own_limit_are_too_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join([row(prompt="1+1="), row(prompt="1+10=")]))
    with pytest.raises(InputError, match=r"train\.jsonl:2: .* 5 tokens, data\.max_prompt_tokens is 4"):
        read_files(tmp_path, path, data={"max_prompt_tokens": 4})
    kept = read_files(tmp_path, path, data={"max_prompt_tokens": 4, "long_prompts": "leave_out"}).tasks
    assert [task.prompt for task in kept] == ["1+1="]
    assert "1 with too long a prompt" in caplog.records[-1].getMessage()


def test_every_prompt_goes_through_the_template(tmp_path: Path) -> None:
    prompt = {"template": "few_shot", "examples": [{"question": "2+2=", "answer": "4"}]}
    (tmp_path / "train.jsonl").write_text(row())
    (task,) = read_files(tmp_path, tmp_path / "train.jsonl", prompt=prompt, context_tokens=99).tasks
    assert task.prompt == "Question: 2+2=\nAnswer: 4\n\nQuestion: 1+1=\nAnswer:"
    chat = {"template": "chat"}
    with pytest.raises(InputError, match=r"train\.jsonl:1: .*no chat template"):
        read_files(tmp_path, tmp_path / "train.jsonl", prompt=chat)


def test_several_sources_have_unique_ids_and_stand_one_after_the_other(tmp_path: Path) -> None:
    paths = [tmp_path / name / "train.jsonl" for name in ("a", "b")]
    for path, prompt in zip(paths, ("1+1=", "2+0="), strict=True):
        path.parent.mkdir()
        path.write_text(row(prompt=prompt))
    read = read_files(tmp_path, [str(path) for path in paths])
    assert [task.task_id for task in read.tasks] == ["train:1", "train~2:1"] and read.sizes == (1, 1)


def test_held_out_sources_follow_each_other(tmp_path: Path) -> None:
    paths = [write_gsm8k(tmp_path, name, "#### 1") for name in ("a.jsonl", "b.jsonl")]
    heldout = [{"path": str(path), "columns": "gsm8k"} for path in paths]
    recipe = recipe_on("x.jsonl", data={"heldout": heldout[:1]})
    codec = TextCodec(write_tokenizer(tmp_path / "model"))
    assert [t.task_id for t in read_heldout_tasks(recipe, codec, VerifierCache(tmp_path), 32)] == ["a:1"]
    # The second asks the same.
    recipe = recipe_on("x.jsonl", data={"heldout": heldout})
    with pytest.raises(InputError, match=r"data.heldout names .*b\.jsonl, which holds no rows that can be"):
        read_heldout_tasks(recipe, codec, VerifierCache(tmp_path), 32)


def filtered(folder: Path, text: str, *lines: str) -> TaskSet:
    path = folder / "train.jsonl"
    path.write_text("\n".join(lines))
    return read_files(folder, path, data={"filter": text})


def test_data_filter_leaves_out_rows_by_their_columns_and_counts_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rates = (0.0, 0.05, 0.5, None, 1.0)
    lines = [row(prompt=f"{n}+1=", pass_rate=rate) for n, rate in enumerate(rates)]
    found = filtered(tmp_path, "pass_rate in [0.05, 0.95]", *lines)
    assert [task.task_id for task in found.tasks] == ["train:2", "train:3"]
    assert found.num_filtered == 3
    assert "WARNING" not in caplog.text


def test_a_row_that_the_filter_leaves_out_may_be_broken(tmp_path: Path) -> None:
    lines = [row(level=1), row(answer="none at all", level=9)]
    found = filtered(tmp_path, "level < 5", *lines)
    assert len(found.tasks) == 1


def test_a_filter_on_a_column_that_a_row_lacks_names_the_row_and_the_column(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'train.jsonl:2: no "pass_rate", which data.filter .* Did you mean'):
        filtered(tmp_path, "pass_rate < 1", row(pass_rate=0.5), row(pass_rates=0.5))
    with pytest.raises(
        InputError, match=r"train.jsonl:1: .pass_rate. is 'much', expected a number.* data.filter"
    ):
        filtered(tmp_path, "pass_rate < 1", row(pass_rate="much"))
    with pytest.raises(
        InputError, match=r"no rows that can be used: 1 by data.filter \(first .*train.jsonl:1"
    ):
        filtered(tmp_path, "pass_rate < 1", row(pass_rate=1))


def test_a_filter_reads_inside_columns_and_in_parquet_too(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "answer": "2", "extra": {"level": n}} for n in range(4)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train.parquet")
    found = read_files(tmp_path, tmp_path / "train.parquet", data={"filter": "extra.level >= 2"})
    assert [task.task_id for task in found.tasks] == ["train:3", "train:4"]


def test_a_curriculum_has_the_level_of_every_row_and_names_one_that_has_none(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(row(prompt=f"{n}+1=", extra={"level": n}) for n in (3, 1, 2)))
    selection = {"by": "curriculum", "column": "extra.level"}
    found = read_files(tmp_path, path, data={"selection": selection})
    assert list(found.tasks.levels()) == [3.0, 1.0, 2.0]
    assert list(read_files(tmp_path, path).tasks.levels()) == []
    path.write_text(row(extra={"level": "hard"}))
    with pytest.raises(InputError, match=r"train.jsonl:1: .extra.level. is 'hard', expected a number"):
        read_files(tmp_path, path, data={"selection": selection})
    path.write_text(row(extra=None))
    with pytest.raises(InputError, match=r"train.jsonl:1: .extra.level. is null, expected a number"):
        read_files(tmp_path, path, data={"selection": selection})
