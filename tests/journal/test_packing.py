"""Numbers as the journal stores them."""

from asyncrl.journal.packing import pack_logprobs, pack_tokens, unpack_logprobs, unpack_tokens


def test_blobs_are_little_endian_and_round_trip() -> None:
    assert pack_tokens([1, 258]) == b"\x01\0\0\0\x02\x01\0\0"
    assert unpack_tokens(pack_tokens([0, 7, 2**31 - 1])) == [0, 7, 2**31 - 1]
    assert unpack_logprobs(pack_logprobs([-0.5, -1.25])) == [-0.5, -1.25]
