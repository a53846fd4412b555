"""The page in a real Chromium: clicks, keys, live updates, narrow windows, dark mode, hostile text."""

import shutil
import time
from pathlib import Path
from typing import Any

import yaml
from fakes.chromium import needs_chromium, tab
from fakes.finished_run import edit_journal, write_run
from fakes.opened_page import opened
from fakes.statuses import make_status

from asyncrl.journal.reader import GroupFilter
from asyncrl.readers.page.app import export
from asyncrl.readers.page.groups import list_groups
from asyncrl.readers.page.runs import Run
from asyncrl.run.metrics_file import MetricsWriter
from asyncrl.run.status import write_status
from asyncrl.system.plugins import cause_of

pytestmark = needs_chromium

SERVER = {
    "url": "http://127.0.0.1:30000",
    "state": "serving",
    "version": 12,
    "requests": 24,
    "tokens_per_second": 2950.0,
    "restarts": 1,
    "retractions": 0,
    "busy_share": 0.97,
}
LISTS = {
    "groups": "#groups tr",
    "answers": "#tasks article",
    "ledger": "#ledger-rows tr",
    "faults": "#causes article",
    "log": "#log-rows tr",
}
"""View -> its rows."""
HOSTILE = "</script><img src=x onerror=alert(1)><b>bold</b>"
DRAWN = "document.querySelector('canvas[aria-label^=Reward]')?.width > 301"
"""A canvas that nothing was drawn on is 300 wide."""


def append(run: Path, row: dict[str, Any]) -> None:
    with MetricsWriter(run / "metrics.jsonl") as writer:
        writer.step(row)


def widen(run: Path) -> None:
    """Gives each view of the run something to show, with words as long as they come."""
    word = "an_answer_that_no_window_has_room_for_" * 5
    visits = [("train:1", group, 2, group / 2, f"{group}{word}", 2, group) for group in range(3)]
    edit_journal(run, "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", *visits)
    edit_journal(run, "INSERT INTO tasks VALUES ('train:1', 3, 2, 1.0, ?, 1.0)", (word,))
    edit_journal(run, "UPDATE groups SET prompt = ?, reason = 'no_signal' WHERE reason = 'stale'", (word,))
    detail = f"the verifier raised TypeError: {word} (/runs/verifiers/sums.py:63)"
    edit_journal(run, "UPDATE trajectories SET outcome = 'fault', detail = ? WHERE group_id = 1", (detail,))
    trace = (cause_of(detail), "00000001-00", f"Traceback\n  File {word}")
    edit_journal(run, "INSERT INTO fault_traces VALUES (?, ?, ?)", trace)
    with MetricsWriter(run / "metrics.jsonl") as writer:
        writer.event("alarm", alarm="entropy", step=3, text=word, value=1.0, limit=0.5, is_first=True)


