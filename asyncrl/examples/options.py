"""`prepare.options` as the section of the function that takes them."""

from typing import Any, TypeVar

from pydantic import ValidationError

from asyncrl.errors import InputError
from asyncrl.recipe.sections.section import Section

OptionsOf = TypeVar("OptionsOf", bound=Section)


def parse_options(kind: type[OptionsOf], options: dict[str, Any]) -> OptionsOf:
    """`prepare.options` as the target's own section. Raises InputError that names the key."""
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        details = error.errors()[0]
        key = ".".join(map(str, details["loc"]))
        known = ", ".join(kind.model_fields)
        raise InputError(f"prepare.options.{key}: {details['msg']}. Options: {known}.") from None
