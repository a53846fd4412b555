"""A caller with over a thousand open descriptors, as one with as many streams has, still gets verdicts."""

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from sandbox.polling import readable
from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome

NUM_DESCRIPTORS = 1100


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Takes all numbers that select can wait for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < NUM_DESCRIPTORS + 200:
        pytest.skip(f"this machine allows {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, NUM_DESCRIPTORS + 200), hard))
    with contextlib.ExitStack() as stack:
        for _ in range(NUM_DESCRIPTORS):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_pipe_is_readable_once_it_holds_something_or_hung_up():
    out, into = os.pipe()
    assert readable(out, timeout_seconds=0) == []
    os.write(into, b"x")
    assert readable(out, timeout_seconds=0) == [out]
    os.read(out, 1)
    os.close(into)
    assert readable(out, timeout_seconds=0) == [out]
    os.close(out)


@pytest.mark.usefixtures("many_descriptors")
async def test_workers_answer_a_caller_with_a_thousand_descriptors():
    async with VerifierPool() as pool:
        reference = pool.parse_reference("math", {}, "x^2+2x+1")
        math = await pool.verify("math", {}, "\\boxed{(x+1)^2}", reference)
        gold = pool.parse_reference("code", {}, {"tests": [{"call": "f(1)", "expect": "2"}]})
        code = await pool.verify("code", {}, "```python\ndef f(x): return x + 1\n```", gold)
    assert math.outcome is Outcome.CORRECT, math
    assert code.outcome is Outcome.CORRECT, code
