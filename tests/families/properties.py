"""Properties that are checked of every family: the columns of the second table of docs/models.md.

A test that each family must pass is parametrized by `of_each_family(PROPERTY)`, and by nothing else does the
page say "yes". A family that lacks a property says so in its entry, with the reason.
"""

from dataclasses import dataclass

import pytest
from families.known import TINY

from asyncrl.model.families import FAMILIES

MARKERS = {
    "": "`make test`",
    "exhaustive": "`-m exhaustive`",
    "sampled": "`-m exhaustive` for four families, `-m slow` for the others",
    "slow": "`-m slow`",
}
"""Marker of a property -> how its test is run."""
SAMPLE = ("Qwen3MoeForCausalLM", "Qwen3NextForCausalLM", "DeepseekV3ForCausalLM", "Gemma2ForCausalLM")
"""Experts, linear and latent attention, capped logits: what is "sampled" runs them before every landing."""


@dataclass(frozen=True, slots=True)
class Property:
    """A column."""

    checked: str
    """The two sides that are compared."""
    test: str
    """path::name of the test that `of_each_family` gives the families."""
    marker: str = ""
    """That of its cases; "" for none."""


PROPERTIES = {
    "transformers": Property(
        "log-probs and gradients of transformers in float32, to 1e-4 of the largest",
        "trainer/network/test_families.py::test_a_family_computes_what_transformers_does",
    ),
    "packed": Property(
        "log-probs and gradients of sequences packed as a prefix tree, and packed with nothing to share, "
        "against each alone",
        "trainer/network/test_families.py::test_packed_sequences_are_those_of_each_alone",
        "exhaustive",
    ),
    "export": Property(
        "weights return bit for bit, and transformers loads an export to the same logits",
        "trainer/network/test_families.py::test_transformers_loads_an_export_to_the_same_logits",
        "exhaustive",
    ),
    "server": Property(
        "log-probs that SGLang sends on a CPU, against the trainer's at lag 0, to 1e-4; again after steps",
        "trainer/test_families.py::test_server_and_trainer_agree_after_a_publish_by_each_transport",
        "sampled",
    ),
    "publish": Property(
        "a running server takes versions from disk, over HTTP and by broadcast: digests equal the trainer's",
        "trainer/test_families.py::test_server_and_trainer_agree_after_a_publish_by_each_transport",
        "sampled",
    ),
    **{
        f"{name} 2": Property(
            f"steps of two ranks (`trainer.parallel.{key}: 2`) against one: losses, gradient norms, weights",
            f"trainer/test_family_layouts.py::test_{key}_ranks_take_the_steps_of_one",
            "slow",
        )
        for name, key in (("TP", "tensor"), ("PP", "pipeline"), ("CP", "context"), ("EP", "expert"))
    },
    "LoRA": Property(
        "after a step with `model.lora`: export, publication and transformers have the trainer's log-probs",
        "trainer/step/test_adapted_learner.py::test_merged_weights_have_the_log_probs_of_the_adapted_policy",
        "exhaustive",
    ),
    "run": Property(
        "`asyncrl train` for two steps on real engines: both published, tokens accounted for, mismatch KL "
        "below 1e-6",
        "end_to_end/test_families.py::test_a_run_of_two_steps_publishes_both_and_accounts_for_its_tokens",
        "slow",
    ),
    "chat": Property(
        "what SFT learns of a conversation under the published chat template, and what ends a response",
        "model/test_learned_turns.py::test_turns_end_as_the_published_template_ends_them",
    ),
    "plan": Property(
        "`asyncrl plan` from a published config.json alone: parameters as cards count them, memory",
        "commands/test_plan_families.py::test_plan_counts_a_published_model_from_its_config",
    ),
}


def cell(architecture: str, name: str) -> str:
    """ "yes", "no: REASON" or "GPU only: REASON"."""
    return _lacks(architecture).get(name, "yes")


def _lacks(architecture: str) -> dict[str, str]:
    entry = TINY.get(architecture)
    found = dict(entry.lacks) if entry is not None else {}
    if entry is not None and not any("experts" in key for key in entry.settings):
        found["EP 2"] = "no: no experts"
    if not FAMILIES[architecture].adapter_targets:
        found["LoRA"] = "no: matrices of other names"
    return found


def of_each_family(*names: str) -> pytest.MarkDecorator:
    """Gives a test `architecture`: every family that does not say of one of the properties that it lacks it.
    One without an entry is given, too, and fails."""
    cases = []
    for architecture in FAMILIES:
        if all(cell(architecture, name) == "yes" for name in names):
            markers = sorted({_marker(architecture, PROPERTIES[name].marker) for name in names} - {""})
            marks = [getattr(pytest.mark, marker) for marker in markers]
            cases.append(pytest.param(architecture, marks=marks, id=architecture))
    return pytest.mark.parametrize("architecture", cases)


def _marker(architecture: str, marker: str) -> str:
    if marker != "sampled":
        return marker
    return "exhaustive" if architecture in SAMPLE else "slow"
