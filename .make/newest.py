"""The trainer's tests on the newest supported Megatron-core, part by part: `make test-newest`.

    python .make/newest.py PASSED [pytest's arguments]

A part is a folder or a file of tests/trainer. One that passed leaves a file in the folder PASSED, and is left
out the next time unless code or tests have changed since: a run that was stopped continues. "--part NAME"
runs one alone. The last line says how many passed.
"""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "trainer"
CODE = ("asyncrl", "tests", "cpu.lock", "pyproject.toml")
NONE_SELECTED = 5
"""pytest's exit code."""


def parts() -> list[str]:
    folders = {path.parent for path in TESTS.glob("*/test_*.py")}
    return sorted(path.relative_to(TESTS).as_posix() for path in (*folders, *TESTS.glob("test_*.py")))


def last_change() -> float:
    places = [ROOT / name for name in CODE]
    files = [file for place in places for file in (place.rglob("*") if place.is_dir() else [place])]
    return max(file.stat().st_mtime for file in files if file.suffix in (".py", ".lock", ".toml", ".jinja"))


def main() -> int:
    passed, *arguments = Path(sys.argv[1]), *sys.argv[2:]
    chosen = parts()
    if "--part" in arguments:
        place = arguments.index("--part")
        chosen = [arguments[place + 1]]
        del arguments[place : place + 2]
    passed.mkdir(parents=True, exist_ok=True)
    changed, failed, num_old = last_change(), [], 0
    for name in chosen:
        mark = passed / name.replace("/", ".")
        if mark.is_file() and mark.stat().st_mtime > changed and not arguments:
            num_old += 1
            continue
        print(f"== {name}", flush=True)
        # They would all be in one process of two (tests/conftest.py).
        command = [sys.executable, "-m", "pytest", "-q"]
        command += ["-m", "not slow and not exhaustive and not gpu", str(TESTS / name), *arguments]
        code = subprocess.run(command, cwd=ROOT).returncode
        if code not in (0, NONE_SELECTED):
            failed.append(name)
        elif not arguments:
            mark.touch()
    outcome = f"failed: {', '.join(failed)}" if failed else "none failed"
    num_passed = len(chosen) - len(failed)
    print(
        f"test-newest: Megatron-core {version('megatron-core')}: {num_passed} of {len(chosen)} parts passed "
        f"({num_old} before), {outcome}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
