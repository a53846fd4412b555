"""Terms and their numbers: how a recipe writes, merges and refuses them.

A term is a mapping of its name and its numbers, or its name alone; each kind of term is a class with the
numbers that it reads. Groups of keys have a short form too: the value of their first key alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import core_schema

from asyncrl.recipe.sections.section import OBJECT, Section, mapping_of
from asyncrl.system.plugins import load_object


class Group(Section):
    """Keys that mean something together. The value of the first one alone stands for a mapping with it."""

    @model_validator(mode="before")
    @classmethod
    def _spread(cls, raw: Any) -> Any:
        return spread(raw, cls)


class Term(Group):
    """A term and its numbers. Subclasses say which names it may have."""

    name: str

    @model_serializer(mode="wrap")
    def _in_short(self, dump: SerializerFunctionWrapHandler) -> Any:
        dumped = dump(self)
        return dumped["name"] if dumped.keys() == {"name"} else dumped


class OwnFunction(Term):
    """A term of the recipe's own. It stands first in a union: its keys are those that may name objects."""

    name: Annotated[str, OBJECT]
    """Function: "package.module:name" or "./file.py:name"."""
    options: Annotated[dict[str, Any], OBJECT] = {}
    """Numbers and whatever else your own term reads."""

    def load(self) -> Callable[[Any, Any], Any]:
        """The function, which gets its options, as attributes, in place of the section. Raises InputError."""
        function: Any = load_object(self.name)
        options = SimpleNamespace(**self.options)
        return lambda inputs, _: function(inputs, options)


T = TypeVar("T", bound=Term)
TERMS = "terms"
"""Marks a union of terms in a JSON schema."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """Beside a union of kinds of terms: the name decides which of them a value is."""

    default: str | None = None
    """Name of a mapping that states none."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        kinds: Sequence[type[Term]] = get_args(source)

        def tag(value: Any) -> str | None:
            if isinstance(value, Term):
                return f"<{type(value).__name__}>"
            name = value.get("name") if isinstance(value, dict) else None
            kind = kind_named(name, kinds) if isinstance(name, str) else None
            return None if kind is None else f"<{kind.__name__}>"

        def with_name(value: Any) -> Any:
            value = spread(value, Term)
            return {"name": self.default, **value} if isinstance(value, dict) else value

        known = ", ".join(f"'{name}'" for kind in kinds for name in names_of(kind))
        own = ' or "package.module:name"' if OwnFunction in kinds else ""
        union = core_schema.tagged_union_schema(
            {f"<{kind.__name__}>": handler.generate_schema(kind) for kind in kinds},
            tag,
            custom_error_type="term",
            custom_error_message=f"Input should be {known}{own}",
        )
        return core_schema.no_info_before_validator_function(with_name, union)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), TERMS: True}


def names_of(kind: type[Term]) -> tuple[str, ...]:
    """Names of the built-in terms of a kind; none of OwnFunction."""
    return () if kind is OwnFunction else get_args(kind.model_fields["name"].annotation)


def numbers_of(kind: type[Term]) -> tuple[str, ...]:
    return tuple(key for key in kind.model_fields if key != "name")


def kinds_in(annotation: Any) -> tuple[type[Term], ...]:
    """The kinds of terms that a key takes, alone or in a list; none of a key that takes no terms."""
    if isinstance(annotation, type) and issubclass(annotation, Term):
        return (annotation,)
    return tuple(kind for inner in get_args(annotation) for kind in kinds_in(inner))


def kind_named(name: str, kinds: Sequence[type[Term]]) -> type[Term] | None:
    """The kind of the term of that name, OwnFunction for a function's; None where there is none."""
    built_in = next((kind for kind in kinds if name in names_of(kind)), None)
    return OwnFunction if built_in is None and ":" in name and OwnFunction in kinds else built_in


def chosen(terms: Term | Sequence[Term], kind: type[T]) -> T:
    """The chosen term of `kind`, with its numbers: the value of a key, or one of its list."""
    found = (terms,) if isinstance(terms, Term) else terms
    return next(term for term in found if isinstance(term, kind))


def spread(value: Any, kind: type[BaseModel] | None) -> Any:
    """Plain data of `kind` as a mapping where it is the short form; else as it is."""
    is_short = kind is not None and issubclass(kind, Group) and not isinstance(value, (dict, list, BaseModel))
    return {next(iter(kind.model_fields)): value} if is_short and kind and value is not None else value


def inner_kind(kind: type[BaseModel] | None, key: str) -> type[BaseModel] | None:
    """The class of the mappings that `key` of `kind` may hold; the first one where it takes several terms."""
    field = None if kind is None else kind.model_fields.get(key)
    return None if field is None else mapping_of(field.annotation)


def merged(below: Any, above: Any, kind: type[BaseModel] | None) -> Any:
    """`above` over `below`, plain data of `kind`, mapping by mapping. A term of another name replaces the
    term and its numbers; of a list of terms a mapping from names has the numbers."""
    below = spread(below, kind)
    is_term = kind is not None and issubclass(kind, Term)
    if is_term and isinstance(below, list) and isinstance(above, dict):
        return [merged(spread(item, kind), above.get(name_of(item), {}), kind) for item in below]
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    if is_term and above.get("name", name_of(below)) != name_of(below):
        return above
    found = dict(below)
    for key, value in above.items():
        found[key] = merged(found[key], value, inner_kind(kind, key)) if key in found else value
    return found


def name_of(value: Any) -> Any:
    """Name of a term, also of one in plain data."""
    if isinstance(value, Term):
        return value.name
    return value.get("name") if isinstance(value, dict) else value


def agrees(stated: Any, value: Any) -> bool:
    """Whether `stated`, perhaps in a short form, says nothing else than `value`; both are plain data."""
    if isinstance(stated, dict) != isinstance(value, dict):
        # The short form is that of the first key, which a dump writes first.
        stated, value = (
            each if isinstance(each, dict) else {next(iter(other), ""): each}
            for each, other in ((stated, value), (value, stated))
        )
    if isinstance(stated, dict):
        return all(key in value and agrees(inner, value[key]) for key, inner in stated.items())
    if isinstance(stated, list) and isinstance(value, list):
        return len(stated) == len(value) and all(map(agrees, stated, value))
    return bool(stated == value)


def owners(key: str, root: type[BaseModel]) -> Iterator[str]:
    """Names of the terms that have the number of a dotted key, such as algorithm.surrogate.tau_positive."""
    *parents, number = key.split(".")
    kind: type[BaseModel] | None = root
    for parent in parents[:-1]:
        kind = inner_kind(kind, parent)
    field = None if kind is None else kind.model_fields.get(parents[-1])
    for each in kinds_in(field.annotation) if field is not None else ():
        if number in numbers_of(each):
            yield from names_of(each)
