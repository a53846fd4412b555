"""The page of trajectories: its local server, its export, and both in a real browser."""

import asyncio
import json
import re
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from aiohttp import ClientSession

from asyncrl.observe.browser import Browser
from asyncrl.observe.page import export, serve

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
LIMIT_SECONDS = 60
T = TypeVar("T")


def with_server(run_folder: Path, use: Callable[[str, ClientSession], Awaitable[T]]) -> T:
    """Serves the run, calls `use` with the URL, and ends the server."""

    async def main() -> T:
        until = asyncio.Event()
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(Browser(run_folder), port=0, until=until, ready=url.set_result))
        try:
            async with ClientSession() as session:
                return await use(await asyncio.wait_for(url, LIMIT_SECONDS), session)
        finally:
            until.set()
            await server

    return asyncio.run(main())


async def document(address: str, profile: Path) -> str:
    """The document after its scripts ran, as Chromium prints it."""
    assert CHROMIUM is not None
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
        "--virtual-time-budget=2000",
        "--dump-dom",
    ]
    browser = await asyncio.create_subprocess_exec(
        CHROMIUM, *options, address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        printed, _ = await asyncio.wait_for(browser.communicate(), LIMIT_SECONDS)
    finally:
        if browser.returncode is None:
            browser.kill()
            await browser.wait()
    return printed.decode()


def test_the_server_answers_groups_filtered_and_one_by_one(run_folder: Path) -> None:
    async def use(url: str, session: ClientSession) -> None:
        async with session.get(f"{url}api/groups", params={"state": "dropped"}) as reply:
            assert [group["reason"] for group in await reply.json()] == ["stale"]
        async with session.get(f"{url}api/groups/0") as reply:
            assert len((await reply.json())["trajectories"]) == 2
        async with session.get(url) as reply:
            assert "default-src 'none'" in reply.headers["Content-Security-Policy"]

    with_server(run_folder, use)


def test_the_server_follows_a_run_that_is_going_on(run_folder: Path) -> None:
    async def use(url: str, session: ClientSession) -> None:
        db = sqlite3.connect(run_folder / "journal.sqlite")
        db.execute("INSERT INTO groups VALUES (3, 'train:4', '5+5=', 'open', 1, 4.0, NULL, NULL)")
        db.commit()
        db.close()
        async with session.get(f"{url}api/groups") as reply:
            assert (await reply.json())[0]["group_id"] == 3

    with_server(run_folder, use)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("api/groups/99", 404),
        ("api/groups?step=x", 400),
        ("api/groups?before=" + "9" * 30, 400),
        ("etc", 404),
    ],
)
def test_a_bad_question_gets_a_refusal(run_folder: Path, path: str, status: int) -> None:
    async def use(url: str, session: ClientSession) -> int:
        async with session.get(url + path) as reply:
            return reply.status

    assert with_server(run_folder, use) == status


def test_another_host_name_is_refused(run_folder: Path) -> None:
    # A web site that resolves its own name to 127.0.0.1 must not read the run.
    async def use(url: str, session: ClientSession) -> int:
        async with session.get(f"{url}api/overview", headers={"Host": "evil.example"}) as reply:
            return reply.status

    assert with_server(run_folder, use) == 403


def test_the_export_holds_the_newest_groups_and_no_open_tag_in_its_data(run_folder: Path) -> None:
    page = export(Browser(run_folder), num_groups=2)
    found = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert [group["group_id"] for group in data["groups"]] == [2, 1]
    assert set(data["details"]) == {"2", "1"}
    assert "<" not in found[1]


@needs_chromium
def test_a_served_group_shows_its_tokens_and_verdicts_in_a_browser(run_folder: Path, tmp_path: Path) -> None:
    page = with_server(run_folder, lambda url, _: document(f"{url}#group=0", tmp_path / "profile"))
    assert '<h1 id="name">sums</h1>' in page
    assert page.count('data-group="') == 3
    assert "trained at step 2, admitted at version 0" in page
    assert "v0: 2 tokens, staleness 1" in page
    assert "v1: 1 tokens, staleness 0, continued in place" in page
    assert "answer: 5 · 5 is not 3" in page
    # Four tokens, each an element of its own; the first is "<", which must not open one.
    assert page.count('class="token"') + page.count('class="token special"') >= 6
    assert ">&lt;</span>" in page


@needs_chromium
def test_an_exported_group_shows_without_a_server(run_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_text(export(Browser(run_folder), num_groups=10))
    page = asyncio.run(document(f"{file.as_uri()}#group=1", tmp_path / "profile"))
    assert "dropped: stale, admitted at version 0" in page
    assert "cut at the length limit" in page
    assert page.count('data-group="') == 3
