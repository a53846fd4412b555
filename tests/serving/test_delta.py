"""Deltas: exact for any bits, and anything that is not one is refused; the copy on a host that deltas
change."""

import shutil
import tempfile
from pathlib import Path

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from simulation.deltas import damage, name_in, words_of, write_delta, write_weights

from asyncrl.serving.delta import (
    ESCAPE,
    DeltaRefused,
    DeltaRule,
    HostCopy,
    Words,
    decode,
    encode,
    own_folder,
    word_type,
)

STATES = st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 300)).flatmap(
    lambda it: st.tuples(*[arrays.arrays(word_type(it[0]), it[1])] * 2, st.booleans())
)
"""Any bits of two versions, and whether the delta is compressed."""


def applied(old: Words, data: bytes) -> Words:
    positions, changes = decode(data, num_words=len(old), kind=old.dtype)
    new = old.copy()
    new[positions] ^= changes
    return new


def delta(old: Words, new: Words, *, is_compressed: bool = False) -> bytes:
    positions = np.flatnonzero(old != new)
    return encode(positions, (old ^ new)[positions], is_compressed=is_compressed)


@given(STATES)
def test_a_decoded_delta_is_the_new_version_byte_for_byte(state) -> None:
    old, new, is_compressed = state
    assert applied(old, delta(old, new, is_compressed=is_compressed)).tobytes() == new.tobytes()


