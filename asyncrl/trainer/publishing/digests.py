"""The digests of a version, taken in passing from the tensors that are written or sent."""

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from asyncrl.serving.tensor_digest import PendingDigests


class Digests:
    """Hugging Face name -> digest, of the tensors that passed."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._pending = PendingDigests()

    @property
    def by_name(self) -> dict[str, str]:
        """Waits for the device."""
        return self._pending.read()

    def watch(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yields `weights` and digests them."""
        for name, tensor in weights:
            self.add(name, tensor)
            yield name, tensor

    def add(self, name: str, tensor: Tensor) -> None:
        assert name not in self._names, f"{name} came twice"
        self._names.add(name)
        self._pending.add(name, tensor)


def digests_of(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Digests of tensors that are all there, by name. Waits for the device once."""
    digests = Digests()
    for name, tensor in weights.items():
        digests.add(name, tensor)
    return digests.by_name
