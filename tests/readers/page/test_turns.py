"""Turns of a trajectory on the page: sampled tokens one by one, what was observed between them."""

import dataclasses
import json
from pathlib import Path

import pytest
from fakes.browsed_run import Words
from fakes.chromium import needs_chromium
from fakes.opened_page import CUT, opened
from fakes.records import make_queue, make_score, make_task
from fakes.turned_run import HOSTILE, LONG, said, write_turned_run
from fakes.turns import told

from asyncrl.journal.explain import turn_sentences
from asyncrl.journal.reader import GroupFilter
from asyncrl.readers.page import groups
from asyncrl.readers.page.groups import MOST_CHARACTERS, list_groups, read_group, read_trajectory
from asyncrl.readers.page.runs import Run
from asyncrl.records import Finish, Observed
from asyncrl.replay.branches import branch_off

OBSERVED = "document.querySelectorAll('#group .observed').length"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_turned_run(tmp_path_factory.mktemp("turned"))


def test_what_was_observed_comes_apart_from_the_sampled_tokens_in_order(run: Path) -> None:
    group = read_group(Run("turns", run), 0)
    assert group is not None
    first, second = group["trajectories"]
    sampled = ["".join(token[0] for token in segment["tokens"]) for segment in first["segments"]]
    assert sampled == [" First I add", " then I look", " once more", " It is done"]
    five, failed, long = first["observations"]
    assert five["text"] == " the tool says 5" and failed["text"] == f" {HOSTILE}"
    assert (five["num_tokens"], five["turn"], five["seconds"]) == (4, 0, 0.003)
    assert failed["calls"][0]["arguments"] == [("query", HOSTILE), ("top", "3")]
    assert failed["calls"][0]["is_error"] and failed["calls"][0]["output"] == HOSTILE
    assert len(LONG) > len(long["calls"][0]["output"]) > MOST_CHARACTERS
    parts = [*first["segments"], *first["observations"]]
    ends = sorted((part["position"], part["position"] + part["num_tokens"]) for part in parts)
    assert [start for start, _ in ends[1:]] == [end for _, end in ends[:-1]]
    assert (first["num_tokens"], first["num_observed_tokens"]) == (11, ends[-1][1] - 11)
    assert second["observations"][0]["messages"] == [{"role": "user", "text": "try again"}]


def test_numbers_of_a_step_are_those_of_sampled_tokens(run: Path) -> None:
    group = read_group(Run("turns", run), 0)
    assert group is not None
    ratios = [token[3] for segment in group["trajectories"][0]["segments"] for token in segment["tokens"]]
    assert ratios == pytest.approx([number / 10 for number in range(11)], abs=1e-3)


