"""Digests of the whole tensors that the server's model loader was last given since it slept, and whether it
wrote all parameters. An update may leave tensors out: they are, and count as, what they were.

Digests are taken as the tensors pass, under their Hugging Face names, in model.dtype and before each tensor
rank cuts its part: how SGLang shards, stacks, pads or quantises them does not matter. /weights_checker
answers them in place of the digests that SGLang 0.5.23 takes of its own tensors.
"""

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from asyncrl.serving.tensor_digest import PendingDigests
from asyncrl.system.files import overall_digest

NOT_WRITTEN = "not written"
"""Stands for the digest of a parameter that no update has filled."""

SCALE = "weight_scale"
"""Name of the parameter beside a quantised weight, which is quantised with it."""


def hooks():
    """Hooks of this file, as `plugin.register` takes them."""
    loader, manager = "sglang.srt.model_loader", "sglang.srt.managers.scheduler_components.weight_updater"
    return [
        ("sglang.srt.model_executor.model_runner.ModelRunner.load_model", _watch_loader, "after"),
        (f"{loader}.utils.maybe_executor_submit", _watch_thread, "before"),
        (f"{manager}.SchedulerWeightUpdaterManager.release_memory_occupation", lose, "before"),
        ("sglang.srt.utils.weight_checker.WeightChecker._compute_checksum", _report, "replace"),
        (f"{loader}.loader.QuantizedRLModelLoader.rebinding_and_load_weights", note_filled, "around"),
    ]


class WatchedLoader:
    """In the place of a model's `load_weights`: calls it and remembers what passed since `forget`."""

    def __init__(self, model):
        self._model = model
        self._load = model.load_weights
        self._digests = PendingDigests()
        self._written = set()
        """Storages that something was copied into."""
        self._noted = set()
        """Names of parameters that were filled in another way."""

    def __call__(self, weights, *arguments, **named):
        try:
            with _Writes(self._written):
                return self._load(self._digesting(weights), *arguments, **named)
        except BaseException:
            # What was digested may not have been loaded.
            self.forget()
            raise

    def forget(self):
        self._digests = PendingDigests()
        self._written.clear()
        self._noted.clear()

    def note(self, names):
        """The update that runs has filled these parameters, though nothing was copied into them."""
        self._noted.update(names)

    def report(self):
        """Hugging Face name -> digest; a parameter of the engine that nothing filled -> NOT_WRITTEN."""
        parameters = self._model.named_parameters()
        missing = [
            name
            for name, parameter in parameters
            if _storage(parameter) not in self._written and name not in self._noted
        ]
        return self._digests.read() | dict.fromkeys(missing, NOT_WRITTEN)

    def _digesting(self, weights):
        device = next(self._model.parameters()).device
        for name, tensor in weights:
            # The loader gets this copy: it would make another one.
            there = tensor.to(device)
            self._digests.add(name, there)
            yield name, there


class _Writes(TorchDispatchMode):
    """Sees what is copied into tensors: loaders skip names that they do not know, with a warning at most."""

    def __init__(self, written):
        super().__init__()
        self.written = written

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ == "copy_":
            self.written.add(_storage(args[0]))
        return func(*args, **(kwargs or {}))


def _watch_thread(**keywords):
    """DeepSeek's loader copies tensors of a CPU in threads of its own, which have no mode of this one."""
    mode = _get_current_dispatch_mode()
    if not isinstance(mode, _Writes):
        return None
    load = keywords["func"]

    def watched(*arguments, **named):
        with _Writes(mode.written):
            return load(*arguments, **named)

    return (), keywords | {"func": watched}


def _storage(tensor):
    return tensor.untyped_storage().data_ptr()


def _watch_loader(result, runner):
    runner.model.load_weights = WatchedLoader(runner.model)


def lose(manager, *_, **__):
    """After a sleep weights are undefined until some are loaded; on a GPU they keep their addresses."""
    manager.tp_worker.model_runner.model.load_weights.forget()


def _report(checker, skip_tensor_list=None, *, role):
    """Report of the loaded weights, in the format of the method that this replaces. The digest of all digests
    is of `skip_tensor_list` too."""
    from sglang.srt.utils import weight_checker

    digests = checker._get_model().load_weights.report()
    left_out = skip_tensor_list or ()
    info = weight_checker.ChecksumInfo(
        checksums={name: it for name, it in digests.items() if not any(part in name for part in left_out)},
        per_gpu_checksum=overall_digest(digests),
        parallelism_info=checker._parallelism_info(role=role),
    )
    return info.model_dump()


# That a parameter was filled shows by what is copied into it; into a quantised one (serving.quantization)
# SGLang copies nothing: it copies into a buffer, and quantises that into the parameter by a kernel. Such a
# parameter counts as filled when its own loader was called and the update did not fail.
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
