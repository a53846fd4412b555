"""The code example: right programs pass their hidden tests, each bug fails them unless it is no bug."""

from random import Random

import pytest

from asyncrl.examples.code_pretrain import (
    Bugs,
    CodeTask,
    answer,
    draw_code_examples,
    draw_tasks,
    row_of_task,
    write_program,
)

NO_BUGS = Bugs(0.0, 0.0, 0.0, 0.0)
ALL = draw_tasks(count=1827, seed=0)


def passes(program, row):
    namespace = {}
    exec(program, namespace)
    return all(eval(test["call"], namespace) == eval(test["expect"]) for test in row["answer"]["tests"])


def test_an_answer_is_what_the_words_say():
    # over 5 keeps 6 and 9; minus 3 makes 3 and 6.
    assert answer(CodeTask("sum", "minus 3", "over 5"), [5, 6, 9]) == 9
    assert answer(CodeTask("list", "square", "odd"), [1, 2, 3]) == [1, 9]
    assert answer(CodeTask("distinct", "times 2", "all"), [4, 4, 5]) == 2


def test_every_right_program_passes_its_own_tests():
    for task in ALL:
        assert passes(write_program(task, Random(0), NO_BUGS), row_of_task(task, seed=0)), task


@pytest.mark.parametrize("bugs", [Bugs(1, 0, 0, 0), Bugs(0, 1, 0, 0), Bugs(0, 0, 1, 0), Bugs(0, 0, 0, 1)])
def test_nearly_every_bug_fails_them(bugs):
    """What is left over is another program for the same function: distinct of 3-x is distinct of x-3."""
    wrong = [
        (task, program)
        for task in ALL
        if (program := write_program(task, Random(0), bugs)) != write_program(task, Random(0), NO_BUGS)
    ]
    caught = sum(not passes(program, row_of_task(task, seed=0)) for task, program in wrong)
    assert len(wrong) > 100
    # A third of the swapped ones are such.
    assert caught / len(wrong) > 0.6


def test_rows_and_examples_depend_on_the_seed_alone():
    assert row_of_task(ALL[0], seed=1) == row_of_task(ALL[0], seed=1)
    assert draw_tasks(count=9, seed=1) == draw_tasks(count=9, seed=1) != draw_tasks(count=9, seed=2)
    drawn = [list(draw_code_examples(bugs=Bugs(), count=20, seed=3, tasks=ALL[:50])) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert {example.prompt for example in drawn[0]} <= {task.prompt for task in ALL[:50]}


def test_more_tasks_than_there_are_cannot_be_drawn():
    with pytest.raises(ValueError, match="only 1827"):
        draw_tasks(count=2000, seed=0)
