"""A trainer's start imports Megatron without W&B and without torch's compiler, and leaves both to others."""

import subprocess
import sys

CODE = """
import sys, torch
from asyncrl.trainer.ranks.megatron_import import import_megatron
before = torch.compile
import_megatron()
heavy = ("wandb", "torch._dynamo", "torch._inductor.compile_fx", "sglang", "transformers", "ray")
print([name for name in heavy if name in sys.modules], torch.compile is before)
"""


def test_neither_trackers_nor_the_compiler_are_imported_with_megatron() -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True, check=False
    )
    assert found.stdout == "[] True\n", found.stderr
