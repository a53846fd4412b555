"""One file of asyncrl knows the engine's endpoints; the calls themselves run against a real server elsewhere:
test_publication.py, trainer/test_transports.py, end_to_end/."""

import ast
from pathlib import Path

import asyncrl
from asyncrl.serving import sglang

PACKAGE = Path(asyncrl.__file__).parent
ENDPOINTS_FILE = Path(sglang.__file__)


def strings_of(file: Path) -> set[str]:
    """All string literals, parts of f-strings too, except docstrings."""
    tree = ast.parse(file.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    }


def test_no_other_file_names_an_endpoint_of_the_engine() -> None:
    endpoints = {text for text in strings_of(ENDPOINTS_FILE) if text.startswith("/") and " " not in text}
    assert {"/generate", "/pause_generation", "/weights_checker", "/ready"} <= endpoints
    for file in PACKAGE.rglob("*.py"):
        if file != ENDPOINTS_FILE:
            named = {text for text in strings_of(file) for path in endpoints if text.startswith(path)}
            assert not named, f"{file.relative_to(PACKAGE)} names {named}"
