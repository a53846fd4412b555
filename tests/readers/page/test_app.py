"""The page of runs: its local server, its export, and both in a real browser."""

import asyncio
import json
import re
import time
from pathlib import Path

import pytest
from aiohttp import ClientSession
from fakes.chromium import needs_chromium
from fakes.commands import Command
from fakes.finished_run import edit_journal
from fakes.opened_page import opened, served

from asyncrl.readers.page.app import export, serve
from asyncrl.readers.page.runs import Run, Runs


async def test_the_server_answers_groups_filtered_and_one_by_one(run_folder: Path) -> None:
    async with served(run_folder) as url, ClientSession() as session:
        async with session.get(f"{url}api/runs/run/groups", params={"state": "dropped"}) as reply:
            assert [group["reason"] for group in await reply.json()] == ["stale"]
        async with session.get(f"{url}api/runs/run/groups/0") as reply:
            assert len((await reply.json())["trajectories"]) == 2
        async with session.get(url) as reply:
            assert "default-src 'none'" in reply.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("api/runs/run/groups/99", 404),
        ("api/runs/run/groups?step=x", 400),
        ("api/runs/run/groups?before=" + "9" * 30, 400),
        ("api/runs/other", 404),
        ("api/runs/..%2Frun/groups", 404),
        ("etc", 404),
    ],
)
async def test_a_bad_question_gets_a_refusal(run_folder: Path, path: str, status: int) -> None:
    async with served(run_folder) as url, ClientSession() as session, session.get(url + path) as reply:
        assert reply.status == status


async def test_an_answer_that_the_page_has_is_not_sent_again(run_folder: Path) -> None:
    async with served(run_folder) as url, ClientSession() as session:
        path = f"{url}api/runs/run/ledger"
        async with session.get(path) as reply:
            tag = reply.headers["ETag"]
        async with session.get(path, headers={"If-None-Match": tag}) as reply:
            assert (reply.status, await reply.read()) == (304, b"")
        edit_journal(run_folder, "UPDATE groups SET state = 'ready' WHERE state = 'open'")
        async with session.get(path, headers={"If-None-Match": tag}) as reply:
            assert reply.status == 200 and reply.headers["ETag"] != tag


async def test_runs_are_read_before_anybody_asks(run_folder: Path) -> None:
    broken = run_folder.with_name("broken")
    broken.mkdir()
    for name, text in (("recipe.yaml", "{}"), ("metrics.jsonl", "no row\n")):
        (broken / name).write_text(text)
    runs, until = Runs([run_folder.parent]), asyncio.Event()
    server = asyncio.create_task(serve(runs, port=0, until=until, ready=lambda _: None))
    deadline = time.monotonic() + 300
    while not {"metrics", "journal", "texts"} <= vars(runs.get("run")).keys():
        assert time.monotonic() < deadline, vars(runs.get("run"))
        await asyncio.sleep(0.01)
    until.set()
    await server


async def test_another_host_name_is_refused(run_folder: Path) -> None:
    # A web site that resolves its own name to 127.0.0.1 must not read the run.
    async with served(run_folder) as url, ClientSession() as session:
        async with session.get(f"{url}api/runs", headers={"Host": "evil.example"}) as reply:
            assert reply.status == 403


def test_the_export_holds_the_newest_groups_and_no_open_tag_in_its_data(run_folder: Path) -> None:
    page = export([Run("sums", run_folder)], num_groups=2)
    found = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    answers = json.loads(found[1])
    assert [group["group_id"] for group in answers["/api/runs/sums/groups"]] == [2, 1]
    assert "/api/runs/sums/groups/1" in answers and "/api/runs/sums/groups/0" not in answers
    assert "<" not in found[1]


@needs_chromium
async def test_a_served_group_shows_its_tokens_and_verdicts_in_a_browser(
    run_folder: Path, browser_address: str
) -> None:
    async with opened(run_folder, browser_address) as page:
        await page.click("tr[data-row=run]")
        await page.click("#tabs a[href$=groups]")
        await page.click("#groups tr:last-child")
        await page.wait_for("document.querySelectorAll('article').length == 2")
        assert await page.evaluate("document.querySelectorAll('#groups tr').length") == 3
        text = await page.text("#group")
        assert "trained at step 2, admitted at version 0" in text
        assert "v0: 2 tokens, staleness 1" in text
        assert "v1: 1 tokens, staleness 0, continued in place" in text
        assert "answer: 5 · 5 is not 3" in text
        # Of the four tokens of "<b>5" each is an element; the first must not open one.
        assert "<" in await page.evaluate("[...document.querySelectorAll('.token')].map(t => t.textContent)")


def test_bad_input_is_one_sentence_and_exit_code_two(
    run_folder: Path, tmp_path: Path, command: Command
) -> None:
    for words, sentence in (
        ([str(tmp_path / "nothing")], "it is not a run folder"),
        ([str(run_folder), "--export", str(tmp_path / "no" / "x.html")], "cannot be written"),
        ([str(run_folder), "--port", "99999"], "--port is 99999, expected 0 to 65535"),
    ):
        assert sentence in command("view", *words, code=2).err
