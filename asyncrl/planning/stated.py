"""Costs, lengths and failures that the user states, in a small YAML file: `asyncrl plan --costs FILE`.

    costs: {decode_seconds: 0.01, decode_seconds_per_request: 0.0001, train_seconds: 2.0,
            train_seconds_per_token: 1.0e-6, publish_seconds: 1.0, install_seconds: 0.5}
    lengths: {mean_tokens: 4000, spread: 0.8, prompt_tokens: 300}
    failures: {server_seconds_between: 86400, trainer_seconds_between: 250000}

Each key stands for the field of that name; a key that is left out keeps what was measured or estimated.
"""

from pathlib import Path

import yaml
from pydantic import Field, ValidationError

from asyncrl.errors import InputError
from asyncrl.recipe.complaint import complaint
from asyncrl.recipe.sections.section import NonNegativeFloat, PositiveFloat, Section
from asyncrl.recipe.yaml_text import read_yaml
from asyncrl.system.kinds import kind_of
from asyncrl.system.text_file import read_text


class StatedCosts(Section):
    """As `asyncrl.planning.settings.Costs`."""

    decode_seconds: NonNegativeFloat | None = None
    decode_seconds_per_request: NonNegativeFloat | None = None
    train_seconds: NonNegativeFloat | None = None
    train_seconds_per_token: NonNegativeFloat | None = None
    publish_seconds: NonNegativeFloat | None = None
    install_seconds: NonNegativeFloat | None = None
    between_seconds: NonNegativeFloat | None = None
    admit_seconds: NonNegativeFloat | None = None
    verify_seconds: NonNegativeFloat | None = None
    prefill_pass_seconds: NonNegativeFloat | None = None
    prefill_group_seconds: NonNegativeFloat | None = None
    prefill_seconds_per_token: NonNegativeFloat | None = None
    decode_speed_during_training: PositiveFloat | None = None


class StatedLengths(Section):
    """As `asyncrl.planning.lengths.LogNormalLengths`, cut at rollout.max_new_tokens."""

    mean_tokens: PositiveFloat | None = None
    spread: NonNegativeFloat | None = None
    prompt_tokens: NonNegativeFloat | None = None


class StatedFailures(Section):
    """As `asyncrl.planning.settings.Failures`."""

    server_seconds_between: PositiveFloat | None = None
    server_restart_seconds: NonNegativeFloat = 60.0
    trainer_seconds_between: PositiveFloat | None = None
    trainer_restart_seconds: NonNegativeFloat = 120.0


class Stated(Section):
    costs: StatedCosts = Field(default_factory=StatedCosts)
    lengths: StatedLengths = Field(default_factory=StatedLengths)
    failures: StatedFailures = Field(default_factory=StatedFailures)


def read_stated(path: Path) -> Stated:
    """Raises InputError that names the file and the key."""
    try:
        raw = read_yaml(read_text(path))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"--costs {path} cannot be read: {error}.") from error
    except InputError as error:
        raise InputError(f"--costs {error}") from None
    if not isinstance(raw, dict):
        found = "is empty" if raw is None else f"holds {kind_of(raw)}"
        raise InputError(f"--costs {path} {found}, expected the keys {', '.join(Stated.model_fields)}.")
    try:
        return Stated.model_validate(raw)
    except ValidationError as error:
        said = "\n".join(f"--costs {path}: {complaint(details, Stated)}" for details in error.errors())
        raise InputError(said) from None
