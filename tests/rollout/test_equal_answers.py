"""Classes of equal answers: the same of several spellings, however they are ordered."""

import pytest

from asyncrl.rollout.equal_answers import join_equal


@pytest.mark.parametrize("order", [1, -1])
async def test_the_answer_that_was_given_most_is_the_gold_of_the_others(order: int) -> None:
    asked = []

    async def same(first: str, second: str) -> bool:
        asked.append((first, second))
        return {first, second} == {"b", "c"}

    texts = {"a": [8], "b": [0, 1, 2, 3, 4], "c": [5, 6, 7]}
    found = await join_equal(dict([*texts.items()][::order]), same)
    assert found == [[0, 1, 2, 3, 4, 5, 6, 7], [8]]
    assert asked == [("b", "c"), ("b", "a")]
