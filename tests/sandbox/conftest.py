"""The suites of programs as parameters, the boxes they run in, and the host's canaries that none
of them may touch."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sandbox.command import Limits, parse_limits
from sandbox.pool import SandboxService
from sandbox.result import Result, Tier
from sandbox.settings import SandboxSettings

NOBODY = 65534
TEST_LIMITS = Limits(cpu_seconds=4, wall_seconds=6, memory_bytes=256 << 20, stack_bytes=64 << 20)
_WORDS = ("status", "tiers", "slow", "exhaustive", "both", "costly")


@dataclass(frozen=True)
class Program:
    """One section of a suite."""

    name: str
    lang: str
    source: str
    limits: Limits
    statuses: tuple[str, ...]
    tiers: tuple[str, ...]
    slow: bool
    exhaustive: bool
    """Another program of the suite does much the same."""
    costly: bool
    """Keeps the cores busy for seconds: slow in further kinds of box than the first two."""
    in_both: bool
    """Typical of its kind: `make test` runs it in each kind of box, and the others in the first."""


def read_programs(suite: str) -> list[Program]:
    """The sections of a suite's file; its head is prose."""
    programs = []
    # What a hostile program waits for is time lost; an honest one may wait for a busy machine.
    limits_of_suite = replace(TEST_LIMITS, wall_seconds=60) if suite == "honest" else TEST_LIMITS
    path = Path(__file__).parent / "programs" / f"{suite}.txt"
    for section in path.read_text().split("\n=== ")[1:]:
        head, _, source = section.partition("\n")
        name, _, rest = head.partition(" [")
        lang, _, words = rest.partition("]")
        pairs = dict(word.split("=") for word in words.split())
        limits = {
            key: float(value) if "." in value else int(value)
            for key, value in pairs.items()
            if key not in _WORDS
        }
        statuses = tuple(filter(None, pairs.get("status", "").split(",")))
        tiers = tuple(filter(None, pairs.get("tiers", "").split(",")))
        programs.append(
            Program(
                name,
                lang,
                source,
                parse_limits(limits, limits_of_suite),
                statuses,
                tiers,
                slow="slow" in pairs,
                exhaustive="exhaustive" in pairs,
                costly="costly" in pairs,
                in_both="both" in pairs or "landlock" in tiers,
            )
        )
    return programs


