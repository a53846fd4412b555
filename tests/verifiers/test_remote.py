"""The remote verifier against a real HTTP server, and the strict JSON it reads: each failure is a fault."""

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.pool import VerifierPool
from verifiers.registry import load_verifier
from verifiers.remote import read_verdict
from verifiers.storable import storable_verdict
from verifiers.strict_json import flaw_in, loads, loads_with_flaws
from verifiers.task import Task
from verifiers.verdict import MAX_SHAPING, Outcome, Verdict


class Server(ThreadingHTTPServer):
    """Answers by a script: each item is (status, body); the last one is repeated."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[tuple[int, bytes]] = []
        self.requests: list[dict[str, Any]] = []
        self.held = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(size))
        self.server.requests.append({**body, "authorization": self.headers.get("Authorization")})
        status, reply = self.server.script[min(len(self.server.requests), len(self.server.script)) - 1]
        if status == 0:
            self.server.held.wait(10)
            return
        self._answer(status, reply)

    def do_GET(self) -> None:
        self.server.requests.append({"path": self.path})
        self._answer(*self.server.script[-1])

    def _answer(self, status: int, reply: bytes) -> None:
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.held.set()
        running.shutdown()
        thread.join()


def ask(server: Server, *script: tuple[int, bytes], response: str = "hi", **options: Any) -> Verdict:
    server.script = list(script)
    url = f"http://127.0.0.1:{server.server_port}/verify"
    verifier = load_verifier("remote", {"url": url, "backoff_seconds": 0, "timeout_seconds": 5, **options})
    return verifier.verify(response, verifier.parse_reference({"gold": 1}))


CORRECT = (200, b'{"outcome": "correct", "score": 0.9, "extracted": "hi", "detail": "fine", "shaping": -0.1}')


def test_the_servers_verdict_is_taken_over(server: Server) -> None:
    found = ask(server, CORRECT, token="secret")
    assert (found.outcome.value, found.score, found.extracted, found.shaping) == ("correct", 0.9, "hi", -0.1)
    task = {"prompt": "", "messages": [], "row": {}, "turns": [], "observations": []}
    sent = {"response": "hi", "reference": {"gold": 1}, "task": task, "authorization": "Bearer secret"}
    assert server.requests == [sent]
    assert ask(server, (200, b'{"outcome": "wrong"}')).score == 0.0


async def test_the_task_is_sent_unless_the_recipe_leaves_it_out(server: Server) -> None:
    server.script = [CORRECT]
    options = {"url": f"http://127.0.0.1:{server.server_port}/"}
    asked, answer = {"role": "user", "content": "Play."}, {"role": "user", "content": "You lost."}
    task = Task("Play.", (asked,), {"seed": 3}, ("rock", "paper"), ((answer,),))
    async with VerifierPool(1) as pool:
        await pool.verify("remote", options, "paper", None, task=lambda: task)
        await pool.verify("remote", {**options, "sends_task": False}, "paper", None, task=lambda: task)
    assert server.requests[0]["task"] == {
        "prompt": "Play.",
        "messages": [asked],
        "row": {"seed": 3},
        "turns": ["rock", "paper"],
        "observations": [[answer]],
    }
    assert "task" not in server.requests[1]


def test_a_failure_that_may_pass_is_tried_again(server: Server) -> None:
    assert ask(server, (503, b""), (200, b"not json"), CORRECT).outcome.value == "correct"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "reply",
    [
        (500, b""), (200, b"not json"), (200, b"[]"), (200, b'{"outcome": "great"}'),
        (200, b'{"outcome": "correct", "score": 7}'), (200, b'{"outcome": "wrong", "score": "high"}'),
        (200, b'{"outcome": "fault", "detail": "out of order"}'),
        (200, b'{"outcome": "correct", "score": NaN}'),
    ],
)  # fmt: skip
def test_a_server_that_keeps_failing_is_a_fault(server: Server, reply: tuple[int, bytes]) -> None:
    found = ask(server, reply, attempts=2)
    assert (found.outcome.value, found.score) == ("fault", None)


MALFORMED = [
    # tests/verifiers/test_verdict.py has each field, the tests of strict JSON below each way not to be JSON.
    (b'"score": true', "score is True"),
    (b'"shaping": 1e300', "shaping is 1e+300, expected a number in [-1e+06, 1e+06]"),
    (b'"shaping": Infinity', "Infinity is not JSON"),
    (b'"shaping": ' + b"[" * 900 + b"]" * 900, "shaping is [["),
    (b'"detail": {"a": 1}', "detail is {'a': 1}, expected text"),
    (b'"extracted": 42', "extracted is 42, expected text"),
    (b'"shapping": 0.5', "unknown key 'shapping', expected outcome, score, extracted, detail, shaping"),
    (b'"spans": [[3, 0, 0.5]]', "whose end is not behind its first character"),
    (b'"turn_rewards": [1e300]', "turn_rewards[0] is 1e+300"),
    (b'"scores": {"a": "1"}', "scores['a'] is '1'"),
    (b'"score": 0', "outcome is correct but score is 0"),
    (b'"detail": "\xff"', "UnicodeDecodeError"),
]


@pytest.mark.parametrize(("fields", "reason"), MALFORMED, ids=[reason for _, reason in MALFORMED])
def test_a_malformed_verdict_is_a_fault_with_the_reason(server: Server, fields: bytes, reason: str) -> None:
    found = ask(server, (200, b'{"outcome": "correct", ' + fields + b"}"), attempts=1)
    assert found.outcome.value == "fault" and reason in found.detail, found.detail
    assert len(found.detail) <= 1000


def test_null_stands_for_what_is_left_out() -> None:
    found = read_verdict(
        b'{"outcome": "correct", "score": null, "extracted": null, "detail": null, "shaping": null, '
        b'"turn_rewards": null, "spans": null, "scores": null}'
    )
    assert found == Verdict(Outcome.CORRECT, 1.0)


def test_named_scores_arrive() -> None:
    found = read_verdict(b'{"outcome": "wrong", "scores": {"format": 1, "right": 0.25}}')
    assert found.scores == {"format": 1.0, "right": 0.25}


def test_rewards_of_turns_and_spans_arrive() -> None:
    found = read_verdict(
        b'{"outcome": "wrong", "turn_rewards": [0, 0.5], "spans": [[0, 4, -1], [4, 9, 0.25]]}'
    )
    assert (found.turn_rewards, found.spans) == ((0.0, 0.5), ((0, 4, -1.0), (4, 9, 0.25)))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**300, 10**320)
    | st.floats()
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["outcome", "score", "extracted", "detail", "shaping", "turn_rewards", "spans", "scores"]
)
REPLIES = st.fixed_dictionaries(
    {"outcome": st.sampled_from([*Outcome]) | JSON},
    optional={key: JSON for key in ("score", "detail", "shaping", "turn_rewards", "spans", "scores")},
) | st.dictionaries(KEYS, JSON)


@given(REPLIES.map(json.dumps).map(str.encode) | st.binary() | JSON.map(json.dumps).map(str.encode))
def test_every_reply_is_a_verdict_in_range_or_refused(body: bytes) -> None:
    try:
        found = read_verdict(body)
    except ValueError as error:
        assert str(error)
        return
    assert (found.score is None) == (found.outcome is Outcome.FAULT)
    numbers = [*(found.turn_rewards or ()), *(reward for _, _, reward in found.spans)]
    numbers += [*found.scores.values(), found.shaping, *([] if found.score is None else [found.score])]
    assert all(type(number) is float and math.isfinite(number) for number in numbers)
    assert abs(found.shaping) <= MAX_SHAPING and 0 <= (found.score or 0) <= 1
    assert storable_verdict(found) == found


def test_a_refusal_is_a_fault_at_once(server: Server) -> None:
    assert "status 401" in ask(server, (401, b""), attempts=5).detail
    assert len(server.requests) == 1


def test_a_reply_that_does_not_end_is_a_fault(server: Server) -> None:
    found = ask(server, (200, b" " * 1_000_001), attempts=1)
    assert found.outcome.value == "fault" and "more than 1000000 bytes" in found.detail


def test_the_verdict_may_be_fetched_elsewhere_but_the_response_is_not_sent_there(server: Server) -> None:
    assert ask(server, (303, b""), CORRECT).outcome.value == "correct"
    assert server.requests[1] == {"path": "/elsewhere"}
    for status in (307, 308):
        server.requests.clear()
        assert f"status {status}" in ask(server, (status, b""), CORRECT, attempts=3).detail
        assert len(server.requests) == 1


def test_a_proxy_of_the_environment_is_used_but_for_the_hosts_that_it_excepts(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    server.script = [CORRECT]
    options = {"url": "http://grader.invalid/verify", "attempts": 1}
    assert load_verifier("remote", options).verify("hi", None).outcome.value == "correct"
    monkeypatch.setenv("no_proxy", "grader.invalid")
    assert load_verifier("remote", options).verify("hi", None).outcome.value == "fault"
    assert len(server.requests) == 1


async def test_a_server_that_lets_wait_holds_no_worker_of_the_pool(server: Server) -> None:
    server.script = [(0, b"")]
    options = {"url": f"http://127.0.0.1:{server.server_port}/", "attempts": 1, "timeout_seconds": 60}
    async with VerifierPool(1) as pool:
        waiting = asyncio.create_task(pool.verify("remote", options, "hi", None))
        while not server.requests:
            await asyncio.sleep(0.01)
        reference = pool.parse_reference("regex", {}, "a+")
        assert (await pool.verify("regex", {}, "aaa", reference)).outcome.value == "correct"
        assert not waiting.done()
        server.held.set()
        assert (await waiting).outcome.value == "fault"


def test_any_text_can_be_sent(server: Server) -> None:
    assert ask(server, CORRECT, response="\ud800\x00é").outcome.value == "correct"
    assert server.requests[0]["response"] == "\ud800\x00é"


def test_the_address_must_be_http() -> None:
    with pytest.raises(ValueError, match="http"):
        load_verifier("remote", {"url": "file:///etc/passwd"})


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["NaN", "Infinity", "-Infinity", "1e999", '{"a": NaN}']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_json_is_read_as_ever(value: Any) -> None:
    text = json.dumps(value)
    assert loads(text) == json.loads(text)
    assert flaw_in(loads_with_flaws(text)[0]) is None


@pytest.mark.parametrize(
    ("token", "complaint"),
    [
        ("NaN", "NaN is not JSON"),
        ("-Infinity", "-Infinity is not JSON"),
        ("Infinity", "Infinity is not JSON"),
        ("1e400", "the number 1e400 is out of the range of a float"),
        ("-1.5E+999", "out of the range of a float"),
        ("12e-400", "too small for a float"),
        ('{"a": 1, "a": 1}', 'the key "a" stands twice'),
        ('{"b": {}, "\\u0061": 1, "a": 2}', 'the key "a" stands twice'),
        ("[" * 200_000, "nested too deeply"),
        ("9" * 5000, "Exceeds the limit"),
        ("{'a': 1}", "property name"),
    ],
)
@given(around=VALUES)
def test_what_is_no_json_is_refused_wherever_it_stands(token: str, complaint: str, around: Any) -> None:
    text = json.dumps([around, {"x": [around, "HERE"]}]).replace('"HERE"]}]', token + "]}]")
    with pytest.raises(ValueError) as refused:
        loads(text)
    assert complaint in str(refused.value)


def test_zero_is_not_too_small() -> None:
    assert loads("[0.0, -0.0, 0e5, 0.000e-999, 5e-324]") == [0.0, 0.0, 0.0, 0.0, 5e-324]