def change(run: Path) -> None:
    """Changes one row of each view that lists something, and adds one."""
    group = 1 + max(row["group_id"] for row in list_groups(Run("run", run), GroupFilter()))
    values = (group, f"train:{group}", "1+1=", "open", group, 1.0, None, None)
    edit_journal(run, "INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    edit_journal(run, "INSERT INTO answers VALUES (?, ?, 2, 0.5, 'x', 1, 0)", (f"train:{group}", group))
    edit_journal(run, "INSERT INTO tasks VALUES (?, 2, 1, 0.5, 'x', 0.5)", (f"train:{group}",))
    edit_journal(
        run,
        "INSERT INTO trajectories (trajectory_id, group_id, sample, prompt_tokens, finish, outcome, detail) "
        "VALUES (?, ?, 0, ?, ?, ?, ?)",
        (f"{group:08d}-00", group, b"", "stop", "fault", "a".join("bcdefgh"[:group])),
    )
    with MetricsWriter(run / "metrics.jsonl") as writer:
        writer.event("alarm", alarm="entropy", step=group, text=f"alarm {group}", value=1.0, limit=0.5)


async def test_runs_appear_grow_and_vanish_while_the_overview_is_open(
    run_folder: Path, browser_address: str
) -> None:
    folder = run_folder.parent
    async with opened(folder, browser_address) as page:
        assert "80%" in await page.text("tr[data-row=run]")
        (folder / "second").mkdir()
        (folder / "second" / "recipe.yaml").write_text(yaml.safe_dump({"name": "second"}))
        await page.wait_for("document.querySelectorAll('#runs tr').length == 2")
        append(folder / "second", {"step": 7, "reward_mean": 0.25})
        await page.wait_for("document.querySelector('tr[data-row=second]').innerText.includes('0.25')")
        # Nearly right is not right.
        append(folder / "second", {"step": 8, "reward_mean": 0.99999})
        await page.wait_for("document.querySelector('tr[data-row=second]').innerText.includes('0.99')")
        (folder / "second" / "recipe.yaml").unlink()
        await page.wait_for("document.querySelectorAll('#runs tr').length == 1")


BROKEN = """
[...document.querySelectorAll("#runs th a")].flatMap((name) => [...name.childNodes]).filter((piece) => {
  const range = document.createRange();
  range.selectNode(piece);
  return piece.nodeType === 3 && range.getClientRects().length > 1;
}).map((piece) => piece.textContent)
"""
"""Pieces of names, between two places to break, that are in two lines."""


async def test_names_break_at_their_separators_and_no_step_is_counted_of_fewer(
    run_folder: Path, browser_address: str
) -> None:
    names = ["r1_zero_arithmetic_cpu-learning-rate-3e-5-seed-2", "r1_zero_smollm2_cpu"]
    for name in names:
        shutil.copytree(run_folder, run_folder.with_name(name))
        with MetricsWriter(run_folder.with_name(name) / "metrics.jsonl") as writer:
            words = "Entropy fell to a tenth of what it was, for ten steps in a row; look at the answers. "
            writer.event("alarm", alarm="x", step=8, text=3 * words, value=1.0, limit=0.5)
    # It was lowered after 102 steps.
    write_status(run_folder.with_name(names[0]), make_status(step=102, total_steps=90))
    async with opened(run_folder.parent, browser_address, width=1280, height=800) as page:
        await page.wait_for("document.querySelectorAll('#runs tr').length == 3")
        broken = await page.evaluate(BROKEN)
        assert broken == []
        steps = await page.text(f"tr[data-row='{names[0]}'] td[data-label=step]")
        assert steps.strip() == "102"


async def test_a_curve_grows_as_the_run_writes_and_asks_only_for_what_is_new(
    run_folder: Path, browser_address: str
) -> None:
    async with opened(run_folder, browser_address, "#/run/curves") as page:
        label = "document.querySelectorAll('canvas')[1]?.getAttribute('aria-label')"
        await page.wait_for(f"{label} == 'Reward: training samples 0.9'")
        await page.evaluate(
            "globalThis.asked = []; globalThis.fetched = fetch; "
            "globalThis.fetch = (path) => { asked.push(path); return fetched(path); }; 0"
        )
        append(run_folder, {"step": 10, "reward_mean": 0.5})
        await page.wait_for(f"{label} == 'Reward: training samples 0.5'")
        (asked,) = await page.evaluate("asked.filter((path) => path.includes('/curves'))")
        answer = await page.evaluate(f"fetched({asked!r}).then((reply) => reply.json())")
        assert answer["steps"] == [10]


async def test_each_source_has_a_line_of_its_own_once_a_run_has_several(
    run_folder: Path, browser_address: str
) -> None:
    async with opened(run_folder, browser_address, "#/run/curves") as page:
        await page.wait_for("document.querySelectorAll('canvas').length > 10")
        labels = "[...document.querySelectorAll('canvas')].map((each) => each.getAttribute('aria-label'))"
        assert not any("by source" in label for label in await page.evaluate(labels))
        use = {"tool_use_share_by_source_short": 0.25, "tool_use_share_by_source_long": 0.75}
        pilots = {"pilots_stopped_share": 0.5, "pilots_stopped_share_by_source_long": 0.25}
        lengths = {
            f"response_tokens_mean_by_outcome_{kind}": n for kind, n in (("correct", 40), ("wrong", 90))
        }
        append(run_folder, {"step": 10, "reward_mean": 0.5, **use, **pilots, **lengths})
        await page.wait_for(f"{labels}.includes('Use of tools, by source: long 75%, short 25%')")
        shown = await page.evaluate(labels)
        assert "Groups stopped after their pilot: all 50%, long 25%" in shown
        assert "Response length by outcome (tokens): correct 40, wrong 90" in shown


async def test_nothing_is_asked_of_a_run_that_writes_nothing_but_its_head(
    run_folder: Path, browser_address: str
) -> None:
    async with opened(run_folder, browser_address, "#/run/curves") as page:
        await page.wait_for("document.querySelectorAll('canvas').length > 10")
        asked = await page.evaluate(
            "(async () => { const asked = []; const before = fetch; "
            "globalThis.fetch = (path) => { asked.push(path); return before(path); }; "
            "await update(); await update(); return asked; })()"
        )
        assert set(asked) == {"/api/runs/run"}


async def test_an_update_keeps_the_rows_that_did_not_change(run_folder: Path, browser_address: str) -> None:
    widen(run_folder)
    async with opened(run_folder, browser_address) as page:
        for view, rows in LISTS.items():
            await page.evaluate(f"location.hash = '#/run/{view}'")
            await page.wait_for(f"document.querySelector({rows!r})")
            await page.evaluate(
                f"globalThis.before = [...document.querySelectorAll({rows!r})]; before[0].focus(); 0"
            )
            change(run_folder)
            after = f"[...document.querySelectorAll({rows!r})]"
            await page.wait_for(f"update().then(() => {after}.some((row) => !before.includes(row)))")
            assert await page.evaluate(f"{after}.filter((row) => before.includes(row)).length > 0"), view
            # The row with the focus keeps it, made again or not.
            focused = "document.activeElement.dataset.row === before[0].dataset.row"
            assert await page.evaluate(focused), view


async def test_a_click_on_a_step_leads_to_its_groups(run_folder: Path, browser_address: str) -> None:
    async with opened(run_folder, browser_address, "#/run/curves") as page:
        await page.wait_for(DRAWN)
        # Steps 1 to 10 were measured, and the axis shows them all between its margins.
        _, y = await page.middle("canvas[aria-label^=Reward]")
        left, width = await page.evaluate(
            "(r => [r.left + 46, r.width - 56])("
            "document.querySelector('canvas[aria-label^=Reward]').getBoundingClientRect())"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await page.mouse(kind, left + width * 1 / 9, y)
        await page.wait_for("location.hash == '#/run/groups?step=2'")
        await page.wait_for("document.querySelectorAll('#groups tr').length == 1")


async def test_dragging_zooms_all_curves_and_a_double_click_shows_all_again(
    run_folder: Path, browser_address: str
) -> None:
    async with opened(run_folder, browser_address, "#/run/curves") as page:
        await page.wait_for(DRAWN)
        x, y = await page.middle("canvas[aria-label^=Reward]")
        ranged = "chartGroup(document.getElementById('charts')).range"
        await page.drag((x - 60, y), (x + 60, y))
        low, high = await page.wait_for(ranged)
        assert 1 < low < high < 10
        await page.click("canvas[aria-label^=Reward]", count=2)
        await page.wait_for(f"{ranged} === null")


async def test_the_pointer_shows_the_values_of_the_nearest_step(
    run_folder: Path, browser_address: str
) -> None:
    async with opened(run_folder, browser_address, "#/run/curves") as page:
        await page.wait_for(DRAWN)
        x, y = await page.middle("canvas[aria-label^=Accuracy]")
        # Nearer to the evaluation at step 10 than to the one at 0.
        await page.mouse("mouseMoved", x + 120, y)
        text = await page.wait_for(
            "[...document.querySelectorAll('.readout')].find(e => !e.hidden)?.innerText"
        )
        assert "step" in text and "held-out, greedy 80%" in text and "49% to 94%" in text


async def test_any_other_column_is_added_by_its_name(run_folder: Path, browser_address: str) -> None:
    async with opened(run_folder, browser_address, "#/run/curves") as page:
        await page.wait_for("document.querySelector('#names option[value=step_seconds]')")
        await page.press("/")
        await page.type("step_seconds")
        await page.press("Enter")
        await page.wait_for("document.querySelector('canvas[aria-label=\"step_seconds: step_seconds 2\"]')")


async def test_keys_move_open_go_back_and_show_themselves(run_folder: Path, browser_address: str) -> None:
    async with opened(run_folder, browser_address) as page:
        await page.wait_for("document.querySelector('#runs tr')")
        await page.press("j")
        await page.press("Enter")
        await page.wait_for("location.hash == '#/run'")
        # The address changes first: until the event that says so, the tabs are those of all runs.
        await page.wait_for("document.querySelector('#tabs a[href=\"#/run/groups\"]')")
        await page.press("]")
        await page.wait_for("location.hash == '#/run/groups'")
        await page.wait_for("document.querySelectorAll('#groups tr').length == 3")
        await page.press("j")
        await page.press("j")
        await page.press("Enter")
        await page.wait_for("location.hash.startsWith('#/run/groups/1')")
        await page.press("Escape")
        await page.wait_for("location.hash == '#/run/groups'")
        await page.press("?")
        assert "next, previous row" in await page.text("#help")
        await page.press("Escape")
        await page.wait_for("!document.getElementById('help').open")
        await page.press("Escape")
        await page.wait_for("location.hash == '#/'")


async def test_dark_follows_the_system_until_somebody_switches(
    run_folder: Path, browser_address: str
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    async with opened(run_folder, browser_address) as page:
        assert await page.evaluate(ground) == "rgb(255, 255, 255)"
        await page.prefer("dark")
        dark = await page.evaluate(ground)
        assert dark == "rgb(20, 24, 31)"
        await page.click("#theme")
        assert await page.evaluate(ground) == "rgb(255, 255, 255)"
        await page.press("d")
        assert await page.evaluate(ground) == dark


async def test_servers_and_who_waits_are_shown_and_a_silent_run_is_no_longer_running(
    run_folder: Path, browser_address: str
) -> None:
    write_status(run_folder, make_status(servers=[SERVER]))
    async with opened(run_folder, browser_address, "#/run/servers") as page:
        text = await page.wait_for(
            "document.querySelector('main tbody') && document.querySelector('main').innerText"
        )
        assert "waits for rollouts: 14 of 16 groups ready" in text
        assert "2,950" in text and "97%" in text and "v12" in text
        write_status(run_folder, make_status(servers=[SERVER], time_seconds=time.time() - 60))
        await page.wait_for("document.querySelector('main').innerText.includes('no longer running')")


async def test_a_run_without_a_status_says_so(run_folder: Path, browser_address: str) -> None:
    async with opened(run_folder, browser_address, "#/run/servers") as page:
        await page.wait_for("document.querySelector('main').innerText.includes('wrote no status.json')")


async def test_hostile_text_stays_text(tmp_path: Path, browser_address: str) -> None:
    run = write_run(tmp_path)
    with MetricsWriter(run / "metrics.jsonl") as writer:
        writer.event("alarm", alarm="x", step=3, text=HOSTILE, value=1.0, limit=0.5, is_first=True)
    edit_journal(run, "UPDATE groups SET prompt = ?, task_id = ?", (HOSTILE, HOSTILE))
    edit_journal(run, "UPDATE trajectories SET detail = ?, extracted = ?", (HOSTILE, HOSTILE))
    hostile = run.rename(run.with_name("<b>run"))
    async with opened(tmp_path, browser_address) as page:
        await page.wait_for("document.querySelector('.alarm')?.innerText.includes('<img src=x')")
        await page.click("#runs tr")
        await page.wait_for("document.querySelector('canvas')")
        assert await page.text("#name") == "<b>run"
        await page.evaluate("location.hash = link('<b>run', 'groups', 0)")
        await page.wait_for("document.querySelector('#group').innerText.includes('<img src=x')")
        assert (
            await page.evaluate("document.querySelectorAll('main img, main script, #group b b').length") == 0
        )
    file = tmp_path / "page.html"
    file.write_text(export([Run("<b>run", hostile)], num_groups=5))
    async with tab(browser_address) as page:
        await page.open(f"{file.as_uri()}#/%3Cb%3Erun/groups/0")
        await page.wait_for("document.querySelector('#group').innerText.includes('<img src=x')")
        assert await page.evaluate("document.querySelectorAll('img').length") == 0
        assert page.complaints == []
