"""Answers to the tasks of reasoning-gym, an optional package (github.com/open-thought/reasoning-gym): its
datasets, their entries as JSON, and the verifier, which asks the scorer of the task's dataset.

Owns every import of the package, which takes seconds: only processes that make tasks or grade do it. Scorers
run no code of an answer. A score from `correct_at` on is CORRECT; what a lesser answer scores is shaping. A
scorer may raise on what the model wrote: that is WRONG if it gives the task's own answer a score, a FAULT if
it raises there, too.

Entries come back from JSON the same, tuples, sets and numbers as keys included: a scorer may ask whether a
value is a tuple, or look a number up as a key. What JSON has no form for becomes an object with one key that
begins with "$"."""

import ast
import builtins
import dataclasses
import functools
import importlib.metadata
import json
import keyword
import os
import re
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, Literal, Protocol

from verifiers.extract import Fallback, Think, extract_answer, final_part, marked_answer
from verifiers.plugins import Bounds, nearest
from verifiers.verdict import Verdict, correct, no_answer, wrong
from verifiers.verifier import VerifierUnavailable

Entry = dict[str, Any]
"""A task: "question", "answer" (None where reasoning-gym knows none) and "metadata"."""


def written_entry(entry: Mapping[str, Any]) -> Any:
    """The entry as JSON has it. Raises ValueError for a value of another type than plain data."""
    return _written(dict(entry))


def read_entry(text: str) -> Entry:
    """The entry of a JSON text, a new one at each call. Raises ValueError for what is none."""
    entry = _read(json.loads(text))
    if not isinstance(entry, dict) or not entry.keys() >= {"question", "answer", "metadata"}:
        raise ValueError(
            f"The entry is {text[:80]!r}, expected an object with question, answer and metadata."
        )
    return entry


def _written(value: Any) -> Any:
    match value:
        case None | bool():
            return value
        # Numbers and texts of numpy are of classes derived from these.
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case list():
            return [_written(member) for member in value]
        case tuple():
            return {"$tuple": [_written(member) for member in value]}
        case set() | frozenset():
            members = [_written(member) for member in value]
            kind = "$set" if isinstance(value, set) else "$frozenset"
            # Sets have no order of their own, files of rows should.
            return {kind: sorted(members, key=json.dumps)}
        case dict():
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {str(key): _written(inner) for key, inner in value.items()}
            return {"$items": [[_written(key), _written(inner)] for key, inner in value.items()]}
        case _:
            raise ValueError(f"a {type(value).__name__} is not plain data: {str(value)[:80]!r}")


def _read(value: Any) -> Any:
    match value:
        case list():
            return [_read(member) for member in value]
        case {"$tuple": members}:
            return tuple(_read(member) for member in members)
        case {"$set": members}:
            return {_read(member) for member in members}
        case {"$frozenset": members}:
            return frozenset(_read(member) for member in members)
        case {"$items": items}:
            return {_read(key): _read(inner) for key, inner in items}
        case dict():
            return {key: _read(inner) for key, inner in value.items()}
        case _:
            return value


# `__import__('os').system(...)` as an answer would run, and `setattr` could change what later answers score.
# Plain formulas need numbers, operators, letters and a few functions; an answer with anything else is wrong
# whatever its value.
_TOKEN = re.compile(r"\s+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Za-z][A-Za-z0-9_]*|\*\*|[-+*/^(),!]")
_FUNCTIONS = frozenset(
    "pi E I sqrt cbrt exp log ln Abs abs sign erf gamma factorial "
    "sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth sech csch "
    "asinh acosh atanh acoth asech acsch".split()
)


def is_plain_formula(text: str) -> bool:
    """Whether nothing but numbers, operators, variables and functions of mathematics is in it."""
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or not _is_harmless(token.group()):
            return False
        at = token.end()
    return True


def _is_harmless(token: str) -> bool:
    if not token[0].isalpha() or token in _FUNCTIONS:
        return True
    # Where parse_expr runs, sympy is there, too.
    import sympy

    # An unknown name becomes a variable.
    return not (keyword.iskeyword(token) or hasattr(builtins, token) or hasattr(sympy, token))


