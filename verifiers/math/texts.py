"""Lists of words as answers: "red, blue and green" in any order and with any joiner but "or"."""

import re

from verifiers.math.nodes import Listing, Node, Text

_MAX_WORDS = 3
_AND = re.compile(r"\s*(?:[,;&]|\band\b)\s*")


def list_of_words(node: Node) -> list[str] | None:
    """The items, sorted; None when the node is no list of short texts, or offers them as candidates."""
    match node:
        case Text(words):
            items = [item for item in _AND.split(words) if item]
        case Listing(texts, joined_by) if joined_by != "or":
            items = [item.words for item in texts if isinstance(item, Text)]
            if len(items) < len(texts):
                return None
        case _:
            return None
    short = all(len(item.split()) <= _MAX_WORDS and "or" not in item.split() for item in items)
    return sorted(items) if len(items) > 1 and short else None
