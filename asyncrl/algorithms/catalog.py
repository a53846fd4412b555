"""The terms there are, read from their docstrings: formula, source, what each is for, how it fails; and how
each came out where it was measured.

A term's docstring begins with its formula, then names Source, Use and Fails; a paragraph may run over lines.
"""

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.algorithms.advantages import ADVANTAGES
from asyncrl.algorithms.batch_advantages import batch_std, mask_cut_off
from asyncrl.algorithms.divergences import DIVERGENCES, WEIGHTED_DIVERGENCES, behavior_divergence
from asyncrl.algorithms.entropy_controls import ENTROPY_CONTROLS, low_probability, top_entropy
from asyncrl.algorithms.inputs import PROXIMALS
from asyncrl.algorithms.losses import positive_nll
from asyncrl.algorithms.rejections import REJECTIONS, TRUST_REGIONS
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.algorithms.turns import turns
from asyncrl.algorithms.values import clipped_value_loss, length_adaptive_lambda, v_trace
from asyncrl.algorithms.weights import REDUCTIONS, WEIGHTS
from verifiers.format import soft_overlong

SECTIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "algorithm.advantage": dict(ADVANTAGES),
    "algorithm.credit": {"turns": turns},
    "algorithm.proximal": dict(PROXIMALS),
    "algorithm.divides_by_batch_std": {"batch_std": batch_std},
    "algorithm.importance_weight": dict(WEIGHTS),
    "algorithm.rejection": dict(REJECTIONS),
    "algorithm.trust_region": dict(TRUST_REGIONS),
    "algorithm.surrogate": dict(SURROGATES),
    "algorithm.entropy_control": dict(ENTROPY_CONTROLS),
    "algorithm.probability_damping": {"low_probability": low_probability},
    "algorithm.top_entropy_share": {"top_entropy": top_entropy},
    "algorithm.reduction": dict(REDUCTIONS),
    "algorithm.kl.estimator": {**DIVERGENCES, **WEIGHTED_DIVERGENCES},
    "algorithm.behavior_kl_coefficient": {"behavior_divergence": behavior_divergence},
    "algorithm.nll_coefficient": {"positive_nll": positive_nll},
    "algorithm.masks_cut_off": {"mask_cut_off": mask_cut_off},
    "algorithm.overlong.buffer_tokens": {"soft_overlong": soft_overlong},
    "algorithm.advantage.length_alpha": {"length_adaptive_lambda": length_adaptive_lambda},
    "critic.targets": {"v_trace": v_trace},
    "critic.value_clip": {"clipped_value_loss": clipped_value_loss},
}
"""Recipe key -> its terms by name."""
VERDICTS = Path(__file__).with_name("verdicts.json")
"""Verdict by "key=name", written by `make algorithms` (tests/benchmarks/algorithms) from its results."""
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One term as a reader sees it."""

    key: str
    name: str
    formula: str
    source: str
    use: str
    fails: str
    measured: str
    """How it came out of the ablation, and against which arm; NOT_MEASURED where it is not known."""


def catalog() -> list[CatalogEntry]:
    """Every built-in term. Raises ValueError for a docstring that lacks a part."""
    measured: dict[str, str] = json.loads(VERDICTS.read_text(encoding="utf-8"))
    return [
        _entry(key, name, term, measured.get(f"{key}={name}", NOT_MEASURED))
        for key, terms in SECTIONS.items()
        for name, term in terms.items()
    ]


def markdown(asked: str | None = None) -> str:
    """One table per recipe key; of the terms or the key named `asked` alone. Empty where neither exists."""
    lines = []
    entries = catalog()
    for key in SECTIONS:
        of_key = [
            entry
            for entry in entries
            if entry.key == key and asked in (None, key, key.partition(".")[2], entry.name)
        ]
        if not of_key:
            continue
        lines += [
            f"### `{key}`",
            "",
            "| name | formula | measured | what it is for | how it fails | source |",
        ]
        lines += ["|---|---|---|---|---|---|"]
        for e in of_key:
            cells = (f"`{e.name}`", e.formula, e.measured, e.use, e.fails, e.source)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _entry(key: str, name: str, term: Callable[..., Any], measured: str) -> CatalogEntry:
    text = inspect.getdoc(term) or ""
    pattern = r"(?P<formula>.+?)\n\s*Source: (?P<source>.+?)\nUse: (?P<use>.+?)\nFails: (?P<fails>.+)"
    match = re.fullmatch(pattern, text, re.DOTALL)
    if match is None:
        raise ValueError(
            f"{key}: {name} is documented as {text!r}, expected a formula, then Source, Use, Fails."
        )
    parts = {part: " ".join(found.split()) for part, found in match.groupdict().items()}
    return CatalogEntry(key, name, measured=measured, **parts)
