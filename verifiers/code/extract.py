"""The program in a response: after the reasoning, the last fenced block of the right language that solves the
task, or the bare text."""

import ast
import builtins
import re
from collections.abc import Collection
from dataclasses import dataclass

from verifiers.code.names import free_names
from verifiers.extract import final_part

MAX_PROGRAM_CHARACTERS = 200_000
# Parsing takes about a second per megabyte, and this runs on an event loop: bounds of one parse, and of all
# parses of one response.
_MAX_PARSED_CHARACTERS = 20_000
_MAX_PARSED_IN_ALL = 60_000
_MAX_BLOCKS = 64
_MAX_READ_CHARACTERS = 1_000_000
_MAX_CLOSERS = 4
_TAGS = {
    "python": {"python", "py", "python3", "python2"},
    "cpp": {"cpp", "c++", "cc", "cxx"},
    "c": {"c"},
    "bash": {"bash", "sh", "shell"},
}
_ALL_TAGS = "|".join(
    sorted((re.escape(tag) for tags in _TAGS.values() for tag in tags), key=len, reverse=True)
)
# After the marks of lists and quotations.
_OPENING = re.compile(
    r"(?P<indent>[ \t]*+(?:(?:[-*+>]|\d{1,3}[.)])[ \t]++){0,4})(?P<fence>`{3,}+|~{3,}+)(?P<info>.*)"
)
# Glued to the end of a sentence, which takes a tag to tell it from inline code.
_LATE_OPENING = re.compile(rf"(?<!`)(?P<fence>`{{3,}}+)(?P<info>{_ALL_TAGS})[ \t]*$")
# What models put behind a closing fence: marks of the end of a turn, emphasis, a full stop.
_CLOSER_TAIL = re.compile(r"(?<![`~])(`{3,}+|~{3,}+)(?:<\|\w+\|>|</\w+>|[*_.,;:!)])+$")
_QUOTE = re.compile(r"[ \t]*+>[ \t]?")
_INFO = re.compile(r"[ \t]*(?P<tag>[\w+#.-]*)(?P<rest>.*)")
_GLUED_INFO = re.compile(r"[ \t]*(?P<tag>python3|python|py)(?P<rest>(?:def|class|import|from|async) .*)")
_PYTHON_LINE = re.compile(r"(?:async +)?def \w|class \w+ *[(:]|import \w|from [\w.]+ +import |print\(|@\w")
_DEFINES = re.compile(
    r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)|^(\w+)[ \t]*(?::[^=\n]*)?=(?!=)"
    r"|^(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]+([^\n#]+)",
    re.MULTILINE,
)


@dataclass
class _CodeBlock:
    tag: str
    source: str
    is_closed: bool


class _Parser:
    """ast.parse within the bounds of one response."""

    def __init__(self) -> None:
        self._left = _MAX_PARSED_IN_ALL

    def __call__(self, source: str) -> ast.Module | None:
        """None for what does not parse."""
        self._left -= len(source)
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def affords(self, source: str) -> bool:
        return len(source) <= min(_MAX_PARSED_CHARACTERS, self._left)


def _unindented(lines: list[str], width: int) -> str:
    """Without the fence's own indentation, as Markdown has it."""

    def strip(line: str) -> str:
        taken = columns = 0
        while columns < width and line[taken : taken + 1] in (" ", "\t"):
            columns += 1 if line[taken] == " " else 4
            taken += 1
        return line[taken:]

    return "".join(f"{strip(line)}\n" for line in lines)


def _opening(line: str) -> re.Match[str] | None:
    if "```" not in line and "~~~" not in line:
        return None
    return _OPENING.match(line) or _LATE_OPENING.search(line)


class _Reader:
    """Fenced blocks, line by line."""

    def __init__(self, text: str, lang: str, parse: _Parser) -> None:
        self._lines = text.split("\n")
        self._lang = lang
        self._tags = _TAGS.get(lang, {lang})
        self._parse = parse

    def blocks(self) -> list[_CodeBlock]:
        """In order; a bounded number of them."""
        found: list[_CodeBlock] = []
        at = 0
        while at < len(self._lines) and len(found) < _MAX_BLOCKS:
            opening = _opening(self._lines[at])
            at += 1
            if opening is None:
                continue
            fence, info = opening["fence"], opening["info"]
            if fence[0] == "`" and "`" in info:
                found += self._one_line(info, fence)
                continue
            header = _GLUED_INFO.match(info) if self._lang == "python" else None
            header = header or _INFO.match(info)
            assert header is not None
            first = [header["rest"].strip()] if self._is_code(header["tag"], header["rest"].strip()) else []
            indent = opening.groupdict().get("indent", "")
            if ">" in indent:
                self._unquote(at, indent.count(">"))
                indent = indent.rpartition(">")[2][1:]
            width = len(indent.expandtabs(4))
            end, source = self._content(at, fence, first, width)
            found.append(_CodeBlock(header["tag"].lower(), source, end < len(self._lines)))
            at = end + 1
        return found

    def _unquote(self, start: int, depth: int) -> None:
        """Takes the marks of a quotation from the lines of a block, up to the quotation's end."""
        for at in range(start, len(self._lines)):
            line = self._lines[at]
            for _ in range(depth):
                mark = _QUOTE.match(line)
                if mark is None and line.strip():
                    return
                line = line[mark.end() :] if mark else ""
            self._lines[at] = line

    def _is_code(self, tag: str, rest: str) -> bool:
        """Whether the rest of a fence's line belongs to the program: "```python import math"."""
        if tag.lower() not in self._tags or self._lang != "python":
            return False
        return _PYTHON_LINE.match(rest) is not None

    def _one_line(self, info: str, fence: str) -> list[_CodeBlock]:
        """A block within one line: "```python print(1)```"."""
        header = _INFO.match(info.rstrip())
        assert header is not None
        rest = header["rest"].strip()
        if header["tag"].lower() not in self._tags or not rest.endswith(fence):
            return []
        return [_CodeBlock(header["tag"].lower(), rest.removesuffix(fence) + "\n", True)]

    def _content(self, start: int, fence: str, first: list[str], width: int) -> tuple[int, str]:
        """(line that closes the block, its content); the number of lines when nothing closes it.

        A fence of its own line closes it, and one glued to the last line of the program. Where a string may
        hold a fence, or a glued one may be part of a line, the first that leaves a program that parses."""
        proper: tuple[int, str] | None = None
        num_tried = 0
        for at in range(start, len(self._lines)):
            line = _CLOSER_TAIL.sub(r"\1", self._lines[at].rstrip())
            if not line.endswith(fence):
                continue
            before = line.rstrip(fence[0])
            is_proper = not before.strip()
            source = _unindented([*first, *self._lines[start:at], *([] if is_proper else [before])], width)
            may_be_string = '"""' in source or "'''" in source
            is_sure = self._lang != "python" or (is_proper and not num_tried and not may_be_string)
            if is_sure or (self._parse.affords(source) and self._parse(source) is not None):
                return at, source
            if is_proper and proper is None:
                proper = at, source
            num_tried += 1
            if num_tried >= _MAX_CLOSERS:
                break
        return proper or (len(self._lines), _unindented([*first, *self._lines[start:]], width))


