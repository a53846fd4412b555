"""Answers of one model that an evaluation need not ask for again, and verdicts that it need not ask for.

An answer is that of a model's weights to the tokens of a prompt, sampled in a certain way by servers of
certain settings. A place among the samples is given before the request goes out: which answers the first k
are does not depend on how long each took. Greedy answers have keys of their own. A verdict is that of a
verifier, its options and its source on one response to one gold; a fault is none and is never kept.
"""

import dataclasses
import hashlib
import json
import sys
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from asyncrl.evaluation.result import GradedResponse
from asyncrl.journal.kept_answers import AnswerStore, KeptAnswer, KeptVerdict
from asyncrl.model.token_text import StopStrings
from asyncrl.records import SamplingParams, Score, Task
from asyncrl.system.files import sha256_of
from asyncrl.tasks.verifier_cache import VerifierCache, key_of

DIGEST_BYTES = 16
REGRADED_AT_ONCE = 256
"""Kept answers that are graded at once."""
WEIGHTS = ("config.json", "generation_config.json", "tokenizer.json", "*.safetensors")
"""Files of a model's folder that decide its answers."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A response that is asked for."""

    task: Task
    sample: int
    """Its place among the samples of its task."""
    key: bytes = b""
    """Key of its answers; empty where they are not kept."""
    grader: bytes | None = None
    """Digest of what decides its verdict besides the response; None where verdicts are not kept."""


@dataclass
class KeptAnswers:
    """The kept answers of one model, and where new ones are kept. Counts those that it found."""

    store: AnswerStore
    model: str
    """Digest of the weights."""
    servers: Mapping[str, Any]
    """Settings of the servers that decide over tokens."""
    verifiers: VerifierCache
    verifying: Mapping[str, Any]
    """Limits that decide over verdicts."""
    regrades: bool = False
    """Kept verdicts are asked for again."""
    num_found: int = 0
    """Answers that were not asked for, since `take_num_found`."""
    _sources: dict[str, str] = field(default_factory=dict)
    """Specification of a verifier -> digest of its source."""

    def slots(
        self,
        tasks: Sequence[Task],
        num_samples: int,
        sampling: SamplingParams,
        stop: StopStrings,
        *,
        is_greedy: bool,
        is_completion: bool,
        context_tokens: int,
    ) -> list[Slot]:
        """The samples of each task, task after task."""
        asked = {
            "model": self.model,
            "servers": self.servers,
            "sampling": _sampling(sampling, is_greedy=is_greedy),
            "stop": [list(stop.strings), list(sampling.stop_token_ids)],
        }
        # A prompt that stands twice in a set has samples of its own each time.
        times: Counter[tuple[int, ...]] = Counter()
        found = []
        for task in tasks:
            limit = min(sampling.max_new_tokens, context_tokens - len(task.prompt_tokens))
            prompt = array("q", task.prompt_tokens).tobytes().hex()
            key = _digest({**asked, "limit": limit, "prompt": prompt, "time": times[task.prompt_tokens]})
            times[task.prompt_tokens] += 1
            grader = self._grader(task, is_completion=is_completion)
            found += [Slot(task, sample, key, grader) for sample in range(num_samples)]
        return found

    def take_num_found(self) -> int:
        """How many answers were there, since the last call."""
        found, self.num_found = self.num_found, 0
        return found

    def num_missing(self, slots: Sequence[Slot]) -> int:
        """Slots whose answers must be asked for."""
        return len(slots) - len(self._answers([slot for slot in slots if slot.key]))

    async def responses(
        self,
        slots: Sequence[Slot],
        decode: Callable[[Sequence[int]], str],
        grade: Callable[[list[Slot], list[KeptAnswer]], Awaitable[list[GradedResponse]]],
        on_graded: Callable[[int], None],
    ) -> dict[int, GradedResponse]:
        """Index of a slot -> its response, where its answer is kept. `grade` gives and keeps the verdicts
        that are missing; `on_graded` receives how many were not."""
        answers = self._answers(slots)
        texts = {index: decode(answer.tokens) for index, answer in answers.items()}
        found = {
            index: _response(answers[index], texts[index], score)
            for index, score in self._verdicts(slots, texts).items()
        }
        self.num_found += len(answers)
        on_graded(len(found))
        ungraded = [index for index in answers if index not in found]
        # Some at a time: what is graded is kept, whatever happens to the others.
        for first in range(0, len(ungraded), REGRADED_AT_ONCE):
            some = ungraded[first : first + REGRADED_AT_ONCE]
            graded = await grade([slots[i] for i in some], [answers[i] for i in some])
            found |= dict(zip(some, graded, strict=True))
        return found

    def add(self, answers: Iterable[tuple[Slot, KeptAnswer]]) -> None:
        self.store.add_answers((slot.key, slot.sample, answer) for slot, answer in answers)

    def grade(self, verdicts: Iterable[tuple[Slot, str, Score]]) -> None:
        """Keeps the verdicts (slot, text of its answer, score); faults are left out."""
        self.store.add_verdicts(
            {
                key: KeptVerdict(score.outcome, score.correctness, score.extracted)
                for slot, text, score in verdicts
                if score.correctness is not None and (key := verdict_key(slot, text)) is not None
            }
        )

    def forget(self, slots: Sequence[Slot]) -> None:
        """The answers are asked for again."""
        for key in {slot.key for slot in slots if slot.key}:
            self.store.forget_answers(key)

    def _answers(self, slots: Sequence[Slot]) -> dict[int, KeptAnswer]:
        """Index of a slot -> its answer, where it is kept."""
        num_samples = max((slot.sample for slot in slots), default=-1) + 1
        known = {key: self.store.answers(key, num_samples) for key in {slot.key for slot in slots}}
        return {
            index: known[slot.key][slot.sample]
            for index, slot in enumerate(slots)
            if slot.sample in known[slot.key]
        }

    def _verdicts(self, slots: Sequence[Slot], texts: Mapping[int, str]) -> dict[int, Score]:
        """Index of a slot -> the verdict on the text of its answer, where it is kept."""
        if self.regrades:
            return {}
        keys = {
            index: key
            for index, text in texts.items()
            if (key := verdict_key(slots[index], text)) is not None
        }
        known = self.store.verdicts(list(dict.fromkeys(keys.values())))
        return {index: _score(known[key]) for index, key in keys.items() if key in known}

    def _grader(self, task: Task, *, is_completion: bool) -> bytes | None:
        spec = task.verifier
        name = key_of(spec)
        try:
            if name not in self._sources:
                self._sources[name] = source_digest(self.verifiers.get(spec))
            return _digest(
                {
                    "verifier": [spec.name, spec.options],
                    "source": self._sources[name],
                    "reference": canonical(task.reference),
                    "task": task.row if self.verifiers.takes_task(spec) else None,
                    # Prompt and response are graded as one text.
                    "prompt": task.prompt if is_completion or self.verifiers.takes_task(spec) else None,
                    "limits": self.verifying,
                }
            )
        except TypeError:
            return None


