"""A JSON answer that satisfies a schema and, when the row has one, equals a value."""

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import jsonschema  # type: ignore[import-untyped]

from verifiers import strict_json
from verifiers.extract import Think, final_part
from verifiers.verdict import Verdict, correct, no_answer, wrong

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_MAX_CHARACTERS = 200_000
# In a schema: what holds schemas by names of the writer's, and what holds data.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_DATA = ("const", "enum", "default", "examples")
_END = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class JsonReference:
    schema: Any
    has_value: bool
    value: Any


@dataclass(frozen=True, kw_only=True)
class JsonSchemaVerifier:
    """The gold is a JSON schema, or {"schema": ..., "value": ...} where the answer must also equal the value.

    The answer is the whole text after the thinking, or its last fenced block. NaN, Infinity and repeated keys
    are not JSON. `multipleOf` is exact for the numbers as written, `$` in a pattern is the end of the
    text. `format` is not checked."""

    fenced: Literal["optional", "required", "never"] = "optional"
    think: Think = "optional"
    strict_numbers: bool = False

    def parse_reference(self, raw: object) -> JsonReference:
        if isinstance(raw, str):
            try:
                raw = strict_json.loads(raw)
            except ValueError as error:
                raise ValueError(f"The gold is not JSON: {error}. Expected a JSON schema.") from error
        if not isinstance(raw, (dict, bool)):
            raise ValueError(f"The gold is {raw!r}, expected a JSON schema (an object).")
        has_value = isinstance(raw, dict) and set(raw) == {"schema", "value"}
        schema = raw["schema"] if has_value and isinstance(raw, dict) else raw
        if _has_remote_reference(schema):
            raise ValueError(
                "The schema has a $ref to another document, expected only references inside it (#/...)."
            )
        try:
            jsonschema.validators.validator_for(schema).check_schema(schema)
        except jsonschema.SchemaError as error:
            raise ValueError(f"The gold is not a valid JSON schema: {error.message}.") from error
        value = raw["value"] if has_value and isinstance(raw, dict) else None
        return JsonReference(_with_ends(schema), has_value, value)

    def verify(self, response: str, reference: JsonReference) -> Verdict:
        text, reason = final_part(response, think=self.think)
        if text is None:
            return no_answer(reason)
        blocks = _FENCED.findall(text) if self.fenced != "never" else []
        answer = str(blocks[-1] if blocks else "" if self.fenced == "required" else text).strip()
        if not answer:
            return no_answer("no JSON in the response")
        if len(answer) > _MAX_CHARACTERS:
            return wrong(detail=f"the JSON has more than {_MAX_CHARACTERS} characters")
        shown = answer[:500]
        try:
            value = strict_json.loads(answer)
        except ValueError as error:
            return wrong(extracted=shown, detail=f"not JSON: {error}")
        validator = _exact(jsonschema.validators.validator_for(reference.schema))(reference.schema)
        problem = next(validator.iter_errors(value), None)
        if problem is not None:
            where = "/".join(map(str, problem.absolute_path)) or "the top"
            return wrong(extracted=shown, detail=f"at {where}: {problem.message}"[:500])
        if reference.has_value and not self._same(reference.value, value):
            return wrong(extracted=shown, detail="valid, but not the wanted value")
        return correct(extracted=shown, detail="valid")

    def _same(self, gold: Any, value: Any) -> bool:
        """Equality of JSON: true is not 1; 1 and 1.0 are equal unless `strict_numbers`."""
        if isinstance(gold, dict) and isinstance(value, dict):
            return gold.keys() == value.keys() and all(self._same(gold[key], value[key]) for key in gold)
        if isinstance(gold, list) and isinstance(value, list):
            return len(gold) == len(value) and all(map(self._same, gold, value))
        if isinstance(gold, bool) or isinstance(value, bool):
            return gold is value
        if self.strict_numbers and type(gold) is not type(value):
            return False
        return bool(gold == value) and not (isinstance(value, float) and math.isnan(value))


@functools.cache
def _exact(kind: Any) -> Any:
    """The class of validators, with exact arithmetic."""
    names = {"multipleOf", "divisibleBy"} & set(kind.VALIDATORS)
    return jsonschema.validators.extend(kind, dict.fromkeys(names, _multiple_of))


def _multiple_of(
    validator: Any, divisor: Any, value: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    # Through repr: 0.07 as written, not the binary fraction next to it.
    if validator.is_type(value, "number") and Fraction(repr(value)) % Fraction(repr(divisor)):
        yield jsonschema.ValidationError(f"{str(value)[:80]} is not a multiple of {divisor}")


def _with_ends(schema: Any) -> Any:
    r"""The schema with `$` in its patterns as \Z: Python's `$` also stands before a last line break."""
    if isinstance(schema, list):
        return [_with_ends(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, dict):
            spelled = _with_end if key == "patternProperties" else str
            found[key] = {spelled(name): _with_ends(item) for name, item in value.items()}
        elif key == "pattern" and isinstance(value, str):
            found[key] = _with_end(value)
        else:
            found[key] = value if key in _DATA else _with_ends(value)
    return found


def _with_end(pattern: str) -> str:
    return _END.sub(lambda found: r"\Z" if found.group() == "$" else found.group(), pattern)


def _has_remote_reference(schema: Any) -> bool:
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            return True
        return any(_has_remote_reference(value) for value in schema.values())
    return isinstance(schema, list) and any(_has_remote_reference(item) for item in schema)
