import json
from pathlib import Path

import pytest
import torch
import transformers
from fakes.models import random_batch, reference_logprobs, reference_model, write_model

from asyncrl.model.folder import check_model_folder
from asyncrl.model.weights import num_parameters
from asyncrl.trainer.network import export
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.export import export_model, open_weights
from asyncrl.trainer.network.model import build_model


@pytest.mark.parametrize("is_tied", [False, True])
def test_transformers_loads_an_export_and_computes_the_same(tmp_path: Path, is_tied: bool):
    base = write_model(tmp_path / "base", tie_word_embeddings=is_tied)
    (base / "tokenizer.json").write_text('{"version": "1.0"}')
    trained = write_model(tmp_path / "trained", tie_word_embeddings=is_tied, seed=1)
    model = build_model(check_model_folder(base), torch.float32)
    load_weights(model, open_weights(trained))
    target = tmp_path / "out" / "hf"
    export_model(model, base=base, target=target)
    assert sorted(file.name for file in target.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    config, wanted_config = (json.loads((folder / "config.json").read_text()) for folder in (target, base))
    assert config == wanted_config | {"dtype": "float32", "torch_dtype": "float32"}
    sequence = random_batch(0).sequences[0]
    got, wanted = (reference_logprobs(reference_model(folder), sequence, 1.0) for folder in (target, trained))
    assert torch.equal(got, wanted)
    assert check_model_folder(target) == check_model_folder(base)


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bfloat16"), (torch.float32, "float32")])
def test_the_configuration_says_what_the_weights_are_and_when_to_stop(
    tmp_path: Path, dtype: torch.dtype, name: str
):
    base = write_model(tmp_path / "base", eos_token_id=7)
    # As of models that were saved without one, in another type, by transformers 4.
    (base / "generation_config.json").unlink()
    config = json.loads((base / "config.json").read_text())
    del config["dtype"]
    (base / "config.json").write_text(json.dumps(config | {"torch_dtype": "float16"}))
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates" / "tool_use.jinja").write_text("t")
    model = build_model(check_model_folder(base), dtype)
    load_weights(model, open_weights(base))
    export_model(model, base=base, target=tmp_path / "hf")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert loaded.dtype is dtype and {p.dtype for p in loaded.parameters()} == {dtype}
    assert loaded.generation_config.eos_token_id == 7
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["torch_dtype"] == name
    assert (tmp_path / "hf" / "additional_chat_templates" / "tool_use.jinja").read_text() == "t"


def test_a_large_model_becomes_several_files_that_transformers_and_the_trainer_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(export, "SHARD_BYTES", 20_000)
    base = write_model(tmp_path / "base")
    shape = check_model_folder(base)
    model = build_model(shape, torch.float32)
    load_weights(model, open_weights(base))
    export_model(model, base=base, target=tmp_path / "hf")
    files = sorted(tmp_path.glob("hf/*.safetensors"))
    assert len(files) > 3 and files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert all(file.stat().st_size < 25_000 for file in files)
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * num_parameters(shape)
    assert check_model_folder(tmp_path / "hf") == shape
    sequence = random_batch(0).sequences[0]
    got, wanted = (
        reference_logprobs(reference_model(folder), sequence, 1.0) for folder in (tmp_path / "hf", base)
    )
    assert torch.equal(got, wanted)


def test_an_export_replaces_the_one_before_it(tmp_path: Path):
    base = write_model(tmp_path / "base")
    model = build_model(check_model_folder(base), torch.float32)
    for _ in range(2):
        export_model(model, base=base, target=tmp_path / "hf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "hf"]


def test_weights_are_cut_in_their_order_and_a_large_tensor_is_alone():
    weights = [(name, torch.zeros(size)) for name, size in zip("abcde", (10, 10, 10, 100, 1), strict=True)]
    assert [list(part) for part in export.cut(weights, max_bytes=80)] == [["a", "b"], ["c"], ["d"], ["e"]]
