"""Plain functions that Python code names as verifiers, good and bad ones."""

from typing import Any


def is_right(response: str, reference: str) -> bool:
    return response == reference


def says_text(response: str, reference: str) -> str:
    return "right"


def raises(response: Any, reference: str) -> Any:
    return response.nowhere
