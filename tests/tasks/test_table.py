"""Tasks that are made when they are asked for, and found again by id and by prompt."""

from pathlib import Path

from asyncrl.data.rows import Row
from asyncrl.records import Task, VerifierSpec
from asyncrl.tasks.order import TaskList, TaskOrder, TaskTable
from asyncrl.tasks.packed_rows import Findings, PackedTask, Packer

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
