"""Kinds of values that end a response: texts, and tokens by name."""

from typing import Annotated

from pydantic import AfterValidator, Field


def _whole_characters(value: str) -> str:
    if "\ufffd" in value:
        raise ValueError(
            f"a stop string is {value!r}: U+FFFD stands for a character with missing bytes, which cannot "
            f"be searched for. Remove it."
        )
    return value


StopString = Annotated[str, Field(min_length=1), AfterValidator(_whole_characters)]
TokenName = Annotated[str, Field(min_length=1)]