def _free_names(tree: ast.Module) -> set[str]:
    """Names that the block uses and does not define."""
    return {name for name in free_names(tree)[0] if not hasattr(builtins, name)}


def _defined(source: str) -> set[str]:
    """Names that the block defines at its top level; functions and classes, assignments and imports."""
    names: set[str] = set()
    for function, variable, imports in _DEFINES.findall(source):
        if imports:
            names |= {
                part.split()[-1].split(".")[0] for part in imports.strip("() ").split(",") if part.split()
            }
        names.add(function or variable)
    return names - {""}


def _only_uses(tree: ast.Module, others: set[str]) -> bool:
    """Whether a block shows how to call what other blocks define, and defines no function of its own."""
    has_own = any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in tree.body
    )
    return not has_own and bool(_free_names(tree) & others)


def _acts(tree: ast.Module) -> bool:
    """Whether the block does something when it is run, apart from defining."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    passive = (*definitions, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    return any(
        not isinstance(node, passive)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in tree.body
    )


def _choose(sources: list[str], names: Collection[str], parse: _Parser) -> str:
    """The last block that solves the task, with what it needs of the blocks before it."""
    chosen = len(sources) - 1
    defined = [_defined(source) for source in sources]
    wanted = [at for at, found in enumerate(defined) if found & set(names)]
    trees = {}
    for at in range(len(sources) - 1, -1, -1):
        if parse.affords(sources[at]):
            trees[at] = parse(sources[at])
    if names and wanted:
        chosen = wanted[-1]
    else:
        while chosen > 0:
            tree, before = trees.get(chosen), set().union(*defined[:chosen])
            if tree is None or not _only_uses(tree, before):
                break
            rest = [trees.get(at) for at in range(chosen)]
            if not names and not any(other is not None and _acts(other) for other in rest):
                # The call of main() that the definitions lack.
                break
            chosen -= 1
    return _joined(sources, chosen, names, defined, trees)


def _joined(
    sources: list[str],
    chosen: int,
    names: Collection[str],
    defined: list[set[str]],
    trees: dict[int, ast.Module | None],
) -> str:
    """The chosen block with those that define what it, or the tests, lack: earlier ones, then later ones."""
    taken, tree = [chosen], trees.get(chosen)
    missing = (_free_names(tree) | set(names)) - defined[chosen] if tree is not None else set()
    found = set(defined[chosen])
    for at in [*range(chosen - 1, -1, -1), *range(chosen + 1, len(sources))]:
        other = trees.get(at)
        if other is not None and missing & defined[at]:
            taken.append(at)
            found |= defined[at]
            missing = (missing | _free_names(other)) - found
    return sources[chosen] if len(taken) == 1 else "\n".join(sources[at] for at in sorted(taken))


def extract_program(response: str, lang: str, names: Collection[str] = ()) -> str | None:
    """The program's source, or None: the response holds none. `names`: what the tests will ask it for.

    Blocks of the language come before untagged ones, closed ones before one cut short. Of several Python
    blocks the last counts that defines one of `names`, or without these the last that does not just use what
    others define; with it come earlier blocks that define what it lacks. An untagged block of Python that
    does not parse (sample output, say) is passed over where another one does."""
    text, _ = final_part(response)
    if text is None or not text.strip():
        return None
    text = text.replace("\r\n", "\n")
    parse = _Parser()
    end = text[-_MAX_READ_CHARACTERS:]
    blocks = [block for block in _Reader(end, lang, parse).blocks() if block.source.strip()]
    if not blocks:
        return None if any(map(_opening, end.split("\n"))) else text
    tags = _TAGS.get(lang, {lang})
    tagged = [block for block in blocks if block.tag in tags]
    untagged = [block for block in blocks if not block.tag]
    if not tagged and len(untagged) > 1 and lang == "python":
        untagged = [
            block for block in untagged if not parse.affords(block.source) or parse(block.source)
        ] or untagged
    candidates = tagged or untagged or blocks
    closed = [block.source for block in candidates if block.is_closed]
    sources = closed or [block.source for block in candidates]
    return _choose(sources, names, parse) if lang == "python" and len(sources) > 1 else sources[-1]
