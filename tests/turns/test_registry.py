"""The four ways to name an environment."""

from pathlib import Path

import pytest

from asyncrl.turns.environment import Recovery
from asyncrl.turns.registry import load_environment

OWN = """
from asyncrl.turns import End

class Once:
    recovery = "stateless"
    def __init__(self, *, score=1.0, **others): self.score = score
    def start(self, row): return None
    def step(self, text): return End(self.score)

class Broken(Once):
    def __init__(self): raise RuntimeError("no such table")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def test_an_environment_of_a_file_is_built_with_its_options(folder: Path) -> None:
    environment = load_environment("./own.py:Once", {"score": 0.5, "any": 3}, folder=folder)
    assert environment.step("").score == 0.5  # type: ignore[union-attr]
    assert environment.recovery is not None and Recovery(environment.recovery)  # type: ignore[attr-defined]


def test_an_environment_of_a_module_is_loaded_by_its_dotted_name() -> None:
    assert load_environment("fakes.echo_environment:Echo").start({}) is None


def test_an_environment_of_an_installed_package_is_loaded_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "games-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: games\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[asyncrl.environments]\ngame = fakes.echo_environment:Echo\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_environment("game").start({}) is None
    with pytest.raises(ValueError, match="no environment 'gane'. Did you mean 'game'"):
        load_environment("gane")


def test_what_an_environment_raises_while_it_is_built_is_its_own(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="no such table"):
        load_environment("./own.py:Broken", folder=folder)
