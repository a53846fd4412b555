"""An update of a quantised layer, by SGLang's own loader for it on the CPU: what counts as written."""

import json
from pathlib import Path

import pytest
from serving.engine.servers import said_beside_engine

NOT_WRITTEN = "not written"
UPDATE = """
import json
import torch
from sglang.srt.layers.quantization.fp8_utils import input_to_float8
from sglang.srt.model_loader.loader import QuantizedRLModelLoader
from asyncrl.serving.engine.hooks.loaded_weights import WatchedLoader
from asyncrl.serving.engine.hooks.quantised_weights import note_filled

ORIGINAL = QuantizedRLModelLoader.rebinding_and_load_weights


class Layer(torch.nn.Module):
    # As SGLang leaves one: FP8, transposed, with one scale.
    def __init__(self, weight):
        super().__init__()
        quantised, scale = input_to_float8(weight)
        self.weight = torch.nn.Parameter(quantised.t(), requires_grad=False)
        self.weight_scale = torch.nn.Parameter(scale, requires_grad=False)

    def value(self):
        return self.weight.float().t() * self.weight_scale


class Model(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.proj = Layer(weight)
        self.head = torch.nn.LayerNorm(4, bias=False, dtype=torch.bfloat16)
        self.head.weight.requires_grad_(False)
        self.recorded_loader = {"weight_loader": {"proj.weight": self.copy_into}}
        self.original_weights_rebuild_keys = {
            "proj.weight": {"shape": weight.shape, "stride": weight.stride(), "dtype": weight.dtype}
        }

    def copy_into(self, parameter, new):
        parameter.data.copy_(new)

    def native(self, weights):
        for name, tensor in weights:
            if name not in self.skipped:
                parameter = self.get_parameter(name)
                if hasattr(parameter, "weight_loader"):
                    parameter.weight_loader(parameter, tensor)
                else:
                    parameter.data.copy_(tensor)

    def load_weights(self, weights):
        note_filled(ORIGINAL, self, self.native, weights)


torch.manual_seed(0)
old, new = torch.randn(2, 6, 4, dtype=torch.bfloat16)
model = Model(old)
model.load_weights = WatchedLoader(model)
published = [("proj.weight", new), ("head.weight", torch.ones(4, dtype=torch.bfloat16))]
said = []
for model.skipped in (("proj.weight",), ("head.weight",), ()):
    model.load_weights.forget()
    model.load_weights(published)
    said.append(model.load_weights.report())
quantised, scale = input_to_float8(new)
is_new = torch.equal(model.proj.value(), quantised.float() * scale)
print(json.dumps([is_new, (model.proj.value() - new.float()).abs().max().item(), *said]))
"""


@pytest.mark.exhaustive
def test_a_quantised_parameter_counts_as_written_when_its_own_loader_was_called(tmp_path: Path) -> None:
    (said,) = said_beside_engine(UPDATE, tmp_path)
    is_new, error, without_layer, without_head, whole = json.loads(said)
    assert is_new and 0 < error < 0.2
    # Digests are of what came, in bfloat16.
    assert whole.keys() == {"proj.weight", "head.weight"} and NOT_WRITTEN not in whole.values()
    assert without_layer["proj.weight"] == without_layer["proj.weight_scale"] == NOT_WRITTEN
    assert without_layer["head.weight"] == whole["head.weight"]
    assert without_head == whole | {"head.weight": NOT_WRITTEN}
