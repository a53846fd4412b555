"""What is usually done instead, for contrast: the program and its tests in one subprocess with rlimits, exit
code 0 passes.

Not part of the library. Accepts forged passes by design; the suite of cheats counts how many."""

import contextlib
import os
import resource
import subprocess
import tempfile
from pathlib import Path


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, 1 << 24))


def _run(python: str, source: str, stdin: str) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "program.py"
        path.write_text(source, encoding="utf-8", errors="surrogatepass")
        user = 65534 if os.getuid() == 0 else None
        with subprocess.Popen(
            [python, str(path)], cwd=folder, user=user, preexec_fn=_limit, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                out, _ = process.communicate(stdin.encode(), timeout=3)
            except subprocess.TimeoutExpired:
                out = b""
            finally:
                # The whole session, so that the contrast leaves nothing behind.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
        return process.returncode, out.decode("utf-8", "replace")


def accepts(python: str, source: str, tests: list[dict[str, str]]) -> bool:
    """Whether this grader calls the program correct."""
    asserts = [test["assert"] for test in tests if "assert" in test]
    if asserts:
        code, _ = _run(python, "\n".join([source, *asserts]), "")
        return code == 0
    return all(_run(python, source, test["stdin"])[1].strip() == test["stdout"].strip() for test in tests)
