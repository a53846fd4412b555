"""Task files: every bad row is named by file and line before any work starts."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.model_folder import write_tokenizer

from asyncrl.errors import InputError
from asyncrl.recipe import Verifying
from asyncrl.records import Task, VerifierSpec
from asyncrl.rollout.tasks import TaskOrder, VerifierCache, read_tasks
from asyncrl.rollout.text import TextCodec


def read(folder: Path, *lines: str, context_tokens: int = 32) -> list[Task]:
    path = folder / "train.jsonl"
    path.write_text("\n".join(lines))
    return read_tasks(
        path,
        verifying=Verifying(),
        codec=TextCodec(write_tokenizer(folder / "model")),
        verifiers=VerifierCache(folder),
        context_tokens=context_tokens,
    )


def row(**fields: Any) -> str:
    return json.dumps({"prompt": "1+1=", "answer": "2", **fields})


def test_a_row_becomes_a_task_with_tokens_and_a_parsed_reference(tmp_path: Path) -> None:
    (task,) = read(tmp_path, row())
    assert (task.task_id, task.prompt, len(task.prompt_tokens)) == ("train:1", "1+1=", 4)
    assert task.verifier == VerifierSpec("math")


def test_blank_lines_are_skipped_and_line_numbers_stay_true(tmp_path: Path) -> None:
    tasks = read(tmp_path, row(), "", row())
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
        ("[1]", r"train\.jsonl:2: list, expected an object"),
        ('{"answer": "2"}', r'train\.jsonl:2: no "prompt"; the row has answer'),
        ('{"prompt": "1+1="}', r'train\.jsonl:2: no "answer"'),
        ('{"prompt": "", "answer": "2"}', r'train\.jsonl:2: "prompt" is'),
        ('{"prompt": 3, "answer": "2"}', r'train\.jsonl:2: "prompt" is'),
        (row(verifier=7), r'train\.jsonl:2: "verifier" is'),
        (row(verifier="mth"), r'train\.jsonl:2: verifier "mth".*math'),
        (row(answer=""), r"train\.jsonl:2: "),
        (row(prompt="1" * 40), r"train\.jsonl:2: the prompt has 40 tokens, the model's context 32"),
        (row(prompt=[{"role": "user", "content": "1+1"}]), r"train\.jsonl:2: .*no chat template"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, row(), line)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no rows"):
        read(tmp_path, "")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    codec = TextCodec(write_tokenizer(tmp_path / "model"))
    with pytest.raises(InputError, match="does not exist"):
        read_tasks(
            tmp_path / "none.jsonl",
            verifying=Verifying(),
            codec=codec,
            verifiers=VerifierCache(tmp_path),
            context_tokens=32,
        )


def test_the_order_is_a_permutation_per_epoch_and_a_function_of_seed_and_position(tmp_path: Path) -> None:
    tasks = read(tmp_path, *[row() for _ in range(10)])
    order = TaskOrder(tasks, seed=3, is_shuffled=True)
    first, second = ([order.at(e * 10 + i).task_id for i in range(10)] for e in (0, 1))
    assert sorted(first) == sorted(second) == sorted(task.task_id for task in tasks)
    assert first != second
    again = TaskOrder(tasks, seed=3, is_shuffled=True)
    assert [again.at(i).task_id for i in range(20)] == first + second
    assert [TaskOrder(tasks, seed=4, is_shuffled=True).at(i).task_id for i in range(10)] != first


def test_without_shuffling_the_files_order_is_kept(tmp_path: Path) -> None:
    order = TaskOrder(read(tmp_path, *[row() for _ in range(3)]), seed=3, is_shuffled=False)
    assert [order.at(i).task_id for i in range(4)] == ["train:1", "train:2", "train:3", "train:1"]


def test_after_a_change_of_the_file_the_prompt_decides_not_the_line(tmp_path: Path) -> None:
    rows = [row(prompt=f"{n}+1=", answer=str(n + 1)) for n in range(4)]
    before = read(tmp_path, *rows)
    moved = TaskOrder(read(tmp_path, *reversed(rows)), seed=3, is_shuffled=True)
    for task in before:
        for may_have_moved in (False, True):
            found = moved.find(task.task_id, task.prompt, may_have_moved=may_have_moved)
            assert (found.prompt, found.reference) == (task.prompt, task.reference)
            assert found.task_id != task.task_id


def test_a_prompt_that_is_gone_or_has_several_answers_now_is_refused(tmp_path: Path) -> None:
    order = TaskOrder(
        read(
            tmp_path,
            row(answer="2"),
            row(answer="3"),
            row(prompt="2+2=", answer="4"),
            row(prompt="2+2=", answer="4"),
        ),
        seed=3,
        is_shuffled=True,
    )
    with pytest.raises(InputError, match=r"train:9, '9\+9=', and no row asks that any more"):
        order.find("train:9", "9+9=")
    with pytest.raises(InputError, match=r"no row asks that"):
        order.find("train:1", "9+9=")
    # The two may have changed places: which of them was answered cannot be told.
    with pytest.raises(InputError, match=r"several rows ask with different answers \(train:1, train:2\)"):
        order.find("train:1", "1+1=", may_have_moved=True)
    assert order.find("train:2", "1+1=").task_id == "train:2"
    assert order.find("train:4", "2+2=", may_have_moved=True).prompt == "2+2="
