"""Options of servers: only those that leave tokens, log-probs, versions and weights alone are taken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.sections.serving import Serving
from asyncrl.recipe.server_options import ALLOWED, KEYS, REFUSED, refuse_options
from asyncrl.serving.engine.environment import CPU_PATH

RECIPE = "name: t\nmodel: {path: m}\ndata: {train: d.jsonl, heldout: h.jsonl}\n"


def test_options_for_memory_kernels_and_logs_are_taken_with_their_values() -> None:
    given = ["--mem-fraction-static", "0.3", "--attention-backend=fa3", "--disable-cuda-graph"]
    assert Serving(extra_arguments=given).extra_arguments == given


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--speculative-algorithm", "EAGLE"], "one token per pass"),
        (
            ["--log-level=debug", "--speculative-num-steps=3"],
            "--speculative-num-steps: .* one token",
        ),
        (["--enable-symm-mem"], "NCCL's switches"),
        (["--enable-nccl-nvls"], "NCCL's switches"),
        (["--moe-a2a-backend", "deepep"], "NCCL's switches"),
        (["--base-gpu-id", "1"], "set placement.servers"),
        (["--gpu-id-step=2"], "set placement.servers"),
        (["--max-total-tokens", "9"], "set serving.max_total_tokens"),
        (["--tp-size", "2"], "set serving.tensor_parallel_size"),
        (["--chunked-prefil-size", "9"], "Did you mean --chunked-prefill-size"),
        (["--enable-lora"], "not known to be safe for tokens and weights"),
        # SGLang takes the beginning of an option for the option.
        (["--spec", "EAGLE"], "not known to be safe for tokens"),
        (["1"], "expected an option"),
    ],
)
def test_others_are_refused_with_the_reason(tmp_path: Path, options: list[str], said: str) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(InputError, match=said):
        load_recipe(tmp_path / "recipe.yaml", [f"serving.extra_arguments={options}"])


def test_no_allowed_option_is_refused_or_set_by_a_key() -> None:
    refuse_options(sorted(ALLOWED))
    assert not ALLOWED & KEYS.keys()
    assert not [option for option in ALLOWED for beginning in REFUSED if option.startswith(beginning)]


@pytest.mark.exhaustive
def test_the_installed_sglang_has_every_option_that_is_named() -> None:
    environment = os.environ | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "PYTHONPATH": str(CPU_PATH),
    }
    command = [sys.executable, "-m", "sglang.launch_server", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    for option in (*ALLOWED, *KEYS, *REFUSED):
        assert option in done.stdout, option
