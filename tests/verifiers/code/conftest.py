"""The cheating programs, and one sandbox for all tests of the code verifier."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.pool import SandboxService
from sandbox.settings import SandboxSettings
from verifiers.code.verifier import CodeVerifier

LIMITS = {"cpu_seconds": 10, "wall_seconds": 20, "memory_mb": 160, "stack_bytes": 64 << 20, "output_mb": 4}
"""A busy machine keeps them."""


def read_cheats() -> dict[str, str]:
    """Name -> source."""
    sections = (Path(__file__).parent / "cheats.txt").read_text().split("\n=== ")[1:]
    return {name: source for name, _, source in (section.partition("\n") for section in sections)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cheat" in metafunc.fixturenames:
        metafunc.parametrize("cheat", list(read_cheats()))


@pytest.fixture(scope="session")
def service() -> Iterator[SandboxService]:
    service = SandboxService(SandboxSettings(workers=2))
    yield service
    service.close()


class Grader:
    """Grades by one shared sandbox; verifiers of other options share it too."""

    def __init__(self, service: SandboxService) -> None:
        self.service = service

    def submit(self, response, tests, **options):
        """A future of the verdict."""
        gold = {key: options.pop(key) for key in ("lang", "checker", "whitespace") if key in options}

        async def work(sandbox):
            verifier = CodeVerifier(sandbox=sandbox, limits=options.pop("limits", LIMITS), **options)
            return await verifier.verify_async(response, verifier.parse_reference({"tests": tests, **gold}))

        return self.service.submit(work)

    def __call__(self, response, tests, **options):
        return self.submit(response, tests, **options).result()


@pytest.fixture(scope="session")
def grade(service: SandboxService) -> Grader:
    return Grader(service)


@pytest.fixture(scope="session")
def submit(service: SandboxService):
    """(response, gold) -> a future of the verdict, with limits that a busy machine keeps."""

    def start(response, gold):
        async def work(sandbox):
            verifier = CodeVerifier(sandbox=sandbox, limits={"wall_seconds": 20, "cpu_seconds": 10})
            return await verifier.verify_async(response, verifier.parse_reference(gold))

        return service.submit(work)

    return start
