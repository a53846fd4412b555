"""The verifiers that a run's rows name, loaded once each, with a row to try each on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.records import VerifierSpec
from asyncrl.system.plugins import SlowCalls
from verifiers.golds import parse_gold
from verifiers.judgement import is_group_wise, min_responses, why_not_alone
from verifiers.own import Gold, is_built_in
from verifiers.registry import load_verifier
from verifiers.task import Task, takes_task
from verifiers.verdict import Verdict
from verifiers.verifier import CheckedVerifier, Verifier, VerifierUnavailable

NO_VERIFIER = VerifierSpec("(none)")
"""No name of a verifier that a row or a recipe could give."""


class Unjudged:
    """Takes any answer for a gold, and none."""

    takes_any_gold = True

    def parse_reference(self, raw: object) -> None:
        return None

    def verify(self, response: str, reference: object) -> Verdict:
        raise AssertionError("a response that nothing judges was given to a verifier")


@dataclass(frozen=True, slots=True)
class GoldExample:
    """A row to try its verifier on."""

    where: str
    verifier: VerifierSpec
    gold: Any
    reference: Any
    """The gold as the verifier parsed it."""
    task: Task = Task()
    """For a verifier that takes it."""


class VerifierCache:
    """Verifiers by specification: rows that name the same one share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: dict[str, Verifier] = {}
        self._slow_calls = SlowCalls()
        self.examples: dict[str, GoldExample] = {}
        """The first row of each specification."""

    def remember(self, example: GoldExample, key: str) -> None:
        """Keeps the row as an example of its verifier, that of `key`, when it is the first; where it has "
        "one."""
        if example.verifier == NO_VERIFIER:
            return
        self.examples.setdefault(key, example)

    def get(self, spec: VerifierSpec) -> Verifier:
        """Raises InputError when there is no such verifier."""
        key = key_of(spec)
        if key not in self._loaded:
            try:
                with self._slow_calls.call(f'loading the verifier "{spec.name}"'):
                    self._loaded[key] = (
                        Unjudged()
                        if spec == NO_VERIFIER
                        else load_verifier(spec.name, spec.options, folder=self.folder)
                    )
            except (ValueError, TypeError, ImportError) as error:
                # What the class itself raised names neither.
                said = f'verifier "{spec.name}" with options {dict(spec.options)}: '
                raise InputError(f"{'' if spec.name in str(error) else said}{error}") from error
        return self._loaded[key]

    def takes_task(self, spec: VerifierSpec) -> bool:
        """Whether the verifier needs the task beside a response. Raises InputError as `get`."""
        return takes_task(self.get(spec))

    def is_group_wise(self, spec: VerifierSpec) -> bool:
        """Whether the verifier judges all responses of a group at once. Raises InputError as `get`."""
        return is_group_wise(self.get(spec))

    def check_alone(self, spec: VerifierSpec, what: str) -> None:
        """Raises InputError where the verifier cannot judge one response alone, as `what` needs."""
        if (why := why_not_alone(spec.name, self.get(spec))) is not None:
            raise InputError(f"{why}. {what} is judged response by response: its rows need another verifier.")

    def check_groups(self, num_responses: int, *, has_pilot: bool = False) -> None:
        """Raises InputError where a verifier of the rows read so far, the training rows, cannot judge
        `num_responses` to one task, or groups that begin with a pilot."""
        for spec in (example.verifier for example in self.examples.values()):
            verifier = self.get(spec)
            if has_pilot and is_group_wise(verifier):
                raise InputError(
                    f'the verifier "{spec.name}" judges the responses of a group together, but '
                    f"rollout.pilot_samples needs verdicts on the first ones alone. Remove "
                    f"rollout.pilot_samples, or name another verifier."
                )
            least = min_responses(verifier)
            if num_responses < least:
                raise InputError(
                    f'the verifier "{spec.name}" compares at least {least} responses to one task, but a '
                    f"group has {num_responses}. Raise rollout.samples_per_group, or name another verifier."
                )

    def check_branches(self) -> None:
        """Raises InputError for a verifier of whole groups: it compares trajectories, not branches."""
        specs = [example.verifier for example in self.examples.values()]
        named = next((spec.name for spec in specs if self.is_group_wise(spec)), None)
        if named is not None:
            raise InputError(
                f'the verifier "{named}" judges the trajectories of a group together, but agent.verdict is '
                f"branch. Set agent.verdict to trajectory, or name another verifier."
            )

    def parse(self, verifier: Verifier, gold: Any, *, name: str, where: str) -> Any:
        """The reference of a row's gold, before a run starts. One of the user's verifiers that takes long is
        told by its `name` and the row, `where`. Raises ValueError on a bad gold."""
        if is_built_in(verifier):
            return parse_gold(verifier, gold)
        with self._slow_calls.call(f'parse_reference of the verifier "{name}" on {where}'):
            return parse_gold(verifier, gold)

    def check_machine(self) -> None:
        """Raises InputError when a verifier that the rows name could give no verdict on this machine."""
        for key, verifier in self._loaded.items():
            if isinstance(verifier, CheckedVerifier):
                name = json.loads(key)[0]
                try:
                    with self._slow_calls.call(f'check_machine of the verifier "{name}"'):
                        verifier.check_machine()
                except VerifierUnavailable as error:
                    raise InputError(f'verifier "{name}" cannot work here. {error}') from error

    def close(self) -> None:
        """Ends what a check of the machine or a trial has started; the next use starts it again."""
        for verifier in self._loaded.values():
            close = getattr(verifier, "close", None)
            if callable(close):
                close()


def reference_of(verifier: Verifier, gold: Any) -> Any:
    """The reference of a gold that parses, in a run. A user's verifier leaves it to the worker: its code
    might hold the controller up."""
    return parse_gold(verifier, gold) if is_built_in(verifier) else Gold(gold)


def key_of(spec: VerifierSpec) -> str:
    """The same for specifications that name the same verifier."""
    return json.dumps([spec.name, spec.options], sort_keys=True, default=str)
