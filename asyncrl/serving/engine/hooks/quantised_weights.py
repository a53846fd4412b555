"""Which quantised parameters an update has filled (serving.quantization).

Digests are of the tensors that arrive, in model.dtype, before any is quantised (loaded_weights.py), so
servers and trainer compare the same bytes. That a parameter was filled shows by what is copied into it;
SGLang 0.5.23 copies into a buffer instead, and quantises that into the parameter by a kernel. Here the
parameter counts as filled when its own loader was called and the update did not fail."""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

SCALE = "weight_scale"
"""Name of the parameter beside a quantised weight, which is quantised with it."""


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded."""
    HookRegistry.register(
        "sglang.srt.model_loader.loader.QuantizedRLModelLoader.rebinding_and_load_weights",
        note_filled,
        HookType.AROUND,
    )


def note_filled(original, model, first_time_load_weights, weights):
    filled = set()

    def load(named_tensors):
        # SGLang has just given each parameter that it quantises a loader that defers the write.
        for name, parameter in model.named_parameters():
            if parameter.dtype.itemsize == 1 and hasattr(parameter, "weight_loader"):
                parameter.weight_loader = _noting(parameter.weight_loader, name, filled)
        return first_time_load_weights(named_tensors)

    result = original(model, load, weights)
    for name in filled:
        model.load_weights.note([name, f"{name.rpartition('.')[0]}.{SCALE}"])
    return result


def _noting(loader, name, filled):
    def load(*arguments, **keywords):
        filled.add(name)
        return loader(*arguments, **keywords)

    return load
