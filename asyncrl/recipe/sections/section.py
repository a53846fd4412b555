"""Parts that every section of a recipe is made of: the base class, the kinds of numbers, and markers: facts
about a key beyond its type, which stand beside it, `Annotated[int, CHANGEABLE]`.

A marker on a subsection holds for every key of it. `marked` reads the keys of a model that have one; what
follows from a fact is where the fact is asked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _whole_characters(value: str) -> str:
    if "\ufffd" in value:
        raise ValueError(
            f"a stop string is {value!r}: U+FFFD stands for a character with missing bytes, which cannot "
            f"be searched for. Remove it."
        )
    return value


StopString = Annotated[str, Field(min_length=1), AfterValidator(_whole_characters)]
TokenName = Annotated[str, Field(min_length=1)]


Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Nucleus = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
"""top-p: 1 keeps all tokens."""
MinP = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
LearningRate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
"""Adam moves each weight by about this much per step."""
Seed = Annotated[int, Field(ge=0, lt=2**31)]
"""Servers, ranks and tasks of a gym add their number to it, and numpy takes 32 bits."""


class Section(BaseModel):
    """Frozen; refuses unknown keys, and values of another kind such as "8" for 8 or 1 for true.

    The string under a field documents its key in `asyncrl keys`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class Marker:
    meaning: str


CHANGEABLE = Marker("may differ between two starts on one run folder: it does not change what is learned")
PER_STEP = Marker("may differ between two starts on one run folder: later steps learn by the new value")
LAYOUT = Marker("decides in which order numbers are summed, in a trainer whose results are otherwise equal")
TASK_ROWS = Marker("decides which tasks the rows of data.train make; their sources decide too")
GYM_ROWS = Marker("decides which rows a gym makes; their order is that of the values in the digest")

PATH = Marker("a path")
PATH_OR_HUB_ID = Marker("a path, or a hub id, which stays as it is")
OBJECT = Marker('may hold "./file.py:name", at any depth')
BENCHMARK = Marker('the name of a benchmark, a file of rows, or "name:file"')
_OF_TEXTS = (PATH, PATH_OR_HUB_ID, OBJECT, BENCHMARK)


@cache
def marked(model: type[BaseModel], marker: Marker) -> tuple[str, ...]:
    """Dotted names of the keys of `model` and its subsections that have `marker`, in their order. The keys of
    mappings in lists, such as those of a data source, are those of the mapping's own class."""
    found = []
    for name, field in model.model_fields.items():
        if marker in field.metadata:
            found.append(name)
        else:
            # The sections that a key may be; not one of which it lists several.
            kind = field.annotation
            kinds = () if get_origin(kind) is list else filter(_is_model, (kind, *get_args(kind)))
            inner = [key for each in kinds for key in marked(each, marker)]
            found += [f"{name}.{key}" for key in dict.fromkeys(inner)]
    return tuple(found)


def is_marked(model: type[BaseModel], key: str, marker: Marker) -> bool:
    """Whether the dotted `key`, or a key that it is part of, has `marker`."""
    return any(key == name or key.startswith(f"{name}.") for name in marked(model, marker))


def value_at(section: BaseModel, key: str) -> Any:
    """The value of a dotted key; None for a number of a term that is not chosen."""
    value: Any = section
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


def plain_at(section: BaseModel, key: str) -> Any:
    """The value of a dotted key as plain data."""
    found: Any = section.model_dump()
    for name in key.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def changed_texts(model: type[BaseModel], raw: dict[str, Any], change: Callable[[Marker, str], str]) -> None:
    """Changes the texts in `raw` whose keys name paths, objects or benchmarks: plain data of `model`, which
    may lack keys and hold wrong ones. `change` takes the marker and the text."""
    for name, field in model.model_fields.items():
        if raw.get(name) is not None:
            markers = [marker for marker in _OF_TEXTS if marker in field.metadata]
            raw[name] = _changed(raw[name], markers, mapping_of(field.annotation), change)


def _changed(
    value: Any, markers: list[Marker], mapping: type[BaseModel] | None, change: Callable[[Marker, str], str]
) -> Any:
    match value:
        case str():
            for marker in markers:
                value = change(marker, value)
            return value
        case list():
            return [_changed(inner, markers, mapping, change) for inner in value]
        case dict() if mapping is not None:
            changed = dict(value)
            changed_texts(mapping, changed, change)
            return changed
        case dict() if markers:
            return {key: _changed(inner, markers, None, change) for key, inner in value.items()}
        case _:
            return value


def mapping_of(annotation: Any) -> type[BaseModel] | None:
    """The class of the mappings that a key may hold, at any depth of unions and lists."""
    if _is_model(annotation):
        return annotation  # type: ignore[no-any-return]
    return next((found for inner in get_args(annotation) if (found := mapping_of(inner)) is not None), None)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
