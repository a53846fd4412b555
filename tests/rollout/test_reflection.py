"""Reflection words: whole words in any case, also of scripts without spaces."""

import pytest

from asyncrl.recipe.sections.view import REFLECTION_WORDS, View
from asyncrl.rollout.reflection import ReflectionWords


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("Wait, wait... WAIT!", {"wait": 3}),
        ("await waiting waits check_it recheck", {"check": 1}),
        ("But 1+1=3 is wrong; let me check.", {"but": 1, "wrong": 1, "check": 1}),
        ("check2 2check", {}),
        ("however\nHowever", {"however": 2}),
    ],
)
def test_words_are_counted_whole(text: str, found: dict[str, int]) -> None:
    words = ReflectionWords(REFLECTION_WORDS)
    assert {word: n for word, n in zip(words.words, words.count(text), strict=True) if n} == found


def test_a_longer_phrase_is_no_shorter_word_and_marks_and_other_scripts_are_taken_as_they_are() -> None:
    words = ReflectionWords(["wait", "wait a minute", "等等", "c++?"])
    assert words.count("Wait a minute. Wait! 不对等等再算 is it c++? a") == [1, 1, 1, 1]


def test_the_default_is_the_published_list_and_an_empty_word_is_refused() -> None:
    assert View().reflection_words[0] == "wait" and len(View().reflection_words) == 10
    with pytest.raises(ValueError, match="reflection_words"):
        View(reflection_words=[" "])
