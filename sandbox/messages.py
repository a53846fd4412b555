"""Messages between the processes of a sandbox: dictionaries that JSON and marshal can carry.

    host --WorkerSettings, BoxOrder, SessionOrder--> worker --ZygoteSettings--> zygote
                                       worker --BoxSpec--> box

The zygote imports this too, on the program's own Python: standard library only."""

from typing import TypedDict


class LimitFields(TypedDict):
    """command.Limits."""

    cpu_seconds: float
    wall_seconds: float
    memory_bytes: int
    stack_bytes: int
    processes: int
    open_files: int
    disk_bytes: int
    output_bytes: int


class BoxOrder(TypedDict):
    """command.Command without its bytes, which follow as blobs: the standard input, then the files."""

    argv: list[str]
    warm: bool
    environment: dict[str, str]
    files: list[tuple[str, int]]
    """Name and size."""
    collect: list[str]
    limits: LimitFields
    oom_score: int


class BoxSpec(BoxOrder):
    """A box as the worker starts it."""

    max_tasks: int
    """RLIMIT_NPROC, which counts the user's other processes too."""


class SessionOrder(TypedDict):
    """A session, sent to its worker along with WorkerSettings."""

    limits: LimitFields
    """Limits of the session's interpreters together, without one on the clock."""
    call_seconds: float
    total_seconds: float
    excerpt_bytes: int
    """Kept of what a call writes."""
    is_fresh: bool
    """Whether each call has an interpreter of its own."""
    seed: int


class WorkerSettings(TypedDict):
    """Settings of a worker."""

    tier: str
    python: str
    """Path of the programs' interpreter, as the zygote finds it."""
    environment: dict[str, str]
    search: list[str]
    """sys.path of a warm run, after its own directory."""
    binds: list[tuple[str, str]]
    hidden: list[str]
    readable: list[str]
    temporary: str
    """The host's directory for temporary files."""
    preload: list[str]


class ZygoteSettings(WorkerSettings):
    """Settings of a worker, with those that it adds for its zygote."""

    user: int
    """User that programs run as."""
    work_base: str
    """Directory of the runs' own directories; empty in the namespaces tier, which mounts them."""
    control: int
    """Descriptor of the zygote's socket."""
