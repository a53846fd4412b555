"""YAML of recipes: plain values have the kinds of YAML 1.2's core schema, and each key is there once.

YAML 1.1, which PyYAML reads by itself, makes `yes` a truth value, `1:30` 90, `010` 8 and `1e-6` text. Here
the first three are text, which no number or truth value accepts, and the last is a number.
"""

import math
import re
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

_MAX_DEPTH = 100
"""Nested deeper than any recipe is; Python itself gives up near 1,000."""
_TAG = "tag:yaml.org,2002:"
_LINE_ENDS = frozenset("\r\x85\u2028\u2029")
_KINDS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:(?:0|[1-9][0-9_]*)?\.[0-9]+|(?:0|[1-9][0-9_]*)\.?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)"
        r"|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    ("merge", "<<", ["<"]),
)


class _Resolvers:
    """The kinds of plain values, shared by reading and writing: what is written is read back as it was."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


for _kind, _pattern, _firsts in _KINDS:
    for _first in _firsts:
        _Resolvers.yaml_implicit_resolvers.setdefault(_first, []).append(
            (_TAG + _kind, re.compile(f"(?:{_pattern})\\Z"))
        )


class _Loader(_Resolvers, yaml.SafeLoader):
    """Refuses a repeated key, of which YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[object, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value} appears twice, in lines {lines[key.value]} and {line}. Keep one."
                )
            lines[key.value] = line
        return super().construct_mapping(node, deep)


class _Dumper(_Resolvers, yaml.SafeDumper):
    """Quotes text with Unicode's own line ends, which readers of plain YAML text fold into spaces."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = '"' if _LINE_ENDS & set(data) else None
        return self.represent_scalar(f"{_TAG}str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def read_yaml(text: str) -> Any:
    """The plain data in `text`. Raises yaml.YAMLError, also for what is nested too deep to be a recipe."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1
        if depth > _MAX_DEPTH:
            assert event.start_mark is not None
            raise yaml.YAMLError(f"line {event.start_mark.line + 1} is nested more than {_MAX_DEPTH} deep")
    return yaml.load(text, Loader=_Loader)


def write_yaml(value: Any) -> str:
    """Plain data as YAML, keys in their order; `read_yaml` reads it back equal."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def write_in_line(value: Any) -> str:
    """Plain data as YAML in one line."""
    text = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=math.inf
    )
    return text.removesuffix("\n").removesuffix("\n...")


def with_section(text: str, section: str, now: dict[str, Any], replaced: Mapping[str, str]) -> str:
    """`text` with `now` in its mapping `section`; every other line stays, and so do comments.

    `replaced` says which new key stands where an old one stood.
    """
    root: Any = yaml.compose(text, Loader=_Loader)
    (node,) = (value for key, value in root.value if key.value == section)
    if node.flow_style:
        return text[: node.start_mark.index] + write_in_line(now) + text[node.end_mark.index :]
    before, edits = read_yaml(text)[section], []
    missing = [key for key in now if key not in before]
    for key, value in node.value:
        first, last = key.start_mark.index, value.end_mark.index
        last = first + len(text[first:last].rstrip())
        if key.value in now:
            if now[key.value] != before[key.value]:
                edits.append((value.start_mark.index, last, write_in_line(now[key.value])))
            continue
        goal = replaced.get(key.value)
        if goal in missing:
            missing.remove(goal)
            edits.append((first, last, f"{goal}: {write_in_line(now[goal])}"))
            continue
        end = text.find("\n", last) % (len(text) + 1)
        comment = text[last:end].strip()
        begin = text.rfind("\n", 0, first) + 1
        edits.append((first, end, comment) if comment else (begin, end + 1, ""))
    for begin, end, words in reversed(edits):
        text = text[:begin] + words + text[end:]
    return text
