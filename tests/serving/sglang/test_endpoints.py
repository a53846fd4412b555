"""One package of asyncrl knows the engine's endpoints; the calls themselves run against a real server
elsewhere: serving/engine/, trainer/publishing/test_transports.py, end_to_end/."""

import ast
from pathlib import Path

import asyncrl
from asyncrl.serving import sglang

PACKAGE = Path(asyncrl.__file__).parent
ENDPOINTS_FOLDER = Path(sglang.__file__).parent


def strings_of(file: Path) -> set[str]:
    """All string literals, parts of f-strings too, except docstrings."""
    tree = ast.parse(file.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    }


def test_no_other_package_names_an_endpoint_of_the_engine() -> None:
    strings = set().union(*(strings_of(file) for file in ENDPOINTS_FOLDER.glob("*.py")))
    endpoints = {text for text in strings if text.startswith("/") and " " not in text}
    assert {"/generate", "/pause_generation", "/weights_checker", "/ready"} <= endpoints
    for file in PACKAGE.rglob("*.py"):
        if file.parent != ENDPOINTS_FOLDER:
            named = {text for text in strings_of(file) for path in endpoints if text.startswith(path)}
            assert not named, f"{file.relative_to(PACKAGE)} names {named}"
