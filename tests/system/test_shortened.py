"""Long texts, shortened for people."""

from asyncrl.system.words import shortened


def test_a_long_text_keeps_its_ends_and_says_how_much_is_missing() -> None:
    text = "a" * 3000 + "bc"
    found = shortened(text, 3000)
    assert found.startswith("aaa") and found.endswith("bc")
    assert "[... 2 of 3,002 characters are not shown ...]" in found
    assert shortened(text[:3000], 3000) == text[:3000]
