"""The batched CPU attention: the same numbers as SGLang's torch_native, and little padding."""

import pytest

CASES = [
    "decode",
    "decode_one",
    "decode_many_alike",
    "decode_multi_head",
    "decode_one_kv_head",
    "decode_bfloat16",
    "decode_bfloat16_short",
    "decode_bfloat16_3_kv_heads",
    "decode_bfloat16_8_kv_heads",
    "decode_bfloat16_5_kv_heads",
    "decode_bfloat16_buckets",
    "decode_window",
    "extend",
    "extend_on_prefixes",
    "extend_multi_head",
    "extend_bfloat16",
    "extend_window",
]


@pytest.fixture(scope="module")
def differences(compared: dict[str, list[list[str]]]) -> dict[str, float]:
    return {name: float(value) for name, value in compared["compare_backends"]}


@pytest.mark.parametrize("case", CASES)
def test_attention_equals_torch_native(differences, case):
    # bfloat16 carries 8 bits: one unit of a value near 2 is 0.016.
    assert differences[case] <= (0.02 if "bfloat16" in case else 1e-6)


def test_lengths_from_10_to_500_cost_little_padding_and_few_calls(differences):
    assert differences["padded_keys_per_key"] <= 1.2
    assert differences["calls"] <= 12


def test_requests_alike_fill_their_buckets_about_equally(differences):
    assert differences["smallest_bucket_of_alike"] >= 0.9


def test_no_case_is_left_out(differences):
    assert list(differences)[:-3] == CASES