def test_a_trajectory_without_its_text_has_no_text_of_observations(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MOST_TOKENS", 15)
    group = read_group(Run("turns", run), 0)
    assert group is not None
    (told,) = group["trajectories"][1]["observations"]
    assert not group["trajectories"][1]["has_text"]
    assert (told["text"], told["messages"], told["num_tokens"]) == ("", [], 4)
    whole = read_trajectory(Run("turns", run), 0, 1)
    assert whole is not None and whole["observations"][0]["text"] == " user : try again"
    (row,) = list_groups(Run("turns", run), GroupFilter())
    assert row["tokens"] == 11 + 6 and row["observed_tokens"] is not None


@needs_chromium
async def test_turns_are_shown_in_order_with_calls_results_and_seconds(
    run: Path, browser_address: str
) -> None:
    async with opened(run.parent, browser_address, "#/turns/groups/0") as page:
        await page.wait_for(f"{OBSERVED} === 4")
        kinds = await page.evaluate(
            "[...document.querySelector('#group article .observed').parentElement.children]"
            ".map(e => e.className || e.tagName)"
        )
        assert kinds == ["PRE", "observed", "PRE", "observed", "PRE", "observed", "PRE"]
        first = await page.text("#group .observed")
        for words in ("turn 1 ended by itself", "4 tokens observed, not trained", "0.003 s"):
            assert words in first
        assert "calculator(expression=2+3)" in first
        assert "11 tokens" in await page.text("#group .head") and "4 turns" in await page.text("#group .head")
        # Colors and tips are of sampled tokens alone.
        await page.click("input[value=ratio]")
        assert await page.evaluate("document.querySelectorAll('.observed .token').length") == 0
        tips = await page.evaluate("[...document.querySelectorAll('.token')].map(t => t.dataset.tip)")
        assert len(tips) == 17 and sum("importance ratio" in tip for tip in tips) == 11
        ground = "getComputedStyle(document.querySelector('{}')).backgroundColor"
        observed = await page.evaluate(ground.format("#group .observed"))
        assert observed != await page.evaluate(ground.format("#group article pre"))
        # A search finds what a tool was asked, and marks the block.
        await page.click("input[type=search]")
        await page.type("TRY AGAIN")
        await page.press("Enter")
        await page.wait_for(
            "document.querySelector('#groups tr td:nth-child(2)')?.innerText.includes('answer')"
        )


@needs_chromium
async def test_what_a_tool_printed_stays_text(run: Path, browser_address: str) -> None:
    async with opened(run.parent, browser_address, "#/turns/groups/0") as page:
        await page.wait_for(f"{OBSERVED} === 4")
        shown = await page.text("#group")
        assert shown.count(HOSTILE) >= 2
        assert (
            await page.evaluate("document.querySelectorAll('main img, main script, .observed b').length") == 0
        )


@needs_chromium
async def test_a_narrow_window_shows_turns_whole(run: Path, browser_address: str) -> None:
    async with opened(run.parent, browser_address, "#/turns/groups/0", width=400, height=800) as page:
        await page.wait_for(f"{OBSERVED} === 4")
        await page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; }); 0")
        assert await page.evaluate(CUT) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_branch_is_told_with_its_own_text_verdict_and_advantage(tmp_path: Path) -> None:
    folder = tmp_path / "branches"
    folder.mkdir()
    queue, words = make_queue(folder, batch=1, samples=1), Words()
    queue.announce(0)
    group = queue.admit(make_task())
    (whole,) = group.trajectories
    queue.append(group, whole, said(words, "a guess"), None)
    whole.turn_finish = Finish.STOP
    branch = branch_off(queue, group, whole, told("try again", tokens=[]), words("asked again"))
    queue.append(group, branch, said(words, "another guess"), None)
    queue.end(group, whole, Finish.STOP, None, "")
    each = {whole.trajectory_id: make_score(1.0), branch.trajectory_id: make_score(0.0)}
    score = dataclasses.replace(make_score(0.5), branches=each)
    queue.score(group, whole, score, "another guess", dict.fromkeys(each, "text"))
    turns = {whole.trajectory_id: [(2, 0.5), (2, -0.5)]}
    queue.make_ready(group, {whole.trajectory_id: 0.5}, turns)
    queue.journal.barrier_blocking()
    words.save(tmp_path / "model")
    (folder / "recipe.yaml").write_text(f"name: branches\nmodel: {{path: {tmp_path / 'model'}}}\n")
    found = read_trajectory(Run("branches", folder), 0, 0, 1)
    assert found is not None and found["trajectory_id"] == branch.trajectory_id
    assert "".join(text for text, *_ in found["segments"][0]["tokens"]).split() == ["another", "guess"]
    assert (found["advantage"], found["reward"], found["turn_advantages"]) == (-0.5, 0.0, [(2, -0.5)])
    assert found["branch_verdict"] is not None and found["branch_verdict"]["outcome"] == "wrong"
    first = read_trajectory(Run("branches", folder), 0, 0)
    assert first is not None and first["observations"][0]["messages"][0]["text"] == "try again"
    assert first["turn_advantages"] == [(2, 0.5)]
    row = Run("branches", folder).journal.group(0)
    assert row is not None
    assert "Turn 2 begins a branch, which has a context of its own." in list(
        turn_sentences(row["trajectories"][0])
    )
    assert read_trajectory(Run("branches", folder), 0, 0, 2) is None
    queue.journal.close()


@needs_chromium
async def test_contexts_behind_summaries_are_one_story_with_the_cut_marked(
    tmp_path: Path, browser_address: str
) -> None:
    (folder := tmp_path / "chain").mkdir()
    queue, words = make_queue(folder, batch=1, samples=2), Words()
    queue.announce(0)
    group = queue.admit(make_task())
    whole, other = group.trajectories
    line = whole
    for number in range(2):
        queue.append(group, line, said(words, f"summary {number}"), None)
        line.turn_finish = Finish.STOP
        notes = json.dumps({"messages": [], "kept_turns": number})
        line = branch_off(queue, group, whole, Observed([], notes), words("asked again"))
    queue.append(group, line, said(words, "the answer"), None)
    queue.append(group, other, said(words, "a guess"), None)
    for each, outcome in ((whole, "correct"), (other, "wrong")):
        queue.end(group, each, Finish.STOP, None, "")
        queue.score(group, each, make_score(float(outcome == "correct")), "text")
    queue.make_ready(group, {whole.trajectory_id: 0.5, other.trajectory_id: -0.5})
    queue.journal.barrier_blocking()
    words.save(tmp_path / "model")
    (folder / "recipe.yaml").write_text(f"name: chain\nmodel: {{path: {tmp_path / 'model'}}}\n")
    async with opened(tmp_path, browser_address, "#/chain/groups/0") as page:
        await page.wait_for("document.querySelectorAll('#group article').length === 4")
        story = "[...document.querySelectorAll('#group article')].map(a => [a.className, a.dataset.outcome])"
        assert await page.evaluate(story) == [
            *(["", "correct"], ["continued", "correct"], ["continued", "correct"], ["", "wrong"])
        ]
        assert (await page.text("#group")).count("The context is cut here") == 2
    queue.journal.close()
