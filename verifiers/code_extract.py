"""The program in a response: after the reasoning, the last fenced block of the right language, or the bare
text."""

import ast
import re

MAX_PROGRAM_CHARACTERS = 200_000
# Parsing takes about a second per megabyte, and this runs on an event loop.
_MAX_PARSED_CHARACTERS = 20_000
# More blocks than this are no answer that a person would read; the rest is not looked at.
_MAX_BLOCKS = 5000
# For all blocks of a response together.
_MAX_PARSED_TOGETHER = 60_000
# Nothing is given back: a line of 20,000 spaces or letters after a fence would be tried at each of them.
_FENCE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([\w+#.-]*+)[^\n`]*+$", re.MULTILINE)
_TAGS = {
    "python": {"python", "py", "python3", "python2"},
    "cpp": {"cpp", "c++", "cc", "cxx"},
    "c": {"c"},
    "bash": {"bash", "sh", "shell"},
}


def after_reasoning(response: str) -> str | None:
    """The text after the last </think>; None when reasoning was begun and never ended."""
    before, mark, after = response.rpartition("</think>")
    if not mark:
        return None if "<think>" in response else response
    return None if "<think>" in after else after


def _blocks(text: str) -> list[tuple[str, str, bool]]:
    """(tag, content, whether closed) of each fenced block, in order."""
    blocks: list[tuple[str, str, bool]] = []
    position = 0
    while len(blocks) < _MAX_BLOCKS and (opening := _FENCE.search(text, position)):
        fence = opening.group(1)
        closing = re.compile(rf"^[ \t]*{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$", re.MULTILINE)
        end = closing.search(text, opening.end())
        content = text[opening.end() + 1 : end.start() if end else len(text)]
        blocks.append((opening.group(2).lower(), content, end is not None))
        if end is None:
            break
        position = end.end()
    return blocks


def _parses(source: str) -> bool:
    if len(source) > _MAX_PARSED_CHARACTERS:
        return True
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _that_parse(blocks: list[tuple[str, str, bool]]) -> list[tuple[str, str, bool]]:
    """Those of the last blocks that parse, in order."""
    found = []
    room = _MAX_PARSED_TOGETHER
    for block in reversed(blocks):
        # A little for each block: many small ones take time as well.
        room -= len(block[1]) + 100
        if room < 0:
            break
        if _parses(block[1]):
            found.append(block)
    return found[::-1]


def extract_program(response: str, lang: str) -> str | None:
    """The program's source, or None: the response holds none.

    Blocks of the language come before untagged ones, closed ones before one cut short, later before earlier.
    An untagged block of Python that does not parse (sample output, say) is passed over where another one
    does."""
    text = after_reasoning(response)
    if text is None or not text.strip():
        return None
    blocks = [block for block in _blocks(text) if block[1].strip()]
    if not blocks:
        return None if _FENCE.search(text) else text
    tags = _TAGS.get(lang, {lang})
    tagged = [block for block in blocks if block[0] in tags]
    untagged = [block for block in blocks if not block[0]]
    if not tagged and len(untagged) > 1 and lang == "python":
        untagged = _that_parse(untagged) or untagged
    candidates = tagged or untagged or blocks
    closed = [block for block in candidates if block[2]]
    return (closed or candidates)[-1][1]