DISTRIBUTION = "reasoning-gym"
MISSING = (
    "reasoning-gym, which makes and grades the tasks of a gym, is not installed. Run `make setup GYM=1`, or "
    "`pip install --no-deps -r gym.lock` in the environment of asyncrl."
)
NO_DATASETS = {
    "composite": "it mixes other datasets: list them in data.train, each as {gym: ..., weight: ...}"
}
"""Names that reasoning-gym registers and we refuse, with the reason."""
EVALUATED = frozenset(
    ["countdown", "puzzle24", "polynomial_multiplication", "simple_integration", "intermediate_integration"]
)
"""Datasets whose scorers evaluate the answer as a formula, by sympy."""
LITERALS = frozenset(["binary_matrix", "n_queens", "number_sorting", "spiral_matrix", "string_insertion"])
"""Datasets whose scorers evaluate the answer as Python, because it may be a list."""


class Dataset(Protocol):
    """The part of reasoning-gym's `ProceduralDataset` that we use."""

    def __getitem__(self, index: int) -> Entry: ...

    def score_answer(self, answer: str | None, entry: Entry) -> float: ...


def installed_version() -> str:
    """Version of reasoning-gym. Raises ValueError with the fix when it is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(MISSING) from None


@functools.lru_cache(maxsize=256)
def load_dataset(name: str, config: str, *, seed: int = 0, size: int = 1) -> Dataset:
    """The dataset `name` with a configuration in JSON. Raises ValueError for one that there is not."""
    return build_dataset(name, json.loads(config), seed=seed, size=size)


def build_dataset(name: str, config: Mapping[str, Any], *, seed: int, size: int) -> Dataset:
    """Raises ValueError with a sentence that names the mistake."""
    classes = _registered()
    if name in NO_DATASETS:
        raise ValueError(f"{name!r} of reasoning-gym has no tasks of its own: {NO_DATASETS[name]}.")
    if name not in classes:
        known = sorted(classes.keys() - NO_DATASETS.keys())
        hint = nearest(name, known) or f" Its datasets: {', '.join(known)}."
        raise ValueError(f"reasoning-gym {installed_version()} has no dataset {name!r}.{hint}")
    kind, config_kind = classes[name]
    known = [field.name for field in dataclasses.fields(config_kind) if field.name not in ("seed", "size")]
    for key in config:
        if key in ("seed", "size"):
            raise ValueError(f"The config of {name!r} has {key!r}: set `{key}` of the source instead.")
        if key not in known:
            raise ValueError(
                f"The config of {name!r} has no key {key!r}.{nearest(key, known)} "
                f"Its keys: {', '.join(known) or 'none'}."
            )
    try:
        # Its constructor validates the configuration.
        dataset: Dataset = kind(config_kind(**config, seed=seed, size=size))
    except Exception as error:  # whatever a configuration makes the package raise
        words = str(error) or "it is not valid"
        raise ValueError(f"The config of {name!r} is {dict(config)!r}: {words.rstrip('.')}.") from error
    if name in LITERALS:
        # The scorer's own module: its `eval` reads lists, and nothing else, from now on.
        vars(sys.modules[kind.__module__])["eval"] = ast.literal_eval
    return dataset


def import_package() -> None:
    """Imports reasoning-gym, which takes seconds. Raises ValueError with the fix when it is not installed."""
    _registered()


def _registered() -> dict[str, tuple[type[Any], type[Any]]]:
    installed_version()
    # Threads of a library would be lost in a forked worker, and reserve memory that its limit counts.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from reasoning_gym.factory import DATASETS

    classes: dict[str, tuple[type[Any], type[Any]]] = DATASETS
    return classes


def may_be_scored(name: str, answer: str) -> bool:
    """Whether the scorer of `name` may see the answer."""
    return name not in EVALUATED or is_plain_formula(answer)


CONDITIONS: dict[str, Callable[[str, Entry], bool]] = {
    "coin_flip": lambda answer, entry: (
        abs(Fraction(answer.replace(",", "")) - Fraction(entry["answer"])) <= Fraction(1, 10_000)
    ),
    "complex_arithmetic": lambda answer, entry: not re.search("nan|inf", answer, re.IGNORECASE),
    "game_of_life_halting": lambda answer, entry: (
        answer.strip().casefold() == str(entry["answer"]).casefold()
    ),
    "puzzle24": lambda answer, entry: (
        sorted(map(int, re.findall(r"\d+", answer))) == sorted(entry["metadata"]["numbers"])
    ),
}
"""Conditions on an answer that scores 1.0, where a scorer gives 1.0 to one that solves nothing: 0 for a
probability of 0.375, nan for a complex number, any text for True or False, 6*4*1*1 whatever the numbers."""


_OPEN, _CLOSE = "<answer>", "</answer>"


@dataclass(frozen=True)
class GymReference:
    """A task; texts, so that the pool may digest and cache it."""

    dataset: str
    config: str
    """JSON, keys sorted."""
    entry: str
    """JSON of `written_entry`."""


class GymVerifier:
    """The gold is {"gym": a dataset, "config": its configuration, "entry": the task}, as a source with `gym`
    makes it."""

    takes_any_gold = True

    def __init__(
        self,
        *,
        correct_at: Annotated[float, Bounds(0.001, 1)] = 1.0,
        partial_credit: Annotated[float, Bounds(0, 1)] = 1.0,
        source: Literal["marked", "final_part"] = "marked",
        fallbacks: tuple[Fallback, ...] = (),
        think: Think = "optional",
    ) -> None:
        self._correct_at = correct_at
        self._partial_credit = partial_credit
        self._source = source
        self._fallbacks = fallbacks
        self._think = think

    def parse_reference(self, raw: object) -> GymReference:
        match raw:
            case {"gym": str(dataset), "config": dict(config), "entry": dict(entry)}:
                text = json.dumps(entry, ensure_ascii=False)
                read_entry(text)
                return GymReference(dataset, json.dumps(config, sort_keys=True), text)
        raise ValueError(
            f"The gold is {str(raw)[:80]!r}, expected {{gym, config, entry}}: a row of a source with `gym`."
        )

    def check_machine(self) -> None:
        try:
            installed_version()
        except ValueError as error:
            raise VerifierUnavailable(str(error)) from None

    def preparation(self, reference: GymReference) -> Hashable | None:
        return reference.dataset, reference.config

    def prepare(self, what: tuple[str, str]) -> None:
        load_dataset(*what)

    def cache_key(self, response: str, reference: GymReference) -> Hashable | None:
        return self._answer(response)

    def verify(self, response: str, reference: GymReference) -> Verdict:
        answer, method, reason = self._answer(response)
        if answer is None:
            return no_answer(reason)
        shown = answer[:500]
        if not may_be_scored(reference.dataset, answer):
            return wrong(extracted=shown, detail="the answer is not a plain formula", method=method)
        try:
            score = _score(answer, reference)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # a scorer reads what the model wrote, whatever that is
            _score_own(reference)
            detail = f"the scorer raises {type(error).__name__} on this answer: {error}"
            return wrong(extracted=shown, detail=detail[:500], method=method)
        detail = f"{reference.dataset} scores it {score:g}"
        if score >= self._correct_at:
            return correct(extracted=shown, detail=detail, method=method)
        verdict = wrong(extracted=shown, detail=detail, method=method)
        return replace(verdict, shaping=self._partial_credit * score)

    def _answer(self, response: str) -> tuple[str | None, str, str]:
        """(answer, method, reason): what stands in the last <answer>, else in a box, else by the options."""
        text, reason = final_part(response, think=self._think)
        if text is None:
            return None, "", reason
        # Not by the fallback answer_tag: it takes asterisks and underscores off, which are part of a board.
        start, end = text.rfind(_OPEN), text.rfind(_CLOSE)
        if 0 <= start < end:
            inside = text[start + len(_OPEN) : end].strip()
            boxed = extract_answer(inside).answer if "\\boxed" in inside else None
            return (boxed or inside, "answer_tag", "") if inside else (None, "", "the <answer> is empty")
        found = extract_answer(text, think="ignore")
        if found.answer is not None:
            return found.answer, found.method, ""
        marked = marked_answer(text, self._fallbacks)
        if marked is not None:
            return *marked, ""
        whole = text.strip()
        if self._source == "final_part" and whole:
            return whole, "final_part", ""
        return None, "", "no <answer> that closes, and no \\boxed{}"


def own_response(reference: GymReference) -> str | None:
    """A response with the task's own answer; None where reasoning-gym knows none."""
    answer = read_entry(reference.entry)["answer"]
    return None if answer is None else f"{_OPEN}\n{answer}\n{_CLOSE}"


def _score(answer: str, reference: GymReference) -> float:
    """In [0, 1]. Raises what the scorer raises, and ValueError for another score."""
    # Scorers may change the entry.
    entry = read_entry(reference.entry)
    score = float(load_dataset(reference.dataset, reference.config).score_answer(answer, entry))
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"the score is {score!r}, expected a number in [0, 1]")
    condition = CONDITIONS.get(reference.dataset)
    is_met = score < 1.0 or condition is None or condition(answer, read_entry(reference.entry))
    return score if is_met else 0.0


def _score_own(reference: GymReference) -> Any:
    """Raises what the scorer raises on the task's own answer, or on none where it has none."""
    entry = read_entry(reference.entry)
    dataset = load_dataset(reference.dataset, reference.config)
    return float(dataset.score_answer(entry["answer"], entry))
