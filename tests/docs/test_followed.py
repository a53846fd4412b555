"""The README followed to the letter in a fresh clone: each command in its order, and docs/init.md's.

Set-up is make's own where the caller's environment names TORCH_INDEX, which make reads. Elsewhere the clone's
.venv sees the packages of this environment. Commands come from the page: a new one is followed, too.
"""

import os
import re
import shlex
import signal
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from fakes.shown_commands import ROOT, blocks, shown_commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

NAME = "r1_zero_arithmetic_cpu"
STANDS_FOR = {
    "RUN": f"runs/{NAME}",
    "A": f"runs/{NAME}",
    "B": f"runs/{NAME}",
    "STEP": "12",
    "NAME": "exact",
    "RECIPE": f"recipes/{NAME}.yaml",
    "RECIPE=path": f"RECIPE=recipes/{NAME}.yaml",
}
"""Words that a reader replaces."""
CHANGED = "make train RECIPE=path 'ARGS=rollout.max_staleness=0 trainer.num_steps=20'"
FOLLOWED_BELOW = ("make train", "asyncrl view runs", "asyncrl init")
LEFT_OUT = {
    "make test": "runs these tests",
    "make setup": "installs packages of another kind; CI begins with it",
    "make docs": "installs packages: tests/docs/test_site.py builds it",
    "make gpu-check": "needs a GPU; tests/measuring rehearses it",
    "make train RECIPE=recipes/r1_zero_smollm2_cpu.yaml": "takes minutes: tests/end_to_end/test_smollm2.py",
    "make train RECIPE=recipes/r1_zero_tool_cpu.yaml": "takes minutes: tests/end_to_end/test_turns.py",
    "make train RECIPE=recipes/r1_zero_grow_cpu.yaml": "takes half an hour: docs/measurements/learning.md",
    "make train RECIPE=recipes/r1_zero_math_qwen3.yaml": "needs a GPU",
    "asyncrl check recipes/r1_zero_math_qwen3.yaml": "fetches a model from a hub",
    "asyncrl plan recipes/r1_zero_math_qwen3.yaml --simulate": "fetches a model from a hub",
    "asyncrl select": "needs a file to write: tests/commands/test_select.py",
    **dict.fromkeys(("nvidia-smi", "git clone URL asyncrl", "cd asyncrl", "source .venv/bin/activate"), ""),
}
INSTEAD = {
    "asyncrl eval RUN gsm8k --at base,last": "asyncrl eval RUN heldout --at last",
    "asyncrl difficulty RECIPE": "asyncrl difficulty RUN",
}
"""No hub is asked, and what the run measured stands for sampling every row."""
TYPED = {"asyncrl chat RUN": "123+456=\n"}
"""Command -> what is typed into it."""
SAID = {
    CHANGED: "set run_folder (or name)",
    "asyncrl keys": "## rollout",
    "asyncrl keys rollout.interrupt": "default continue",
    "asyncrl check RECIPE": "(complete, ended by trainer.num_steps, at step 40)",
    "asyncrl prompt RECIPE --row 3": "stops at   <eos> (1), or after 60 tokens",
    "asyncrl sandbox doctor": "yes  ",
    "asyncrl eval RUN heldout --at last": "step 40",
    "asyncrl chat RUN": r"\boxed{",
    "asyncrl status RUN": "state     finished",
    "asyncrl compare A B": "Name two different runs",
    "asyncrl report RUN": "report.json: finished, 40 steps",
    "asyncrl reproduce RUN STEP": "step 12 is identical to the last digit",
    "asyncrl journal RUN": "Every generated token is accounted for.",
    "asyncrl difficulty RUN": "has the column pass_rate",
    "asyncrl audit RUN --verifier NAME": "95% intervals, tasks as the unit",
    "asyncrl doctor": " broken",
    "asyncrl algorithms": "clipped_value_loss",
    "asyncrl verify-data RECIPE": "false positives  0 of ",
}
"""A part of what each command that is followed says."""
REFUSED = (CHANGED, "asyncrl compare A B")
"""The only run that is there already has other values, and is no two runs."""
ANY = re.compile(r"[\d.:/%kMe+-]*\d[\d.:/%kMe+-]*( s\b)?|(?<= )-(?= )")


