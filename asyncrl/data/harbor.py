"""Task folders of Harbor (github.com/harbor-framework/harbor, 0.26) as rows for the environment container.

A task is a folder with task.toml, instruction.md, environment/ and tests/test.sh. Its image is
`environment.docker_image`, else the one that a command of ours names (`podman build`). A trajectory that is
cut off before it hands in is wrong: the gold is a pattern that no answer matches.
"""

import base64
import shlex
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

from asyncrl.errors import InputError

CONFIG, INSTRUCTION, TESTS = "task.toml", "instruction.md", "tests/test.sh"
REWARD_FILE = "/logs/verifier/reward.txt"
NEVER = "(?!)"
"""A regular expression that matches nothing."""


def task_folders(folder: Path) -> list[Path]:
    """The tasks of a folder: itself, or those directly inside of it, by name."""
    if (folder / CONFIG).is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))


def harbor_row(folder: Path) -> dict[str, Any]:
    """The row of a task. Raises InputError for one that cannot be run."""
    try:
        config = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
        instruction = (folder / INSTRUCTION).read_text(encoding="utf-8")
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{folder} is a task of Harbor that cannot be read: {error}") from error
    environment = config.get("environment") or {}
    refused = _refused(folder, config, environment)
    if refused:
        raise InputError(f"{folder} is a task of Harbor {refused}. Leave it out.")
    image = environment.get("docker_image")
    build = ""
    if not image:
        image = f"asyncrl-harbor/{folder.name.lower()}"
        build = f"podman build -t {image} {shlex.quote(str(folder / 'environment'))}"
    return {
        "prompt": [{"role": "user", "content": instruction}],
        "answer": NEVER,
        "verifier": "regex",
        "environment": "container",
        "image": image,
        "build": build,
        "folder": environment.get("workdir"),
        "setup": f"mkdir -p {PurePosixPath(REWARD_FILE).parent} /logs/agent",
        "tests": {
            "command": f"rm -f {REWARD_FILE}; bash /{TESTS}",
            "files": {
                f"/{path.relative_to(folder)}": _packed(path)
                for path in sorted((folder / "tests").rglob("*"))
                if path.is_file()
            },
            "reward_file": REWARD_FILE,
            # They look at all of the container as the agent left it.
            "same_box": True,
        },
        "metadata": config.get("metadata") or {},
    }


def _packed(path: Path) -> str | dict[str, str]:
    content = path.read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _refused(folder: Path, config: dict[str, Any], environment: dict[str, Any]) -> str:
    """Words for a part of it that is not built; empty where it can be run."""
    if config.get("steps"):
        return "with several steps (steps in task.toml), and a trajectory has one task"
    if not (folder / TESTS).is_file():
        return f"without {TESTS}, which judges it"
    if str(environment.get("os") or "linux").lower() != "linux":
        return f"for {environment['os']} (environment.os), expected linux"
    if environment.get("gpus") or environment.get("tpu"):
        return "that asks for accelerators (environment.gpus, environment.tpu)"
    if any((folder / "environment").glob("docker-compose.y*ml")):
        return "of several containers (docker-compose.yaml)"
    if not environment.get("docker_image") and not (folder / "environment" / "Dockerfile").is_file():
        return "without an image (environment.docker_image, or environment/Dockerfile)"
    verifier = config.get("verifier") or {}
    if verifier.get("environment") or verifier.get("environment_mode") == "separate":
        return "whose tests have a container of their own (verifier.environment_mode)"
    return ""
