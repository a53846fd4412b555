"""The verifiers that a run's rows name, loaded once each, with a row to try each on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.records import VerifierSpec
from verifiers.registry import load_verifier
from verifiers.verifier import CheckedVerifier, Verifier, VerifierUnavailable


@dataclass(frozen=True, slots=True)
class GoldExample:
    """A row to try its verifier on."""

    where: str
    verifier: VerifierSpec
    gold: Any
    reference: Any
    """The gold as the verifier parsed it."""


class VerifierCache:
    """Verifiers by specification: rows that name the same one share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: dict[str, Verifier] = {}
        self.examples: dict[str, GoldExample] = {}
        """The first row of each specification."""

    def remember(self, example: GoldExample, key: str) -> None:
        """Keeps the row as an example of its verifier, that of `key`, when it is the first."""
        self.examples.setdefault(key, example)

    def get(self, spec: VerifierSpec) -> Verifier:
        """Raises InputError when there is no such verifier."""
        key = key_of(spec)
        if key not in self._loaded:
            try:
                self._loaded[key] = load_verifier(spec.name, spec.options, folder=self.folder)
            except (ValueError, TypeError, ImportError) as error:
                raise InputError(
                    f'verifier "{spec.name}" with options {dict(spec.options)}: {error}'
                ) from error
        return self._loaded[key]

    def check_machine(self) -> None:
        """Raises InputError when a verifier that the rows name could give no verdict on this machine."""
        for key, verifier in self._loaded.items():
            if isinstance(verifier, CheckedVerifier):
                try:
                    verifier.check_machine()
                except VerifierUnavailable as error:
                    raise InputError(f'verifier "{json.loads(key)[0]}" cannot work here. {error}') from error

    def close(self) -> None:
        """Ends what a check of the machine or a trial has started; the next use starts it again."""
        for verifier in self._loaded.values():
            close = getattr(verifier, "close", None)
            if callable(close):
                close()


def key_of(spec: VerifierSpec) -> str:
    """The same for specifications that name the same verifier."""
    return json.dumps([spec.name, spec.options], sort_keys=True, default=str)
