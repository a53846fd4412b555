"""Part `throughput`: whole training steps of Qwen3 0.6 B, by tests/benchmarks/gpu_throughput.py."""

import json
import math
import subprocess
import sys

from tests.benchmarks.acceptance.checks import Checks, Setting, end

LEAST_MFU = 0.10
"""Below half of what an H200 reached without flash-attn and Transformer Engine (docs/gpus.md)."""


def work(checks: Checks, setting: Setting) -> None:
    result = setting.folder / "throughput.json"
    advice = "Install flash-attn or Transformer Engine, or see which kernels take the time in throughput.log."
    with checks.row("training steps of Qwen3 0.6 B", advice) as check:
        command = ["tests/benchmarks/gpu_throughput.py", "--model", "0.6b", "--steps", "5"]
        command += ["--json", str(result)]
        code = subprocess.run([sys.executable, *command], check=False).returncode
        # The figures are there before a step is profiled.
        check.require(result.exists(), f"exit code {code} before a figure was known")
        found = json.loads(result.read_text())
        check.figure = (
            f"{found['packed tokens/s, best']:,.0f} packed tokens/s, MFU {found['MFU, best']:.1%}, "
            f"{found['peak memory of rank 0, GiB']:.1f} GiB, attention {found['attention']}, "
            f"Adam {found['Adam']}"
        )
        if code:
            check.figure += f"; the profiled step behind them ended with exit code {code}, see throughput.log"
        is_known = math.isfinite(found["MFU, best"])
        check.require(
            is_known, f"no MFU: the peak of {found['device']} is not known (trainer.peak_teraflops)"
        )
        check.require(found["MFU, best"] >= LEAST_MFU, f"MFU is below {LEAST_MFU:.0%}")


if __name__ == "__main__":
    end(work)
