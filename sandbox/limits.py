"""Limits on one run of a program. Enforced by the kernel; which tier enforces what: doctor.py."""

from dataclasses import dataclass, fields

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds of one run; the defaults let ordinary contest programs pass."""

    cpu_seconds: float = 10.0
    """CPU time of all processes of the run together; one process alone is stopped at
    the next whole second."""
    wall_seconds: float = 20.0
    """Time on the clock, from the program's first instruction to its end."""
    memory_bytes: int = 1024 * MEBIBYTE
    """Address space of each process (less the main stack), and resident memory of all together."""
    stack_bytes: int = 256 * MEBIBYTE
    """Address space added to memory_bytes for the main stack. Other threads have 2 MiB, in warm Python 8."""
    processes: int = 64
    """Processes and threads alive at once."""
    open_files: int = 512
    """Descriptors per process."""
    disk_bytes: int = 128 * MEBIBYTE
    """All files the program writes, together; they live in memory and vanish with the run."""
    output_bytes: int = 16 * MEBIBYTE
    """Standard output, and again standard error; beyond it the run is ended."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1 << 50:
                raise ValueError(f"limit {field.name} is {value!r}; expected a number above 0")
            if not field.name.endswith("_seconds") and not isinstance(value, int):
                raise ValueError(f"limit {field.name} is {value!r}; expected a whole number")


def parse_limits(raw: object, base: Limits) -> Limits:
    """`base` with the fields of the mapping `raw`; `memory_mb`, `disk_mb` and `output_mb` are in mebibytes.

    Raises ValueError for an unknown key or a bad value."""
    if not isinstance(raw, dict):
        raise ValueError(f"limits are {raw!r}; expected an object such as {{'wall_seconds': 5}}")
    values = {field.name: getattr(base, field.name) for field in fields(base)}
    for key, value in raw.items():
        name, scale = key, 1
        if isinstance(key, str) and key.endswith("_mb"):
            name, scale = key.removesuffix("_mb") + "_bytes", MEBIBYTE
        if name not in values:
            raise ValueError(f"limits has the unknown key {key!r}; expected one of {', '.join(values)}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        values[name] = int(value * scale) if scale > 1 and is_number else value
    return Limits(**values)