def followed() -> list[str]:
    """Commands of the README in its order, each once."""
    shown = [each for each in shown_commands() if each.place.startswith("README.md:")]
    shown.sort(key=lambda each: int(each.place.partition(":")[2]))
    lines = dict.fromkeys(shlex.join(each.words) for each in shown)
    is_left_out = lambda line: line in LEFT_OUT or line.startswith("make setup ")  # noqa: E731
    return [INSTEAD.get(line, line) for line in lines if not is_left_out(line)]


class Clone:
    """A fresh clone of this repository, with its environment."""

    def __init__(self, folder: Path) -> None:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        self.folder = folder
        without = ("VIRTUAL_ENV", "PYTHONPATH", "ASYNCRL_SEED")
        self._environment = {name: text for name, text in os.environ.items() if name not in without}
        if "TORCH_INDEX" not in os.environ:
            self._link_packages()

    def _link_packages(self) -> None:
        place = self.folder / ".venv"
        venv.create(place, symlinks=True)
        (site,) = place.glob("lib/python*/site-packages")
        # .pth files in there are not read: an editable asyncrl is not seen.
        (site / "others.pth").write_text(f"{self.folder}\n{sysconfig.get_path('purelib')}\n")
        program = place / "bin" / "asyncrl"
        call = "import sys\nfrom asyncrl.commands.main import main\nsys.exit(main())\n"
        program.write_text(f"#!{place}/bin/python\n{call}")
        program.chmod(0o755)
        (place / ".ready").touch()

    def start(self, line: str, *, stdin: int | None = None) -> "subprocess.Popen[str]":
        """A line that a reader types, in a shell of its own whose environment is active as the README has
        it."""
        script = line if line.startswith("make") else f"source .venv/bin/activate && {line}"
        return subprocess.Popen(
            ["bash", "-c", script], cwd=self.folder, env=self._environment, text=True,
            stdin=stdin, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def run(self, line: str, typed: str = "") -> tuple[int, str]:
        """The exit code of a command, and all that it said."""
        words = shlex.join(STANDS_FOR.get(word, word) for word in shlex.split(line))
        with self.start(words, stdin=subprocess.PIPE) as process:
            said, _ = process.communicate(typed, timeout=1200)
        return process.returncode, said


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone(tmp_path_factory.mktemp("followed") / "asyncrl")


@pytest.fixture(scope="module")
def trained(clone: Clone) -> str:
    """All that `make train` says."""
    code, said = clone.run("make train")
    assert code == 0, said
    return said


def shape(line: str) -> str:
    """The line without its numbers, bars and spaces, which are the run's."""
    return " ".join(re.sub(r"[█▉▊▋▌▍▎▏]", " ", ANY.sub("#", line)).split())


def test_the_run_looks_as_the_readme_shows_it(clone: Clone, trained: str) -> None:
    (sample,) = (block.text for block in blocks("") if block.page == "README.md" and "1/40" in block.text)
    lines = [line for line in sample.splitlines() if line.strip() != "..."]
    seen = trained.splitlines()
    assert [line for line in lines[:2] if line not in seen] == []
    assert {shape(line) for line in lines} - {shape(line) for line in seen} == set()
    before, after = (int(found[1]) for found in re.finditer(r"held-out \w+ training: greedy (\d+)%", trained))
    assert after > before + 30
    for path in re.findall(r"^(?:report|curves) +(\S+)$", trained, re.MULTILINE):
        assert (clone.folder / path).is_file()


@pytest.mark.parametrize("line", [line for line in followed() if line not in FOLLOWED_BELOW])
def test_a_command_of_the_readme_works_on_that_run(clone: Clone, trained: str, line: str) -> None:
    code, said = clone.run(line, TYPED.get(line, ""))
    assert (code == 0) == (line not in REFUSED), said
    assert SAID[line] in said and "Traceback" not in said, said


def test_the_page_of_the_runs_is_served_until_ctrl_c(clone: Clone, trained: str) -> None:
    with clone.start("asyncrl view runs") as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert re.match(r"http://127\.0\.0\.1:\d+/?\S*  \(Ctrl-C to stop\)", said), said
        os.killpg(process.pid, signal.SIGINT)
        assert "Traceback" not in process.stdout.read()
    assert process.returncode == 0


def test_a_first_recipe_is_written_and_checked_as_the_page_about_it_says(clone: Clone) -> None:
    (block,) = (block for block in blocks("bash") if block.page == "docs/init.md")
    write, train = block.text.splitlines()
    assert write == "asyncrl init first && cd first" and train.startswith("asyncrl train recipe.yaml ")
    with clone.start(f"{write} && asyncrl check recipe.yaml") as process:
        said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
