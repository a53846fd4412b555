"""Digests by the loader hook, on real SGLang: of one rank, of two, of an update with a hole, and of a
quantised layer."""

import asyncio
import json
import os
from pathlib import Path

import pytest
import safetensors.torch
from serving.engine.servers import (
    load_model,
    new_session,
    post,
    publish,
    reference_logprobs,
    running_server,
    said_beside_engine,
    write_model,
)

from asyncrl.serving.sglang import hooks, weights
from asyncrl.trainer.network.export import read_weights
from asyncrl.trainer.publishing.host_weights import digests_of

SLEEP = """
from types import SimpleNamespace
import torch
from asyncrl.serving.engine.hooks.loaded_weights import WatchedLoader, lose

class OneLayer(torch.nn.Linear):
    def load_weights(self, weights):
        for name, tensor in weights:
            self.get_parameter(name).data.copy_(tensor)

model = OneLayer(2, 2)
model.load_weights = WatchedLoader(model)
model.load_weights([("weight", torch.ones(2, 2)), ("bias", torch.ones(2))])
print(model.load_weights.report())
lose(SimpleNamespace(tp_worker=SimpleNamespace(model_runner=SimpleNamespace(model=model))), "request")
print(model.load_weights.report())
"""
"""As on a GPU, whose memory comes back at the same addresses."""

on_an_engine = pytest.mark.parametrize("shared_engine", ["normal"], indirect=True)


async def digests_after(url: str, folder: Path, version: int) -> list[dict[str, str]]:
    async with new_session() as session:
        await publish(session, url, folder, version)
        return await weights.weight_digests(session, url, timeout_seconds=60)


@on_an_engine
def test_the_plugin_says_that_all_its_hooks_applied(shared_engine: tuple[str, list[Path]]):
    async def check() -> list[hooks.Engine]:
        async with new_session() as session:
            return [await hooks.check_hooks(session, shared_engine[0]) for _ in range(2)]

    first, second = asyncio.run(check())
    assert first.num_ranks == 1
    # The same process says the same.
    assert first == second


@on_an_engine
def test_a_tensor_that_did_not_come_counts_as_what_it_was(
    shared_engine: tuple[str, list[Path]], tmp_path: Path
):
    url, folders = shared_engine
    weights = dict(read_weights(folders[1]))
    (tmp_path / "config.json").write_bytes((folders[1] / "config.json").read_bytes())
    hole = "model.layers.1.mlp.down_proj.weight"
    safetensors.torch.save_file(
        {name: tensor for name, tensor in weights.items() if name != hole}, tmp_path / "model.safetensors"
    )

    before = digests_of(dict(read_weights(folders[0])))
    assert asyncio.run(digests_after(url, folders[0], 0)) == [before]
    (found,) = asyncio.run(digests_after(url, tmp_path, 1))

    assert found == {**digests_of(weights), hole: before[hole]} and before[hole] != digests_of(weights)[hole]
    assert asyncio.run(digests_after(url, folders[0], 0)) == [digests_of(dict(read_weights(folders[0])))]


@pytest.mark.exhaustive
def test_a_server_that_slept_has_no_digests_though_its_weights_are_where_they_were(tmp_path: Path) -> None:
    before, after = said_beside_engine(SLEEP, tmp_path)
    assert "not written" not in before
    assert after == "{'weight': 'not written', 'bias': 'not written'}"


@pytest.mark.exhaustive
def test_both_ranks_of_a_server_digest_whole_tensors_and_compute_with_them(tmp_path: Path, monkeypatch):
    folders = [write_model(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "|".join(map(str, sorted(os.sched_getaffinity(0))[:2])))
    wanted = digests_of(dict(read_weights(folders[1])))

    async def answer(url: str) -> list[float]:
        async with new_session() as session:
            params = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
            body = {"input_ids": [2, 3, 4, 5], "sampling_params": params, "return_logprob": True}
            reply = await post(session, f"{url}/generate", body)
        logprobs = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
        reference = reference_logprobs(body["input_ids"], reply["output_ids"], [load_model(folders[1])] * 8)
        return [abs(got - expected) for got, expected in zip(logprobs, reference, strict=True)]

    with running_server(folders[0], tmp_path / "log", tensor_parallel_size=2, max_total_tokens=2048) as (
        url,
        _,
    ):
        assert asyncio.run(digests_after(url, folders[1], 1)) == [wanted, wanted]
        assert max(asyncio.run(answer(url))) < 1e-5


NOT_WRITTEN = "not written"
UPDATE = """
import json
import torch
from sglang.srt.layers.quantization.fp8_utils import input_to_float8
from sglang.srt.model_loader.loader import QuantizedRLModelLoader
from asyncrl.serving.engine.hooks.loaded_weights import WatchedLoader
from asyncrl.serving.engine.hooks.loaded_weights import note_filled

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
