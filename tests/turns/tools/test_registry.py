"""Tools by name."""

from pathlib import Path

import pytest

from asyncrl.turns.environment import Recovery
from asyncrl.turns.tools.tool import load_tool, load_tools

OWN = '''
class Counter:
    """Counts.

    Args:
        word: What to count.
    """

    recovery = "replayable"

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def __call__(self, word: str) -> str:
        self.count += 1
        return f"{word} {self.count}"


def shout(text: str) -> str:
    """Shouts.

    Args:
        text: What.
    """
    return text.upper()
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(OWN)
    return tmp_path


def test_functions_and_classes_of_a_file_are_tools(folder: Path) -> None:
    shout, counter = load_tools(["./tools.py:shout", {"./tools.py:Counter": {"start": 5}}], folder)
    assert (shout.name, shout.function("a"), shout.recovery) == ("shout", "A", Recovery.STATELESS)
    assert (counter.name, counter.function("a"), counter.recovery) == ("Counter", "a 6", Recovery.REPLAYABLE)
    assert counter.schema["function"]["parameters"]["required"] == ["word"]


@pytest.mark.parametrize(
    ("name", "annotation", "said"),
    [("shout", "text: str", "'shout'"), ("Counter", "start: int", r"\./tools.py:C")],
)
def test_an_annotation_that_cannot_be_resolved_is_named(
    name: str, annotation: str, said: str, folder: Path
) -> None:
    argument = annotation.partition(":")[0]
    (folder / "tools.py").write_text(OWN.replace(annotation, f"{argument}: 'Foo'"))
    with pytest.raises(
        ValueError, match=rf"(?i)annotation of tool .*{said}.* cannot be resolved \(NameError:"
    ):
        load_tool(f"./tools.py:{name}", {}, folder)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (["calculater"], "no tool 'calculater'.*calculator"),
        (["./tools.py:shot"], "has no class .shot."),
        ([{"./tools.py:shout": {"loud": True}}], "takes no options: loud"),
        ([{"./tools.py:Counter": {"begin": 1}}], "has no option 'begin'"),
        ([{"./tools.py:Counter": {"start": "x"}}], "start"),
        (["calculator", "calculator"], "two tools 'calculator'"),
    ],
)
def test_a_mistake_is_named(folder: Path, named: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_tools(named, folder)


def test_tags_are_options_of_any_tool() -> None:
    tool = load_tool("calculator", {"tag": "calc", "result_tag": "out"}, None)
    assert (tool.tag, tool.result_tag) == ("calc", "out")
