"""The batched CPU attention: the same numbers as SGLang's torch_native, and little padding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.serving.engine.environment import engine_environment

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


def run_with_server_environment(*arguments: str) -> str:
    """Output of this Python in a process that may import SGLang without a GPU."""
    environment = os.environ | engine_environment(threads=1, has_gpu=False)
    process = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    output = run_with_server_environment(str(Path(__file__).with_name("compare_backends.py")))
    return {name: float(value) for name, value in (line.split() for line in output.splitlines())}


@pytest.mark.parametrize("case", CASES)
def test_attention_equals_torch_native(differences, case):
    # bfloat16 carries 8 bits: one unit of a value near 2 is 0.016.
    assert differences[case] <= (0.02 if "bfloat16" in case else 1e-6)


def test_lengths_from_10_to_500_cost_little_padding_and_few_calls(differences):
    assert differences["padded_keys_per_key"] <= 1.2
    assert differences["calls"] <= 12


def test_no_case_is_left_out(differences):
    assert list(differences)[:-2] == CASES
