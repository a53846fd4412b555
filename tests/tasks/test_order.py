"""The order of training tasks: a function of seed and position, and a journal finds its tasks again."""

from pathlib import Path

import pytest

from asyncrl.data.rows import Row
from asyncrl.errors import InputError
from asyncrl.records import Task, VerifierSpec
from asyncrl.tasks.order import TaskList, TaskOrder, TaskTable
from asyncrl.tasks.packed_rows import Findings, PackedTask, Packer
from asyncrl.tasks.source_choice import SourceChoice


def make(*prompts_and_answers: tuple[str, str]) -> list[Task]:
    return [
        Task(f"train:{n}", prompt, (1,), answer, VerifierSpec("exact"))
        for n, (prompt, answer) in enumerate(prompts_and_answers, start=1)
    ]


def numbered(count: int) -> list[Task]:
    return make(*((f"{n}+1=", str(n + 1)) for n in range(count)))


def order_of(tasks: list[Task], sizes: tuple[int, ...], weights: tuple[float, ...]) -> TaskOrder:
    chooser = SourceChoice(sizes, weights, seed=3, is_shuffled=True)
    return TaskOrder(tasks, seed=3, is_shuffled=True, chooser=chooser)


def test_the_order_of_one_file_is_what_it_always_was():
    order = TaskOrder(numbered(8), seed=3, is_shuffled=True)
    ids = [int(order.next(position, 0).task_id.partition(":")[2]) for position in range(16)]
    assert ids == [2, 5, 4, 1, 6, 3, 8, 7, 8, 3, 2, 4, 7, 5, 1, 6]


def test_a_mixture_gives_each_source_its_own_epochs_and_its_share():
    tasks = numbered(10)
    order = order_of(tasks, (4, 6), (1.0, 3.0))
    ids = [order.next(position, 0).task_id for position in range(1000)]
    first = [one for one in ids if int(one.partition(":")[2]) <= 4]
    assert len(first) == 250
    for start in range(0, 248, 4):
        assert sorted(first[start : start + 4]) == [f"train:{n}" for n in range(1, 5)]
    alone = TaskOrder(tasks[:4], seed=3, is_shuffled=True)
    assert first == [alone.next(position, 0).task_id for position in range(250)]


def test_sources_of_one_size_do_not_keep_step():
    order = order_of(numbered(40), (20, 20), (1.0, 1.0))
    ids = [int(order.next(position, 0).task_id.partition(":")[2]) for position in range(1000)]
    first, second = [n for n in ids if n <= 20], [n - 20 for n in ids if n > 20]
    assert first[:20] != second[:20] and sorted(first[:20]) == sorted(second[:20])


def test_a_weight_that_gets_no_task_is_refused():
    with pytest.raises(InputError, match=r"a source whose weight 0\.0001 .* Raise its weight"):
        order_of(numbered(2), (1, 1), (1.0, 0.0001))


def test_the_order_is_a_permutation_per_epoch_and_a_function_of_seed_and_position():
    tasks = numbered(10)
    order = TaskOrder(tasks, seed=3, is_shuffled=True)
    first, second = ([order.next(e * 10 + i, 0).task_id for i in range(10)] for e in (0, 1))
    assert sorted(first) == sorted(second) == sorted(task.task_id for task in tasks)
    assert first != second
    again = TaskOrder(tasks, seed=3, is_shuffled=True)
    assert [again.next(i, 0).task_id for i in range(20)] == first + second
    assert [TaskOrder(tasks, seed=4, is_shuffled=True).next(i, 0).task_id for i in range(10)] != first


def test_without_shuffling_the_files_order_is_kept():
    order = TaskOrder(numbered(3), seed=3, is_shuffled=False)
    assert [order.next(i, 0).task_id for i in range(4)] == ["train:1", "train:2", "train:3", "train:1"]


