"""Each verifier is tried on a row before a run starts: a broken one is a sentence, not a run for nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.gym import NEEDS_GYM, gym_gold
from fakes.model_folder import write_tokenizer

from asyncrl.data.row_use import RowUse
from asyncrl.data.rows import train_rows
from asyncrl.errors import InputError
from asyncrl.launch import trial
from asyncrl.launch.trial import try_verifiers
from asyncrl.model.tokenizer import TextCodec
from asyncrl.observe.terminal import stage
from asyncrl.recipe import Data, Verifying
from asyncrl.tasks.task_list import TaskMaker
from asyncrl.tasks.verifier_cache import VerifierCache

HEAD = "import os, time\nfrom verifiers.verdict import Outcome, Verdict\nclass V:\n"
PARSE = "    def parse_reference(self, raw): return raw\n"
WRONG = "Verdict(Outcome.WRONG, 0.0)"
VERIFY = "    def verify(self, response, reference): "
NO_VERIFY = f"{VERIFY}raise NotImplementedError\n"


def try_rows(folder: Path, *rows: dict[str, Any], num_responses: int = 1, **verifying: Any) -> None:
    (folder / "train.jsonl").write_text("\n".join(json.dumps({"prompt": "1+1=", **row}) for row in rows))
    cache, section = VerifierCache(folder), Verifying(**verifying)
    codec = TextCodec(write_tokenizer(folder / "model"))
    data = Data(train=str(folder / "train.jsonl"))
    TaskMaker("data.train", data, codec, cache, 32, is_grouped=True).make(
        train_rows(data, section, RowUse()), data.train_sources()
    )
    cache.check_groups(num_responses)
    try:
        try_verifiers(cache, section)
    finally:
        cache.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    def verify(self, response): pass", r"gives no verdict.*TypeError: V.verify\(\) takes 2"),
        (f"{VERIFY}raise KeyError('gold')", r"gives no verdict.*KeyError: 'gold' \(.*v\.py:5\)"),
        (f"{VERIFY}return True", "gives no verdict.*returned bool, expected a Verdict"),
        (f"{VERIFY}time.sleep(99)", "gives no verdict.*no answer in"),
        (f"{VERIFY}os._exit(1)", "gives no verdict.*ended by itself, with exit code 1"),
        (
            f"{VERIFY}return {WRONG}\n    def verify_fast(self, response, reference): os._exit(7)",
            "gives no verdict.*exit code 7",
        ),
        (
            f"{VERIFY}\n        if 'qwxz' in response: response.index('no')\n        return {WRONG}",
            "gives no verdict.*ValueError: substring not found",
        ),
        # On the gold of the row a limit is the verifier's own.
        (
            f"{VERIFY}\n        while True: pass",
            r"meets a limit on.*timeout: .* more than 0\.1 s.*verifying\.timeout_seconds",
        ),
        (f"{VERIFY}return self.verify(response, reference)", "meets a limit on.*recursion limit"),
        (f"{VERIFY}return bytes(1 << 40)", "meets a limit on.*memory limit"),
    ],
)
def test_a_verifier_that_gives_no_verdict_or_meets_a_limit_is_refused_with_its_error(
    tmp_path: Path, body: str, said: str
) -> None:
    (tmp_path / "v.py").write_text(f"{HEAD}{PARSE}{body}\n")
    with pytest.raises(InputError, match=r"train\.jsonl:1: the verifier \"\./v\.py:V\" " + said):
        try_rows(tmp_path, {"answer": "2", "verifier": "./v.py:V"}, timeout_seconds=0.1)


@pytest.mark.parametrize(
    ("method", "waits", "said"),
    [
        ("verify_async(self, response, reference)", "time.sleep(1000)", "has not returned"),
        ("verify_async(self, response, reference)", "await asyncio.Event().wait()", "has not returned"),
        (
            "verify_group_async(self, responses, reference)",
            "await asyncio.Event().wait()",
            "has not returned from verify_group_async on a group",
        ),
    ],
)
def test_a_verifier_that_waits_without_end_is_refused(
    method: str, waits: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MAX_WAIT_SECONDS", 0.1)
    other = NO_VERIFY if method.startswith("verify_async") else ""
    (tmp_path / "v.py").write_text(f"import asyncio\n{HEAD}{PARSE}{other}    async def {method}: {waits}\n")
    with pytest.raises(InputError, match=r"train\.jsonl:1: the verifier \"\./v\.py:V\" " + said):
        try_rows(tmp_path, {"answer": "2", "verifier": "./v.py:V"})


def test_what_takes_long_is_shown_with_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stage, "SHOWN_AFTER_SECONDS", 0.0)
    (tmp_path / "v.py").write_text(f"{HEAD}{PARSE}{VERIFY}return {WRONG}\n")
    try_rows(tmp_path, {"answer": "2", "verifier": "./v.py:V"})
    assert f'trying the verifier "./v.py:V" on {tmp_path / "train.jsonl"}:1' in capsys.readouterr().err


def test_a_verifier_that_waits_is_tried_twice_as_in_a_run(tmp_path: Path) -> None:
    body = (
        "    failed = False\n"
        "    async def verify_async(self, response, reference):\n"
        "        if not V.failed:\n"
        "            V.failed = True\n"
        "            raise ConnectionError('away')\n"
        f"        return {WRONG}\n"
    )
    (tmp_path / "v.py").write_text(HEAD + PARSE + NO_VERIFY + body)
    try_rows(tmp_path, {"answer": "2", "verifier": "./v.py:V"})


@pytest.mark.parametrize("answer", ["2", {"what": "ever"}, ["2"], 3])
def test_of_a_verifier_of_ones_own_only_a_verdict_is_asked(tmp_path: Path, answer: object) -> None:
    (tmp_path / "v.py").write_text(f"{HEAD}{PARSE}{VERIFY}return {WRONG}\n")
    try_rows(tmp_path, {"answer": answer, "verifier": "./v.py:V"})


@pytest.mark.parametrize(
    ("verifier", "answer"),
    [
        ("math", "\\frac{1}{2}"),
        ("math", ["2", "two"]),
        ("math", "Natalia sold 48/2 = 24 clips. #### 72"),
        ({"name": "math", "options": {"think": "required"}}, 5),
        ({"name": "math", "options": {"fallbacks": ["hashes"]}}, "12"),
        ("exact", "Paris"),
        ({"name": "exact", "options": {"source": "boxed"}}, "Paris"),
        ("numeric", 3.5),
        ("choice", "B"),
        ("regex", "a+b"),
        ("format", ""),
        ("json_schema", {"type": "object"}),
        ({"name": "weighted", "options": {"parts": ["math", "format"]}}, "2"),
    ],
)
def test_what_grades_as_it_should_passes(tmp_path: Path, verifier: object, answer: object) -> None:
    try_rows(tmp_path, {"answer": answer, "verifier": verifier})


def test_a_gold_that_does_not_pass_as_its_own_answer_is_refused(tmp_path: Path) -> None:
    # Without case, space and punctuation nothing would be left of the answer but not of the gold.
    row = {"answer": "</think> <think>", "verifier": "exact"}
    with pytest.raises(InputError, match=r"train\.jsonl:1: the verifier \"exact\" finds the row's own gold"):
        try_rows(tmp_path, row)


@pytest.mark.parametrize(
    ("solution", "is_right"), [("def f(x):\n    return x + 1", True), ("def f(x): pass", False)]
)
def test_a_code_row_is_tried_with_its_own_solution(tmp_path: Path, solution: str, is_right: bool) -> None:
    answer = {"tests": [{"call": "f(1)", "expect": "2"}], "solution": solution}
    row = {"answer": answer, "verifier": "code"}
    if is_right:
        try_rows(tmp_path, row)
        return
    with pytest.raises(
        InputError, match=r"train\.jsonl:1: the verifier \"code\" finds the row's own solution wrong"
    ):
        try_rows(tmp_path, row)


def test_a_code_row_without_a_solution_needs_none(tmp_path: Path) -> None:
    try_rows(tmp_path, {"answer": {"tests": [{"call": "f(1)", "expect": "2"}]}, "verifier": "code"})


def test_each_verifier_is_tried_not_the_first_alone(tmp_path: Path) -> None:
    (tmp_path / "v.py").write_text(HEAD + PARSE + "    def verify(self, response): pass\n")
    with pytest.raises(InputError, match=r"train\.jsonl:3"):
        try_rows(tmp_path, {"answer": "2"}, {"answer": "3"}, {"answer": "2", "verifier": "./v.py:V"})


@NEEDS_GYM
def test_a_gym_must_accept_the_own_answer_of_its_task(tmp_path: Path) -> None:
    row = {"answer": gym_gold("coin_flip"), "verifier": "gym"}
    # Nobody knows an answer to the second one. Options of its own: each verifier is tried once.
    unknown = {"name": "gym", "options": {"correct_at": 0.5}}
    try_rows(tmp_path, row, {"answer": gym_gold("boxnet"), "verifier": unknown})
    row["answer"]["entry"]["answer"] = "none"
    with pytest.raises(
        InputError, match='the verifier "gym" finds the row\'s own gold wrong: coin_flip scores'
    ):
        try_rows(tmp_path, row)


GROUP = "    min_responses = 3\n    def verify_group(self, responses, reference):\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("        return [Verdict(Outcome.WRONG, 0.0)]\n", "on a group of 3 responses: .* 1 verdicts for 3"),
        ("        raise KeyError(responses[1])\n", "qwxz"),
        ("        while True: pass\n", "timeout: "),
        ("        assert not responses[0].endswith('2}')\n", "AssertionError"),
        (f"        return [{WRONG}] * 3\n", None),
    ],
)
def test_a_verifier_of_groups_is_tried_on_a_group(tmp_path: Path, body: str, said: str | None) -> None:
    (tmp_path / "v.py").write_text(HEAD + PARSE + GROUP + body)
    row, limits = {"answer": "2", "verifier": "./v.py:V"}, {"timeout_seconds": 0.1}
    if said is None:
        try_rows(tmp_path, row, timeout_seconds=20, num_responses=3)
    else:
        with pytest.raises(InputError, match=r"train\.jsonl:1: the verifier .*" + said):
            try_rows(tmp_path, row, num_responses=3, **limits)


def test_the_built_in_judge_of_groups_is_tried_on_its_server(tmp_path: Path) -> None:
    options = {"url": "http://127.0.0.1:9", "model": "m", "attempts": 1}
    with pytest.raises(InputError, match=r"on a group of 2 responses: 1 of 1 comparisons have no result.*:9"):
        try_rows(tmp_path, {"answer": "2"}, default="group_judge", options=options, num_responses=2)
