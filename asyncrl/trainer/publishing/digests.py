"""The digests of a version, taken in passing from the tensors that are written or sent."""

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from asyncrl.serving.tensor_digest import tensor_digest


class Digests:
    """Hugging Face name -> digest, of the tensors that passed."""

    def __init__(self) -> None:
        self.by_name: dict[str, str] = {}

    def watch(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yields `weights` and digests them."""
        for name, tensor in weights:
            self.add(name, tensor)
            yield name, tensor

    def add(self, name: str, tensor: Tensor) -> None:
        assert name not in self.by_name, f"{name} came twice"
        self.by_name[name] = tensor_digest(tensor)


def digests_of(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Digests of tensors that are all there, by name."""
    return {name: tensor_digest(tensor) for name, tensor in weights.items()}