def test_after_a_change_of_the_file_the_prompt_decides_not_the_line():
    before = numbered(4)
    moved = TaskOrder(make(*((t.prompt, t.reference) for t in reversed(before))), seed=3, is_shuffled=True)
    for task in before:
        for may_have_moved in (False, True):
            found = moved.find(task.task_id, task.prompt, may_have_moved=may_have_moved)
            assert (found.prompt, found.reference) == (task.prompt, task.reference)
            assert found.task_id != task.task_id


def test_a_prompt_that_is_gone_or_has_several_answers_now_is_refused():
    order = TaskOrder(
        make(("1+1=", "2"), ("1+1=", "3"), ("2+2=", "4"), ("2+2=", "4")),
        seed=3,
        is_shuffled=True,
    )
    with pytest.raises(InputError, match=r"train:9, '9\+9=', and no row has that prompt anymore"):
        order.find("train:9", "9+9=")
    with pytest.raises(InputError, match=r"no row has that prompt"):
        order.find("train:1", "9+9=")
    # The two may have changed places: which of them was answered cannot be told.
    with pytest.raises(
        InputError, match=r"rows now have with different answers or columns \(train:1, train:2\)"
    ):
        order.find("train:1", "1+1=", may_have_moved=True)
    assert order.find("train:2", "1+1=").task_id == "train:2"
    assert order.find("train:4", "2+2=", may_have_moved=True).prompt == "2+2="


MATH = VerifierSpec("math")


def table(made: list[str] | None = None) -> TaskTable:
    """a:1, a:2, a:5 and b:2, with prompts of 1 to 4 characters."""
    packer = Packer(Path("unused"))
    for length, row_id in enumerate(("a:1", "a:2", "a:5", "b:2"), start=1):
        packer.add(Row(row_id, row_id, 0, "", str(length), MATH), "x" * length, True, "math")

    def make(packed: PackedTask) -> Task:
        if made is not None:
            made.append(packed.task_id)
        tokens = tuple(range(len(packed.text)))
        return Task(packed.task_id, packed.text, tokens, packed.answer, packed.verifier)

    return TaskTable(packer.finish(Findings(), None), make)


def test_a_task_is_made_when_it_is_asked_for() -> None:
    made: list[str] = []
    tasks = table(made)
    assert len(tasks) == 4 and made == []
    assert (tasks[2].task_id, tasks[-1].task_id) == ("a:5", "b:2")
    assert made == ["a:5", "b:2"]
    assert [task.reference for task in tasks] == ["1", "2", "3", "4"]
    assert [task.task_id for task in tasks[1:3]] == ["a:2", "a:5"]


def test_a_task_is_found_by_its_id() -> None:
    tasks = table()
    for task_id in ("a:1", "a:2", "a:5", "b:2"):
        found = tasks.find(task_id)
        assert found is not None and found.task_id == task_id
    for task_id in ("a:3", "a:6", "b:1", "b:5", "c:1", "a", "a:x", ""):
        assert tasks.find(task_id) is None


def test_tasks_are_found_by_their_prompt() -> None:
    assert [task.task_id for task in table().asking("xxx")] == ["a:5"]
    assert table().asking("y") == []
    assert [task.task_id for task in table().with_prompts({"x", "xxxx", "y"})] == ["a:1", "b:2"]


def test_the_longest_prompt_is_counted_in_tokens() -> None:
    assert table().longest_prompt() == 4


def test_an_order_asks_and_finds_the_tasks_of_a_table() -> None:
    order = TaskOrder(table(), seed=3, is_shuffled=False)
    assert [order.next(position, 0).task_id for position in range(5)] == ["a:1", "a:2", "a:5", "b:2", "a:1"]
    assert order.find("a:5", "xxx").task_id == "a:5"
    assert order.find("a:1", "xxx", may_have_moved=True).task_id == "a:5"


def test_a_row_is_found_by_the_prompt_that_a_journal_has_wherever_it_stands_now() -> None:
    packed = table()
    for found in (packed, TaskList(list(packed))):
        assert found.row_of("a:2") == found.row_of("a:2", "xx") == 1
        assert found.row_of("a:1", "xxx") == found.row_of("c:7", "xxx") == 2
        assert found.row_of("a:9") is found.row_of("a:1", "y") is None
