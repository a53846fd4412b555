"""Stand-in for SGLang's compiled kernels: each can be imported, and fails when it is called.

SGLang 0.5.23 imports some by name on a CPU and calls none of them without AMX, as far as we use it.
`torch.ops.sgl_kernel.convert_weight_packed` must stay undefined: SGLang takes its presence for AMX support.
"""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*arguments, **keywords):
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in on a CPU")

    return missing