def verdict_key(slot: Slot, text: str) -> bytes | None:
    """The key of the verdict on an answer; None where verdicts are not kept."""
    if slot.grader is None:
        return None
    packed = slot.grader + text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()


def weights_digest(folder: Path) -> str:
    """SHA-256 of all that decides the answers of the model in `folder`: every byte of its weights, its
    configuration and its tokenizer. Reads as fast as the disk. Raises OSError."""
    digest = hashlib.sha256()
    for file in sorted(path for pattern in WEIGHTS for path in folder.glob(pattern)):
        digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return digest.hexdigest()


def source_digest(verifier: object) -> str:
    """Digest of the verifier's code: all of `verifiers` for a built-in one, else the file that defines it.
    What that file imports is not in it."""
    digest = hashlib.sha256()
    for each in (verifier, *getattr(verifier, "members", ())):
        module = type(each).__module__
        is_built_in = module.partition(".")[0] == "verifiers"
        path = getattr(sys.modules.get("verifiers" if is_built_in else module), "__file__", None)
        if path is None:
            raise TypeError(f"{type(each).__name__} has no source file")
        files = sorted(Path(path).parent.rglob("*.py")) if is_built_in else [Path(path)]
        for file in files:
            digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return digest.hexdigest()


def canonical(value: Any) -> Any:
    """`value` as JSON that is the same in every process, sets in order. Raises TypeError for what has no such
    form."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Fraction | bytes):
        return [type(value).__name__, repr(value)]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(canonical, value)]
    if isinstance(value, set | frozenset):
        return ["set", *sorted(json.dumps(canonical(member)) for member in value)]
    if isinstance(value, Mapping):
        return ["map", *sorted(json.dumps([canonical(k), canonical(v)]) for k, v in value.items())]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = [canonical(getattr(value, field.name)) for field in dataclasses.fields(value)]
        return [type(value).__qualname__, *members]
    raise TypeError(f"{type(value).__name__} has no canonical form")


def _sampling(sampling: SamplingParams, *, is_greedy: bool) -> dict[str, Any]:
    settings = sampling.settings()
    if is_greedy:
        # Cuts and temperature do not change the likeliest token.
        return {"greedy": True, "repetition_penalty": settings.get("repetition_penalty", 1.0)}
    return {"temperature": sampling.temperature, **settings}


def _score(kept: KeptVerdict) -> Score:
    return Score(kept.outcome, kept.correctness, kept.correctness, kept.extracted, "", 0.0)


def _response(answer: KeptAnswer, text: str, score: Score) -> GradedResponse:
    """Its version is that of every model without a trainer."""
    return GradedResponse(text, len(answer.tokens), (0,) if answer.tokens else (), score, answer.is_cut)


def _digest(value: Mapping[str, Any]) -> bytes:
    """Raises TypeError for what is no JSON."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
