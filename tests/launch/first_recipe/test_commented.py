"""Plain data as YAML with a comment beside each key."""

from asyncrl.launch.first_recipe.commented import Entry, plain, text, written
from asyncrl.recipe.yaml_text import read_yaml

SECTIONS = {
    "": [Entry("name", "run"), Entry("run_folder", "runs/{name}", "relative")],
    "data": [Entry("train", {"path": "a" * 90, "columns": {"prompt": "question", "answer": "y"}}, "rows")],
    "prompt": [],
    "rollout": [
        Entry("temperature", 1.0, "as sampled"),
        Entry("stop", ["\n\nQ:", "no"]),
        Entry("learning_rate", 1e-6, "a comment that is too long to stand beside its key " * 3),
    ],
    "trainer": [Entry("parallel.tensor", 2, "shared"), Entry("parallel.pipeline", 1), Entry("off", None)],
}


def test_the_text_is_read_back_as_the_data() -> None:
    assert read_yaml(text("A title\n\nof two paragraphs", SECTIONS)) == plain(SECTIONS)


def test_comments_stand_beside_their_key_or_above_it() -> None:
    lines = text("A title", SECTIONS).splitlines()
    assert lines[0] == "# A title"
    assert "  temperature: 1.0             # as sampled" in lines
    assert "    tensor: 2                  # shared" in lines
    before = lines.index("  learning_rate: 1e-06") - 1
    assert lines[before].startswith("  # ") and max(map(len, lines)) <= 118
    # Nothing of a section without keys.
    assert "prompt:" not in lines


def test_text_that_yaml_would_read_as_something_else_is_quoted() -> None:
    for value in ("yes", "null", "1e6", "a: b", "{x}", "a\nb", "#x", ""):
        assert written(value).startswith('"') and read_yaml(f"key: {written(value)}") == {"key": value}