def pytest_itemcollected(item: pytest.Item) -> None:
    """In further kinds of box a case of a suite or of a table (`name`) is exhaustive unless typical."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    program = params.get("hostile_program") or params.get("honest_program")
    is_case = "name" in params or (program is not None and not program.in_both)
    if is_case and params.get("box", ALL_KINDS_OF_BOX[0]) != ALL_KINDS_OF_BOX[0]:
        item.add_marker(pytest.mark.exhaustive)
    if program is not None and program.costly and params.get("box") not in ALL_KINDS_OF_BOX[:2]:
        item.add_marker(pytest.mark.slow)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for suite in ("hostile", "honest"):
        if f"{suite}_program" in metafunc.fixturenames:
            programs = read_programs(suite)
            parameters = [
                pytest.param(
                    program,
                    id=program.name,
                    marks=[pytest.mark.slow] * program.slow + [pytest.mark.exhaustive] * program.exhaustive,
                )
                for program in programs
            ]
            metafunc.parametrize(f"{suite}_program", parameters)
    if "box" in metafunc.fixturenames:
        metafunc.parametrize("box", kinds_of_box(), indirect=True, scope="session")


ALL_KINDS_OF_BOX = (
    ("me-namespaces", "nobody-landlock", "me-landlock", "nobody-namespaces")
    if os.getuid() == 0
    else ("me-namespaces", "me-landlock")
)
"""Each user in each tier; as root, the first two, which share neither, are typical of all four."""


def kinds_of_box() -> list[object]:
    """As parameters."""
    further = [pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ALL_KINDS_OF_BOX[2:]]
    return [*ALL_KINDS_OF_BOX[:2], *further]


def public_python() -> str | None:
    """An interpreter that every user can execute, and that can run this code."""
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        return None
    code = "import sys; sys.exit(sys.version_info < (3, 11))"
    for path in ("/usr/bin/python3", "/usr/local/bin/python3", sys.executable):
        argv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", path, "-c", code]
        if os.getuid() != 0:
            argv = [path, "-c", code]
        if os.path.exists(path) and subprocess.run(argv, capture_output=True, cwd="/").returncode == 0:
            return path
    return None


@dataclass(frozen=True)
class Box:
    """A sandbox under test."""

    services: tuple[SandboxService, ...]
    """One worker each: what a program leaves behind, the next one finds."""
    tier: Tier
    user: str

    def run(
        self, source: str | bytes, *, lang: str = "python", limits: Limits = TEST_LIMITS, **changes: object
    ) -> Result:
        """Builds and runs one program."""
        from dataclasses import replace

        async def work(sandbox):  # type: ignore[no-untyped-def]
            built = await sandbox.build(
                source, lang=lang, limits=limits, fresh=bool(changes.pop("fresh", False))
            )
            return built if isinstance(built, Result) else await sandbox.run(replace(built, **changes))

        return self.services[0].call(work)


def settings_for(user: str, tier: Tier, folder: Path) -> SandboxSettings:
    """A pool whose workers are started as `user`; skips where the machine has no interpreter for that."""
    base = SandboxSettings(workers=1, tiers=(tier,))
    if user == "me" and not (tier is Tier.LANDLOCK and os.getuid() == 0):
        return base
    python = public_python()
    if python is None:
        pytest.skip("no Python >= 3.11 that an unprivileged user may execute, or no setpriv to become one")
    shutil.copytree(Path(__file__).parents[2] / "sandbox", folder / "sandbox", dirs_exist_ok=True)
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from sandbox.worker import main; main()"
    command = (python, "-I", "-S", "-c", code)
    if user == "nobody":
        command = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command)
    from dataclasses import replace

    return replace(base, python=python, packages=(), command=command)


@pytest.fixture(scope="session")
def public_folder() -> Iterator[Path]:
    """A directory that every user can read."""
    folder = Path(tempfile.mkdtemp(prefix="sandbox-tests-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def box(request: pytest.FixtureRequest, public_folder: Path) -> Iterator[Box]:
    user, _, name = request.param.partition("-")
    tier = Tier(name)
    settings = settings_for(user, tier, public_folder)
    services = tuple(SandboxService(settings) for _ in range(2))

    async def start(sandbox):  # type: ignore[no-untyped-def]
        await sandbox.start()
        return sandbox.tier, sandbox.reasons

    for service in services:
        found, reasons = service.call(start)
    if found is None:
        pytest.skip(f"this machine has no {name} for {user}: {reasons}")
    yield Box(services, tier, user)
    for service in services:
        service.close()


@pytest.fixture(scope="module")
def service() -> Iterator[SandboxService]:
    """One worker in the best tier, for tests that kill none of its processes."""
    service = SandboxService(SandboxSettings(workers=1))
    yield service
    service.close()


async def run_all(sandbox, programs, fill_in):  # type: ignore[no-untyped-def]
    """Name -> (result, the result of an honest run right after it), one after the other."""
    results = {}
    for program in programs:
        built = await sandbox.build(fill_in(program.source), lang=program.lang, limits=program.limits)
        result = built if isinstance(built, Result) else await sandbox.run(built)
        after = await sandbox.build("print(sorted([2, 1]), len('abc'))", lang="python", limits=TEST_LIMITS)
        results[program.name] = (result, await sandbox.run(after))
    return results


@pytest.fixture(scope="session")
def hostile_results(
    request: pytest.FixtureRequest, box: Box, canaries: "Canaries"
) -> dict[str, tuple[Result, Result]]:
    """The selected programs of the suite, run in this box by two workers side by side."""
    every = [getattr(getattr(item, "callspec", None), "params", {}) for item in request.session.items]
    kind = f"{box.user}-{box.tier.value}"
    names = {
        params["hostile_program"].name
        for params in every
        if "hostile_program" in params and params["box"] == kind
    }
    programs = [
        program
        for program in read_programs("hostile")
        if program.name in names and (not program.tiers or box.tier.value in program.tiers)
    ]
    half = len(programs) // 2
    shares = (programs[:half], programs[half:])
    futures = [
        service.submit(lambda sandbox, share=share: run_all(sandbox, share, canaries.fill_in))
        for service, share in zip(box.services, shares, strict=True)
    ]
    return {name: pair for future in futures for name, pair in future.result().items()}


class Canaries:
    """Things of the host within reach of a program that is not confined."""

    secret = "canary-secret-5c1d"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o777)
        self.file = folder / "secret"
        self.file.write_text(self.secret)
        user = NOBODY if os.getuid() == 0 else os.getuid()
        if os.getuid() == 0:
            os.chown(self.file, NOBODY, NOBODY)
        self.file.chmod(0o644)
        self.process = subprocess.Popen(["sleep", "3600"], user=user)
        self.abstract = f"sandbox-canary-{os.getpid()}"
        self.sockets = [socket.create_server(("127.0.0.1", 0))]
        self.port = self.sockets[0].getsockname()[1]
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", self.port))
        self.datagrams = [udp, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)]
        self.datagrams[1].bind(str(folder / "datagrams"))
        for address in (f"\0{self.abstract}", str(folder / "socket")):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen()
            self.sockets.append(listener)
        for name in ("socket", "datagrams"):
            (folder / name).chmod(0o777)
        for sock in (*self.sockets, *self.datagrams):
            sock.setblocking(False)
        self._before = self._look()

    def _look(self) -> tuple[object, ...]:
        status = self.file.stat()
        return (
            sorted(os.listdir(self.folder)),
            status.st_mode,
            status.st_mtime_ns,
            stat.S_IMODE(self.folder.stat().st_mode),
        )

    def fill_in(self, source: str) -> str:
        """The program with the canaries' names."""
        for name, value in (
            ("FILE", self.file),
            ("DIR", self.folder),
            ("PID", self.process.pid),
            ("PORT", self.port),
            ("ABSTRACT", self.abstract),
        ):
            source = source.replace(f"@CANARY_{name}@", str(value))
        return source

    def assert_untouched(self) -> None:
        """Nothing was read from, written to, sent to or killed."""
        assert self._look() == self._before
        assert self.file.read_text() == self.secret
        assert self.process.poll() is None
        assert os.getpriority(os.PRIO_PROCESS, self.process.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        for sock in self.sockets:
            with pytest.raises(BlockingIOError):
                sock.accept()[0].close()
        for sock in self.datagrams:
            with pytest.raises(BlockingIOError):
                sock.recv(1)

    def close(self) -> None:
        """Takes the canaries away."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for sock in (*self.sockets, *self.datagrams):
            sock.close()


@pytest.fixture(scope="session")
def canaries() -> Iterator[Canaries]:
    folder = Path(tempfile.mkdtemp(prefix="sandbox-canaries-"))
    os.environ["SANDBOX_CANARY"] = Canaries.secret
    found = Canaries(folder)
    yield found
    found.close()
    del os.environ["SANDBOX_CANARY"]
    shutil.rmtree(folder)
