"""An `nvidia-smi` on the PATH that lists whatever GPUs a test wants."""

from collections.abc import Sequence
from pathlib import Path

from asyncrl.system.gpus import Gpu

H100 = "NVIDIA H100 80GB HBM3"
COMPILERS = ("c++", "nvcc")


def uuid_of(index: int) -> str:
    return f"GPU-{index:08x}-aaaa-bbbb-cccc-0123456789ab"


def row(index: int, *, name: str = H100, memory: str = "81559", mig: str = "Disabled") -> str:
    """A line of the query's CSV, as nvidia-smi prints it."""
    return f"{index}, {uuid_of(index)}, {name}, {memory}, {mig}"


def write_nvidia_smi(folder: Path, rows: Sequence[str], *, exit_code: int = 0, said: str = "") -> Path:
    """FOLDER/nvidia-smi: `rows` for a query, or only `said` where it fails; appends each
    call to FOLDER/calls. Beside it the compilers that a server needs, of which nobody runs any."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows").write_text("".join(f"{line}\n" for line in ([] if exit_code else rows)))
    (folder / "said").write_text(said)
    program = folder / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> "{folder}/calls"\n'
        f'/bin/cat "{folder}/said" >&2\n'
        f'/bin/cat "{folder}/rows"\n'
        f"exit {exit_code}\n"
    )
    for path in (program, *(folder / name for name in COMPILERS)):
        path.touch()
        path.chmod(0o755)
    return program


def whole_gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(number, str(number), H100, 81559) for number in range(count))
