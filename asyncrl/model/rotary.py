"""How queries and keys are rotated by their position, as config.json says it. No torch.

The numbers of each kind are those of transformers (`modeling_rope_utils`), which the trainer asks for the
angles. What SGLang would compute otherwise is refused here. `dynamic` is: SGLang scales at every length,
transformers beyond the original context alone.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.system.words import as_written

LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Constants of Llama 3's own scaling, which megatron-core has built in."""
NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", *LLAMA3_ROPE),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("factor", "original_max_position_embeddings"),
}
"""Kind (rope_type) -> the numbers that it needs."""
USUAL_KINDS = ("default", "linear", "llama3", "yarn")
"""Those that families have, if they say no others."""
OPTIONAL: dict[str, tuple[str, ...]] = {"yarn": ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")}
"""Kind -> numbers that have a default."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary positions (Su et al. 2021)."""

    theta: float
    """The base: angles per position are powers of it."""
    kind: str = "default"
    """One of NEEDED, as `rope_type` names it."""
    numbers: tuple[tuple[str, float], ...] = ()
    """The numbers of the kind, by their names in config.json."""
    share: float = 1.0
    """Share of each head that is rotated, from its beginning."""
    is_interleaved: bool = False
    """Whether neighbors turn together; else the two halves of what is rotated."""
    factors: tuple[float, ...] = ()
    """`short_factor` of longrope: a divisor of each angle. Beyond the original positions others divide: by
    the sequence in transformers, by the longest one of a step in SGLang."""
    is_truncated: bool = True
    """Whether yarn rounds the ends of its ramp to whole dimensions."""

    def is_plain(self) -> bool:
        return self.kind == "default" and self.share == 1.0 and not self.is_interleaved

    def max_positions(self) -> float:
        """Tokens up to which a sequence is rotated by what is here."""
        return dict(self.numbers)["original_max_position_embeddings"] if self.factors else math.inf

    def llama3_factor(self) -> float | None:
        """`factor` of Llama 3's scaling with its own constants; None where it is another rotation."""
        numbers = dict(self.numbers)
        factor = numbers.pop("factor", None)
        is_own = self.kind == "llama3" and numbers == LLAMA3_ROPE
        return factor if is_own and self.share == 1.0 and not self.is_interleaved else None


def read_rotation(
    file: Path,
    rope: Mapping[str, Any],
    *,
    theta: float,
    head_size: int,
    share: float = 1.0,
    is_interleaved: bool = False,
    kinds: Collection[str] = USUAL_KINDS,
) -> Rotation:
    """The rotation that `rope` (rope_parameters or rope_scaling) describes; `theta` is its default.

    Raises InputError for a kind that is not one of `kinds`, and for numbers that are missing or unusable.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in kinds:
        raise InputError(
            f"{file}: rotary positions of kind {as_written(kind)} cannot be trained; the kinds that can are "
            f"{', '.join(kinds)}."
        )
    for name in NEEDED[kind]:
        _check_number(file, kind, name, rope.get(name))
    optional = [name for name in OPTIONAL.get(kind, ()) if rope.get(name) is not None]
    for name in optional:
        _check_number(file, kind, name, rope[name])
    numbers = tuple((name, float(rope[name])) for name in (*NEEDED[kind], *optional))
    if kind == "yarn":
        _check_yarn(file, rope)
    rotated = int(head_size * share)
    if share != 1.0 and (not 0 < rotated <= head_size or rotated % 2):
        raise InputError(
            f"{file}: partial_rotary_factor {share} rotates {rotated} of {head_size} numbers of each head; "
            f"expected an even number of them, at least 2."
        )
    base = rope.get("rope_theta")
    return Rotation(
        float(theta if base is None else base),
        kind,
        numbers,
        factors=_short_factors(file, rope, rotated // 2) if kind == "longrope" else (),
        is_truncated=kind != "yarn" or bool(rope.get("truncate", True)),
        share=share,
        is_interleaved=is_interleaved,
    )


def rotary_fields(rotation: Rotation, sliding: Rotation | None = None) -> dict[str, Any]:
    """The fields of `ModelShape`; `sliding` is the rotation of sliding layers."""
    factor = rotation.llama3_factor()
    is_built_in = rotation.is_plain() or factor is not None
    return {
        "rope_theta": rotation.theta,
        "rope_scaling_factor": factor,
        "rotation": None if is_built_in and sliding in (None, rotation) else rotation,
        "sliding_rotation": None if sliding == rotation else sliding,
    }


def check_served(file: Path, usual: Rotation, sliding: Rotation, served: Rotation) -> None:
    """Raises InputError unless servers, which rotate full layers by `served` and sliding ones by its base
    alone, rotate both as they are trained."""
    if sliding != Rotation(usual.theta):
        raise InputError(
            f"{file}: rotary positions are {_written(usual)} in full layers and {_written(sliding)} in "
            f"sliding ones, but servers rotate the latter by the base of the former, unscaled. Only models "
            f"with such rope_parameters can be trained."
        )
    if usual != served:
        theta, scaling = usual.theta, {"rope_type": usual.kind} | dict(usual.numbers)
        raise InputError(
            f"{file}: rotary positions are {_written(usual)}, but servers would take {_written(served)}: "
            f"they read rope_theta and rope_scaling alone. Beside rope_parameters, set rope_theta to {theta} "
            f"and rope_scaling to {as_written(scaling)}."
        )


def _written(rotation: Rotation) -> str:
    numbers = "".join(f", {name} {value:g}" for name, value in rotation.numbers)
    return f"{rotation.kind} (base {rotation.theta:g}{numbers})"


def _check_number(file: Path, kind: str, name: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise InputError(
            f"{file}: {name} of rotary positions of kind {kind} is {as_written(value)}, expected a number "
            f"above 0."
        )


def _check_yarn(file: Path, rope: Mapping[str, Any]) -> None:
    """SGLang does not read `attention_factor`, and `mscale` only beside `mscale_all_dim`."""
    usual = 1.0 if rope["factor"] <= 1 else 0.1 * math.log(rope["factor"]) + 1
    _check_attention_factor(file, rope, usual)
    if (rope.get("mscale") is None) != (rope.get("mscale_all_dim") is None):
        raise InputError(
            f"{file}: yarn has mscale {as_written(rope.get('mscale'))} and mscale_all_dim "
            f"{as_written(rope.get('mscale_all_dim'))}; expected both or neither."
        )


def _short_factors(file: Path, rope: Mapping[str, Any], num_angles: int) -> tuple[float, ...]:
    factor, original = rope["factor"], rope["original_max_position_embeddings"]
    usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    _check_attention_factor(file, rope, usual)
    for name in ("short_factor", "long_factor"):
        found = rope.get(name)
        if not isinstance(found, list) or len(found) != num_angles:
            raise InputError(
                f"{file}: {name} of longrope is {as_written(found)[:80]}, expected a list of {num_angles} "
                f"numbers, one per angle."
            )
        for each in found:
            _check_number(file, "longrope", name, each)
    return tuple(map(float, rope["short_factor"]))


def _check_attention_factor(file: Path, rope: Mapping[str, Any], usual: float) -> None:
    named = rope.get("attention_factor")
    if named is not None and not math.isclose(named, usual, rel_tol=1e-6):
        kind = rope.get("rope_type", rope.get("type"))
        raise InputError(
            f"{file}: attention_factor of {kind} is {as_written(named)}; servers take {usual:.6g}, which "
            f"follows from the factor {rope['factor']}, so only that can be trained."
        )
