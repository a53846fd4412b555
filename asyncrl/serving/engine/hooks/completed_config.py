"""A server reads config.json with the keys that it lacks and the trainer takes as implied.

Files of transformers 5 lack keys that SGLang 0.5.23 reads: it would end, or serve another model than is
trained.
"""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.model.families import FAMILIES


def install() -> None:
    """Registers the hook where every class of configurations reads its file."""
    HookRegistry.register(
        "transformers.configuration_utils.PreTrainedConfig.get_config_dict", _complete, HookType.AFTER
    )


def _complete(found, *_, **__):
    config, rest = found
    family = FAMILIES.get(next(iter(config.get("architectures") or ()), None))
    return None if family is None else (family.completed(config), rest)
