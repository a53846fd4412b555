"""The Slurm script of docs/ray.md, with stand-ins for Slurm's programs."""

import os
import re
import subprocess
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "ray.md"


def test_the_slurm_script_starts_ray_on_every_node_and_the_run_on_the_first(tmp_path: Path) -> None:
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "job.sh").write_text(script)
    subprocess.run(["bash", "-n", tmp_path / "job.sh"], check=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "scontrol").write_text('#!/bin/sh\n[ "$3" = "n[1-4]" ] && echo n1 && echo n2\n')
    (programs / "srun").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    slurm = {"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_NNODES": "4", "PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-eu", "job.sh"], cwd=tmp_path, env={**os.environ, **slurm}, check=True)
    assert (tmp_path / "calls").read_text() == (
        "--no-kill --cpu-bind=none "
        "ray symmetric-run --address n1:6379 --min-nodes 4 --disable-usage-stats -- "
        "asyncrl train recipe.yaml cluster.backend=ray cluster.address=n1:6379\n"
    )