@pytest.mark.parametrize("gap", [0, 1, ESCAPE - 1, ESCAPE, ESCAPE + 1, 2 * ESCAPE, 5 * ESCAPE + 7])
def test_a_gap_of_any_length_is_kept(gap: int) -> None:
    old = np.zeros(gap + 3, np.uint16)
    new = old.copy()
    new[[gap, gap + 2]] = 7, 9
    data = delta(old, new)
    assert np.array_equal(applied(old, data), new)
    # 2 bytes for each gap, and one more for each 65,535 words of it; 2 for each change.
    assert len(data) == 17 + 2 * (2 + gap // ESCAPE) + 2 * 2


def test_a_hundredth_of_the_words_takes_little_more_than_a_hundredth_of_the_bytes() -> None:
    generator = np.random.default_rng(0)
    old = generator.integers(0, 2**16, 200_000, np.uint16)
    new = old.copy()
    # The last bit, as of a small step.
    new[generator.choice(len(old), 2_000, replace=False)] ^= 1
    assert len(delta(old, new, is_compressed=True)) < 0.012 * old.nbytes


@given(st.binary(max_size=80), st.integers(0, 40))
def test_other_bytes_are_refused_or_stay_inside_of_the_tensor(data: bytes, num_words: int) -> None:
    try:
        positions, changes = decode(data, num_words=num_words, kind=word_type(2))
    except DeltaRefused:
        return
    assert len(positions) == len(changes) and (positions < num_words).all() and (positions >= 0).all()


@given(st.integers(0, 400), st.booleans())
def test_a_torn_delta_is_refused(length: int, is_compressed: bool) -> None:
    old, new = np.zeros(100, np.uint16), np.arange(100, dtype=np.uint16)
    data = delta(old, new, is_compressed=is_compressed)
    with pytest.raises(DeltaRefused):
        applied(old, data[: min(length, len(data) - 1)])


def test_the_first_version_the_large_ones_and_each_twentieth_are_sent_whole() -> None:
    rule = DeltaRule(is_auto=True)
    assert not rule.sends_delta(None) and rule.is_kept()
    assert rule.sends_delta(0.01) and rule.sends_delta(0.25)
    # More than a quarter: servers do not keep it, so the next one has no base.
    assert not rule.sends_delta(0.26) and not rule.is_kept()
    assert not rule.sends_delta(0.01) and rule.is_kept()
    assert [rule.sends_delta(0.01) for _ in range(20)] == [True] * 19 + [False]


def test_deltas_that_a_recipe_asks_for_are_sent_whenever_there_is_a_base() -> None:
    rule = DeltaRule(is_auto=False)
    assert not rule.sends_delta(None)
    assert all(rule.sends_delta(share) for share in [0.01, 0.9] * 20)
    # Written again for a server that found other bytes.
    assert not rule.sends_delta(None) and rule.sends_delta(0.9)


BASE, FIRST, SECOND = (words_of(f"v{n}", 0) for n in range(3))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Publications: v0 whole, v1 and v2 as deltas."""
    (tmp_path / "run" / "v0").mkdir(parents=True)
    write_weights(tmp_path / "run" / "v0", BASE)
    write_delta(tmp_path / "run" / "v1.delta", BASE, FIRST, 1)
    write_delta(tmp_path / "run" / "v2.delta", FIRST, SECOND, 2)
    return tmp_path / "run"


@pytest.fixture
def copy(tmp_path: Path) -> HostCopy:
    (tmp_path / "copy").mkdir()
    return HostCopy(tmp_path / "copy", fetch=lambda url, target: shutil.copytree(tmp_path / url[7:], target))


def prepared(copy: HostCopy, place: Path | str) -> Path:
    copy.prepare(str(place))
    there = copy.take(str(place))
    assert there is not None
    return there


def test_a_chain_of_deltas_is_applied_to_a_copy_and_not_to_the_publication(run: Path, copy: HostCopy) -> None:
    for place, name in (("v0", "v0"), ("v1.delta", "v1"), ("v2.delta", "v2")):
        there = prepared(copy, run / place)
        assert name_in(there) == there.name == name
    assert name_in(run / "v0") == "v0"


def test_folders_are_fetched_from_a_url(run: Path, copy: HostCopy) -> None:
    assert name_in(prepared(copy, "http://run/v0")) == "v0"
    assert name_in(prepared(copy, "http://run/v1.delta")) == "v1"


def test_a_delta_that_comes_twice_is_applied_once(run: Path, copy: HostCopy) -> None:
    copy.prepare(str(run / "v0"))
    for _ in range(2):
        assert name_in(prepared(copy, run / "v1.delta")) == "v1"


@pytest.mark.parametrize("place", ["v2.delta", "v1.delta"])
def test_a_delta_of_another_base_is_refused_and_changes_nothing(
    run: Path, copy: HostCopy, place: str
) -> None:
    """One version was skipped; one comes when the next is there."""
    before = ["v0"] if place == "v2.delta" else ["v0", "v1.delta", "v2.delta"]
    there = [prepared(copy, run / each) for each in before][-1]
    name = name_in(there)
    with pytest.raises(DeltaRefused, match="not the version before: 1 of 1 tensors differ, first w"):
        copy.prepare(str(run / place))
    assert copy.take(str(run / place)) is None and copy.take(str(run / before[-1])) is None
    assert name_in(there) == name


def test_a_delta_without_a_copy_is_refused(run: Path, copy: HostCopy) -> None:
    with pytest.raises(DeltaRefused, match="no copy of the version before"):
        copy.prepare(str(run / "v1.delta"))


@pytest.mark.parametrize("is_known", [False, True])
def test_a_damaged_copy_is_found_and_healed_by_a_whole_version(
    run: Path, copy: HostCopy, is_known: bool
) -> None:
    """Whether its digest was taken before the damage or not."""
    there = prepared(copy, run / "v0")
    if is_known:
        there = prepared(copy, run / "v1.delta")
    damage(there)
    place = "v2.delta" if is_known else "v1.delta"
    with pytest.raises(DeltaRefused, match="new version" if is_known else "version before"):
        copy.prepare(str(run / place))
    copy.prepare(str(run / "v0"))
    assert name_in(prepared(copy, run / "v1.delta")) == "v1"


def test_a_delta_that_was_torn_is_refused(run: Path, copy: HostCopy) -> None:
    copy.prepare(str(run / "v0"))
    file = run / "v1.delta" / "changes-0.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(DeltaRefused, match="damaged"):
        copy.prepare(str(run / "v1.delta"))
    (run / "v1.delta" / "delta.json").unlink()
    with pytest.raises(DeltaRefused, match=r"not a delta: FileNotFoundError"):
        copy.prepare(str(run / "v1.delta"))


def test_a_delta_of_a_tensor_that_the_copy_lacks_is_refused(run: Path, copy: HostCopy) -> None:
    safetensors.numpy.save_file({"other": np.zeros(4, np.float16)}, run / "v0" / "model.safetensors")
    copy.prepare(str(run / "v0"))
    with pytest.raises(DeltaRefused, match="has no tensor w"):
        copy.prepare(str(run / "v1.delta"))


def test_a_copy_is_taken_once_and_not_for_a_folder_that_is_written_again(run: Path, copy: HostCopy) -> None:
    prepared(copy, run / "v0")
    assert copy.take(str(run / "v0")) is None
    copy.prepare(str(run / "v1.delta"))
    assert copy.take(str(run / "v0")) is None and copy.take(str(run / "v1.delta")) is None


def test_weights_on_a_disk_that_is_seen_here_need_no_copy(
    run: Path, copy: HostCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        copy.prepare(str(run / "v0"))
    assert copy.take(str(run / "v0")) is None and not list(copy.folder.iterdir())
    with pytest.raises(DeltaRefused, match=r"No space left on device. Set TMPDIR of the server"):
        copy.prepare(str(run / "v1.delta"))
    prepared(copy, run / "v0")
    assert name_in(prepared(copy, run / "v1.delta")) == "v1"


def test_the_copy_of_a_process_that_is_gone_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone, lock = own_folder()
    # As the kernel does for a process that was killed.
    lock.close()
    (first, first_lock), (second, second_lock) = own_folder(), own_folder()
    with first_lock, second_lock:
        assert first.is_dir() and second.is_dir() and not gone.exists()
