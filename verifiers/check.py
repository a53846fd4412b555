"""The result of a check of a contract, and the responses and the task that checks try."""

from dataclasses import dataclass

from verifiers.task import Task

HOSTILE_RESPONSES: tuple[str, ...] = (
    "",
    " \n\t ",
    "\x00",
    "\\boxed{\x00}",
    "\\boxed{",
    "\\boxed{}",
    "}" * 10_000,
    "\\boxed{" + "{" * 10_000 + "1" + "}" * 10_000 + "}",
    "\\boxed{" + "9" * 100_000 + "}",
    "\\boxed{9^{9^{9^{9}}}}",
    "\\boxed{((((10000!)!)!)!)}",
    "\\boxed{\\frac{1}{0}}",
    "\\boxed{" + "(" * 500 + "x" + ")" * 500 + "}",
    "\\boxed{__import__('os').system('true')}",
    "\\boxed{" + "a" * 3000 + "!}",
    "<think>" * 1000,
    "</think>" * 1000,
    "\ud800",
    "\u202e\u0000\ufffe\U0010ffff",
    "a" * 1_000_000,
    "{" + '"a":[' * 5000,
    "\\begin{pmatrix}" + "1 & " * 1000 + "\\end{pmatrix}",
)
"""Responses that a policy may produce, by accident or because it pays."""
QUESTION = "What is 6 times 7?"
TASK = Task(QUESTION, ({"role": "user", "content": QUESTION},), {"prompt": QUESTION, "difficulty": 1})
"""The task of all responses, for a verifier that takes it."""


@dataclass(frozen=True, slots=True)
class Check:
    promise: str
    passed: bool
    detail: str = ""
