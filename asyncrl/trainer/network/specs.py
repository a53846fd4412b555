"""The parts of Megatron-core's layer specs, which its versions write down in two ways."""

import functools
from typing import Any


def parts_of(spec: Any) -> Any:
    """The `submodules` of a spec, to be read and replaced: of a ModuleSpec, or of the partial call of a class
    that Megatron-core 0.19 has in its place for feed-forward networks and experts."""
    return spec.keywords["submodules"] if isinstance(spec, functools.partial) else spec.submodules
