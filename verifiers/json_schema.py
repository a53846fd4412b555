"""A JSON answer that satisfies a schema and, when the row has one, equals a value."""

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema  # type: ignore[import-untyped]

from verifiers import strict_json
from verifiers.extract import Think, final_part
from verifiers.verdict import Verdict, correct, no_answer, wrong

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_MAX_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True)
class JsonReference:
    schema: Any
    has_value: bool
    value: Any


class JsonSchemaVerifier:
    """The gold is a JSON schema, or {"schema": ..., "value": ...} where the answer must also equal the value.

    The answer is the whole text after the thinking, or its last fenced block. NaN, Infinity and repeated keys
    are not JSON."""

    def __init__(
        self,
        *,
        fenced: Literal["optional", "required", "never"] = "optional",
        think: Think = "optional",
        strict_numbers: bool = False,
    ) -> None:
        self._fenced = fenced
        self._think = think
        self._strict_numbers = strict_numbers

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
        return JsonReference(schema, has_value, value)

    def verify(self, response: str, reference: JsonReference) -> Verdict:
        text, reason = final_part(response, think=self._think)
        if text is None:
            return no_answer(reason)
        answer = self._answer(text)
        if not answer:
            return no_answer("no JSON in the response")
        if len(answer) > _MAX_CHARACTERS:
            return wrong(detail=f"the JSON has more than {_MAX_CHARACTERS} characters")
        shown = answer[:500]
        try:
            value = strict_json.loads(answer)
        except ValueError as error:
            return wrong(extracted=shown, detail=f"not JSON: {error}")
        validator = jsonschema.validators.validator_for(reference.schema)(reference.schema)
        problem = next(validator.iter_errors(value), None)
        if problem is not None:
            where = "/".join(map(str, problem.absolute_path)) or "the top"
            return wrong(extracted=shown, detail=f"at {where}: {problem.message}"[:500])
        if reference.has_value and not self._same(reference.value, value):
            return wrong(extracted=shown, detail="valid, but not the wanted value")
        return correct(extracted=shown, detail="valid")

    def _answer(self, text: str) -> str:
        blocks = _FENCED.findall(text) if self._fenced != "never" else []
        if blocks:
            return str(blocks[-1]).strip()
        return "" if self._fenced == "required" else text.strip()

    def _same(self, gold: Any, value: Any) -> bool:
        """Equality of JSON: true is not 1; 1 and 1.0 are equal unless `strict_numbers`."""
        if isinstance(gold, dict) and isinstance(value, dict):
            return gold.keys() == value.keys() and all(self._same(gold[key], value[key]) for key in gold)
        if isinstance(gold, list) and isinstance(value, list):
            return len(gold) == len(value) and all(map(self._same, gold, value))
        if isinstance(gold, bool) or isinstance(value, bool):
            return gold is value
        if self._strict_numbers and type(gold) is not type(value):
            return False
        return bool(gold == value) and not (isinstance(value, float) and math.isnan(value))


def _has_remote_reference(schema: Any) -> bool:
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            return True
        return any(_has_remote_reference(value) for value in schema.values())
    return isinstance(schema, list) and any(_has_remote_reference(item) for item in schema)
