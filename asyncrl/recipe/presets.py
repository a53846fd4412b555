"""Presets of algorithm.preset: names of published algorithms, each a set of keys as its source sets them.
`asyncrl algorithms NAME` prints one.

A preset fills in the keys that the recipe does not state, before anything is checked; the resolved recipe
states all of them. Batch sizes, lengths and, but for two, learning rates depend on model and machine and stay
the recipe's. So does the importance weight, where the source trains synchronously and has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl.errors import did_you_mean
from asyncrl.recipe.sections.algorithm import AlgorithmKeys
from asyncrl.recipe.sections.rollout import Rollout
from asyncrl.recipe.terms import inner_kind, merged, spread
from asyncrl.recipe.yaml_text import write_in_line

OVERLONG = "algorithm.overlong"


@dataclass(frozen=True, slots=True)
class Preset:
    source: str
    settings: Mapping[str, Any]
    """By the dotted keys of a recipe; a term or a group of keys is one value."""
    overlong_share: float = 0.0
    """The buffer of the overlong penalty, as a share of rollout.max_new_tokens."""
    left_out: str = "-"
    """Settings of the source that the preset does not set, and why."""

    def keys(self, max_new_tokens: int) -> dict[str, Any]:
        """All settings, for responses of at most `max_new_tokens`."""
        if not self.overlong_share:
            return dict(self.settings)
        buffer = int(self.overlong_share * max_new_tokens)
        return {**self.settings, OVERLONG: {"buffer_tokens": buffer, **self.settings[OVERLONG]}}


def _loss(advantage: Any, reduction: str, *, low: float | None, high: float, **others: Any) -> dict[str, Any]:
    """Keys of the section `algorithm`, without KL unless `others` have it."""
    terms = {"surrogate": "ppo_clip", "kl": {"coefficient": 0.0}, **others}
    keys = {"advantage": advantage, "reduction": reduction, "clip_low": low, "clip_high": high, **terms}
    return {f"algorithm.{key}": value for key, value in keys.items()}


def _unclipped(advantage: Any, reduction: str, **others: Any) -> dict[str, Any]:
    """As `_loss`, for surrogates without a clip range."""
    keys = _loss(advantage, reduction, low=None, high=0.0, **others)
    return {key: value for key, value in keys.items() if "clip_low" not in key and "clip_high" not in key}


_TRUNCATED = {"surrogate": "cispo", "importance_weight": "none", "clip_around": "behavior"}
"""CISPO truncates the ratio to the policy that sampled."""
_AROUND_BEHAVIOR = {"surrogate": "ratio", "importance_weight": "none", "clip_around": "behavior"}
"""Under a trust region: the plain ratio to the policy that sampled."""
PRESETS: Mapping[str, Preset] = {
    "grpo": Preset(
        "DeepSeekMath, arXiv 2402.03300, equations 3 and 4, section 4.2",
        _loss(
            *("grpo", "sequence_mean"),
            low=0.2,
            high=0.2,
            kl={"coefficient": 0.04, "estimator": "k3", "place": "loss"},
        ),
        left_out="clips: the paper names no number, 0.2 is the default of verl and TRL",
    ),
    "dr_grpo": Preset(
        "Dr.GRPO, arXiv 2503.20783; oat-zero's qwen2.5-math-7b.sh",
        _loss("dr_grpo", "dr_grpo_constant", low=0.2, high=0.2),
        left_out="its eight optimizer steps per batch, without which no clip binds",
    ),
    "dapo": Preset(
        "DAPO, arXiv 2503.14476; verl's run_dapo_qwen2.5_32b.sh",
        # Half the published penalty, since rewards are 1 and 0 in place of 1 and -1.
        _loss("grpo", "token_mean", low=0.2, high=0.28, overlong={"penalty": 0.5})
        | {"replay.drops_no_signal": True},
        overlong_share=4096 / 20480,
        left_out="its 16 optimizer steps per batch (trainer.optimizer_steps_per_batch); half its penalty, "
        "since our rewards are 1 and 0, not 1 and -1",
    ),
    "gspo": Preset(
        "GSPO, arXiv 2507.18071 (version 2), section 5.1; TRL's paper index",
        _loss("grpo", "sequence_mean", low=3e-4, high=4e-4, surrogate="gspo"),
        left_out="its four optimizer steps per batch, without which no clip binds",
    ),
    "cispo": Preset(
        "MiniMax-M1, arXiv 2506.13585; the bound of 5 is that of TRL's paper index for ScaleRL",
        _loss("grpo", "token_mean", low=None, high=4.0, **_TRUNCATED)
        | {"trainer.adam_beta2": 0.95, "trainer.adam_epsilon": 1e-15},
        left_out="the paper names no upper bound; its optimizer steps per batch",
    ),
    "reinforce_pp": Preset(
        "REINFORCE++, arXiv 2501.03262; defaults of OpenRLHF's train_ppo_ray.py",
        _loss(
            *("reinforce_pp", "token_mean"),
            low=0.2,
            high=0.2,
            kl={"coefficient": 0.01, "estimator": "k1", "place": "reward"},
        ),
        left_out="its schedule, a cosine after 3% of warm-up",
    ),
    "ppo": Preset(
        "PPO, arXiv 1707.06347; verl's ppo_trainer.yaml",
        _loss(
            *({"name": "gae", "gamma": 1.0, "gae_lambda": 1.0, "is_whitened": True}, "token_mean"),
            low=0.2,
            high=0.2,
            surrogate={"name": "ppo_clip", "dual_clip": 3.0},
        )
        | {"critic.value_clip": 0.5, "critic.learning_rate": 1e-5},
        left_out="the critic's optimizer steps (critic.optimizer_steps_per_batch) and warm-up",
    ),
    "scale_rl": Preset(
        "ScaleRL, arXiv 2510.13786, appendix; TRL's paper index",
        _loss("dr_grpo", "prompt_mean", low=None, high=4.0, divides_by_batch_std=True, **_TRUNCATED)
        | {
            "model.float32_logits": True,
            "replay.drops_no_signal": True,
            "rollout.max_staleness": 8,
            "trainer.learning_rate": 5e-7,
            "trainer.warmup_steps": 100,
            "trainer.adam_beta2": 0.999,
            "trainer.adam_epsilon": 1e-15,
            "trainer.weight_decay": 0.01,
        },
        left_out="prompts retired at a pass rate of 0.9 (data.selection: retire), forced ends of thoughts; "
        "groups without signal are replaced, not left out; rewards are 1 and 0, not 1 and -1; "
        "Adam's 0.999 is torch's default",
    ),
    "dppo": Preset(
        "DPPO, arXiv 2602.04879; verl's dppo_trainer/run_qwen3_30b_a3b_megatron.sh",
        # A truncation at 10,000, verl's clip_ratio_c.
        _loss("dr_grpo", "dr_grpo_constant", low=None, high=9999.0, **_TRUNCATED)
        | {"algorithm.trust_region": [{"name": "dppo_tv", "limit": 0.15}]},
        left_out="its eight optimizer steps per batch; dppo_kl, with 0.05, is its other limit",
    ),
    "ipo": Preset(
        "prime-rl's default since September 2026 (pull requests 3418 and 3586)",
        _unclipped("dr_grpo", "token_mean", **_AROUND_BEHAVIOR, behavior_kl_coefficient=0.0)
        | {"algorithm.trust_region": [{"name": "ipo", "limit": 0.3}]},
        left_out="its filters, which leave out responses without an advantage before the mean over tokens: "
        "replay.drops_no_signal replaces them instead",
    ),
    "sapo": Preset(
        "SAPO, arXiv 2511.20347; TRL's paper index; verl's sapo_trainer/run_qwen3_8b_fsdp.sh",
        _unclipped(
            *("grpo", "sequence_mean"),
            surrogate={"name": "sapo", "tau_positive": 1.0, "tau_negative": 1.05},
        ),
        left_out="its four optimizer steps per batch, without which every ratio is 1",
    ),
    "m2po": Preset(
        "M2PO, arXiv 2510.01161; its authors' m2po-qwen-math-7b-s256.sh",
        _unclipped("grpo", "token_mean", **_AROUND_BEHAVIOR)
        | {"algorithm.trust_region": [{"name": "second_moment_clip", "limit": 0.04}]},
        left_out="its staleness of 256 updates (rollout.max_staleness) and four optimizer steps per batch; "
        "the range is found over an optimizer step, not a micro-batch",
    ),
    "vapo": Preset(
        "VAPO, arXiv 2504.05118",
        _loss(
            *({"name": "gae", "gamma": 1.0, "length_alpha": 0.05}, "token_mean"),
            low=0.2,
            high=0.28,
            nll_coefficient=0.1,
        )
        | {"critic.gae_lambda": 1.0, "critic.warmup_steps": 50},
        left_out="its optimizer steps per batch and the critic's rate; rewards are 1 and 0, not 1 and -1",
    ),
    "sao": Preset(
        "SAO, arXiv 2607.07508; its reproductions in twinkle and reef",
        _unclipped(
            {"name": "gae", "gamma": 1.0, "length_alpha": 1.5, "is_whitened": False},
            "token_mean",
            **_AROUND_BEHAVIOR,
        )
        | {
            "algorithm.trust_region": [{"name": "band", "low": 0.7, "high": 6.0}],
            "rollout.samples_per_group": 1,
            "rollout.max_staleness": 4,
            "critic.gae_lambda": 1.0,
            "critic.passes": 2,
            "critic.advantages_from": "after",
            "critic.frozen": "attention",
            "critic.value_clip": None,
            "critic.learning_rate": 5e-6,
            "critic.clip_grad_norm": 10.0,
            "critic.warmup_steps": 10,
        },
        left_out="pretrained values (critic.path, critic.warmup_run); whitened advantages, which one "
        "reproduction needed while the critic was weak (advantage.is_whitened); low 0.2 and high 4 for code; "
        "the clip of the critic's gradient is a reproduction's",
    ),
    "flash_reinforce": Preset(
        "FlashREINFORCE, NVIDIA 2026, github.com/yifanzhang-pro/FlashREINFORCE; OpenRLHF pull request 1339",
        _unclipped("batch_mean", "sequence_mean", **_AROUND_BEHAVIOR)
        | {
            "algorithm.rejection": [{"name": "sequence_kl", "limit": 5e-3}],
            "rollout.samples_per_group": 1,
            "rollout.max_staleness": 4,
        },
        left_out="one optimizer step per batch, which is our default",
    ),
    "max_rl": Preset(
        "MaxRL, arXiv 2602.02710; its authors' run_qwen3_training.sh",
        _loss("max_rl", "token_mean", low=0.2, high=0.2) | {"trainer.clip_grad_norm": 0.3},
    ),
    "a3po": Preset(
        "A-3PO, arXiv 2512.06547; AReaL's gsm8k_grpo_prox_approx.yaml",
        _loss(
            *("grpo", "token_mean"),
            low=0.4,
            high=0.4,
            proximal="interpolated",
            importance_weight="masked",
            mask_low=0.0,
            mask_high=5.0,
        ),
        left_out="the whitening over the batch that it adds to the group's, its reward scale and optimizer",
    ),
    "recommended": Preset(
        "a judgement over the defaults of six libraries (docs/algorithms.md)",
        _loss(
            *("dr_grpo", "token_mean"),
            low=0.2,
            high=0.28,
            divides_by_batch_std=True,
            importance_weight={"name": "truncated", "cap": 2.0},
        )
        | {
            "model.float32_logits": True,
            "replay.drops_no_signal": True,
            "rollout.max_staleness": 4,
            "trainer.learning_rate": 1e-6,
            "trainer.warmup_steps": 10,
        },
    ),
}


def with_preset(raw: Any) -> Any:
    """Plain data of a recipe, completed by the keys of the preset that it names, if it names one.

    Raises ValueError for a name that is none."""
    algorithm = raw.get("algorithm") if isinstance(raw, dict) else None
    name = algorithm.get("preset") if isinstance(algorithm, dict) else None
    if not isinstance(name, str):
        return raw
    if name not in PRESETS:
        meant = did_you_mean(name, PRESETS, f" Known: {', '.join(PRESETS)}.")
        raise ValueError(f"algorithm.preset is {name!r}, which is no preset.{meant}")
    completed = dict(raw)
    for key, value in PRESETS[name].keys(_max_new_tokens(raw)).items():
        section, _, inner = key.partition(".")
        stated = completed.get(section)
        if stated is None:
            completed[section] = {inner: value}
        # A value that is not a section is refused for itself.
        elif isinstance(stated, dict):
            completed[section] = {inner: value, **stated}
            if inner in stated and section == "algorithm":
                kind = inner_kind(AlgorithmKeys, inner)
                completed[section][inner] = merged(value, spread(stated[inner], kind), kind)
    return completed


def markdown(asked: str | None = None) -> str:
    """A table of all presets, or of the one named `asked`."""
    lines = ["| preset | sets | source | of the source, not set |", "|---|---|---|---|"]
    for name, preset in PRESETS.items():
        if asked in (None, name):
            keys = [f"`{key}: {write_in_line(value)}`" for key, value in preset.settings.items()]
            if preset.overlong_share:
                share = f"{preset.overlong_share:g} of `rollout.max_new_tokens`"
                keys.append(f"`{OVERLONG}.buffer_tokens`: {share}")
            lines.append(f"| `{name}` | {', '.join(keys)} | {preset.source} | {preset.left_out} |")
    return "\n".join(lines)


def _max_new_tokens(raw: dict[str, Any]) -> int:
    rollout = raw.get("rollout")
    stated = rollout.get("max_new_tokens") if isinstance(rollout, dict) else None
    return stated if isinstance(stated, int) else Rollout().max_new_tokens
