"""`make pictures`: every picture of docs/images, of real runs, in a real browser where it is a page.

Trains short runs of shipped recipes in .bench/pictures, on the CPU; those that have finished are kept, so a
second call takes pictures alone. NAMES take some pictures again. A picture has at most 150 kB.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes.chromium import Page, browser, tab  # noqa: E402
from fakes.opened_page import go, served  # noqa: E402

from asyncrl.journal.kept_answers import read_results  # noqa: E402
from asyncrl.journal.reader import GroupFilter, JournalReader  # noqa: E402
from asyncrl.run.status import read_status  # noqa: E402
from asyncrl.system.places import ANSWERS  # noqa: E402
from tests.benchmarks.curves import draw, read_curves  # noqa: E402

IMAGES = ROOT / "docs" / "images"
FOLDER = ROOT / ".bench" / "pictures"
RUNS, REPORTS, CHAIN = FOLDER / "runs", FOLDER / "reports", FOLDER / "two_stages.yaml"
ARITHMETIC = ROOT / "recipes" / "r1_zero_arithmetic_cpu.yaml"
ROWS = ROOT / ".cache" / "arithmetic" / "train.jsonl"
ASYNCRL = Path(sys.executable).parent / "asyncrl"
NUM_COLORS = 200
MOST_BYTES = 150_000
ALIKE = ("view.groups_per_step=16", "evaluation.samples_per_task=8")
"""Settings of all runs."""
LIVE_STEP = 8
"""Step at which a run that trains is looked at."""
SETTLED = "new Promise((done) => setTimeout(() => requestAnimationFrame(done), 300))"
"""Fonts, canvases and what follows a run have come to rest."""
CONTENT_HEIGHT = """
document.querySelector('#group article') ? 10000 : (main =>
  main && getComputedStyle(main).overflowY === 'auto' ? innerHeight - main.clientHeight + main.scrollHeight
                                                      : document.documentElement.scrollHeight
)(document.querySelector('main'))
"""
"""A group and the list beside it are as high as the window. Of the page `main` scrolls, of a report all."""
ANYWHERE = f"""
((texts, root) => {{
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(root, '~/asyncrl');
}})(document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), {json.dumps(str(ROOT))})
"""
"""The folder of this checkout is shown as ~/asyncrl."""
SEEN_TWICE = 48
"""Tasks of the run that sees each of its tasks several times."""
FORGETFUL = r'''"""A verifier with a mistake: it takes for granted that each column of a thought is a sum."""

import re

from verifiers.registry import from_function
from verifiers.verdict import correct, no_answer, wrong


def is_worked(response, reference):
    box = re.search(r"\\boxed\{(.+?)\}", response)
    if box is None:
        return no_answer("there is no box")
    thought = re.search(r"<think>(.+?)</think>", response)
    for column in thought[1].split(";") if thought else ():
        digits, total = column.split("=")
        if sum(map(int, digits.split("+"))) != int(total):
            return wrong(extracted=box[1], detail=f"{column} is no sum")
    is_right = box[1] == str(reference)
    return correct(extracted=box[1]) if is_right else wrong(extracted=box[1])


IsWorked = from_function(is_worked)
'''

# The runs


def asyncrl(*words: object) -> None:
    """Runs a command. Raises CalledProcessError where it fails."""
    print("$ asyncrl", *words, flush=True)
    subprocess.run([ASYNCRL, *map(str, words)], cwd=FOLDER, check=True, stdout=subprocess.DEVNULL)


def is_finished(run: Path) -> bool:
    status = read_status(run) if run.is_dir() else None
    return status is not None and status["state"] == "finished"


def train(name: str, *overrides: str) -> Path:
    """The folder of the run, trained where it has not finished."""
    if not is_finished(run := RUNS / name):
        shutil.rmtree(run, ignore_errors=True)
        asyncrl("train", ARITHMETIC, f"name={name}", f"run_folder={run}", *ALIKE, *overrides)
    return run


def sums() -> Path:
    return train("sums")


def several() -> list[Path]:
    return [sums(), train("gentle", "trainer.learning_rate=5e-5"), visited()]


def measured() -> Path:
    run = sums()
    if not read_results(run / ANSWERS):
        asyncrl("eval", run, "heldout", "--at", "base,last", "--k", 16, "--num-tasks", 128)
    return run


def visited() -> Path:
    """A run that asks few tasks again and again, with a verifier that sometimes raises."""
    sums()
    (FOLDER / "forgetful.py").write_text(FORGETFUL)
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()[:SEEN_TWICE]]
    verifier = f"{FOLDER / 'forgetful.py'}:IsWorked"
    data = FOLDER / "few.jsonl"
    data.write_text("".join(json.dumps({**row, "verifier": verifier}) + "\n" for row in rows))
    return train("revisited", f"data.train={data}", "alarms.fault_share=0.001")


def chain() -> Path:
    """Imitation, then reinforcement learning from that model."""
    stages = [
        {
            "recipe": str(ROOT / "recipes" / "sft_arithmetic_cpu.yaml"),
            "overrides": [
                *("name=imitated", f"run_folder={RUNS / 'imitated'}"),
                *("trainer.num_steps=10", "evaluation.every_steps=5", *ALIKE),
            ],
        },
        {
            "recipe": str(ARITHMETIC),
            "overrides": [
                *("name=reinforced", f"run_folder={RUNS / 'reinforced'}"),
                *("trainer.num_steps=20", f"model.path={RUNS / 'imitated'}", *ALIKE),
            ],
        },
    ]
    CHAIN.write_text(yaml.safe_dump({"folder": str(RUNS / "{name}"), "stages": stages}))
    if not is_finished(RUNS / "reinforced"):
        asyncrl("chain", CHAIN)
    return CHAIN


def every_run() -> Path:
    """The folder of all of them."""
    several()
    measured()
    visited()
    chain()
    return RUNS


# The pictures


@dataclass(frozen=True)
class Picture:
    """One picture: its subject, and how large it is."""

    name: str
    of: Callable[[], Path]
    """Makes what is shown: runs for the page, or an HTML file."""
    address: str | Callable[[], str] = ""
    """Place in the page, such as "sums/curves"."""
    ready: str = "body"
    """Selector of what is there at last."""
    act: Callable[[Page], Awaitable[None]] | None = None
    """Done before the picture is taken."""
    width: int = 1200
    height: int = 760
    """The most; a shorter page is shown whole."""
    scheme: str = "light"

    def view(self) -> str:
        """Name of the view of the page that it shows."""
        address = "sums/groups" if callable(self.address) else self.address
        return address.partition("?")[0].rpartition("/")[2] or "overview"


def varied_group() -> str:
    """The trained group of `sums` whose first response most versions wrote, the longest of several."""
    journal = JournalReader(sums() / "journal.sqlite")

    def variety(group_id: int) -> tuple[int, int]:
        group = journal.group(group_id)
        assert group is not None
        first = group["trajectories"][0]
        if first["trained"] is None or first["outcome"] != "correct":
            return 0, 0
        lengths = [len(segment["tokens"]) for segment in first["segments"]]
        return len({segment["version"] for segment in first["segments"]}), sum(lengths)

    listed = journal.groups(GroupFilter(state="trained", outcome="correct", limit=1000))
    return f"sums/groups/{max((row['group_id'] for row in listed), key=variety)}"


async def point_at_step(page: Page) -> None:
    left, top, width, height = await page.evaluate(
        "(r => [r.left, r.top, r.width, r.height])"
        "(document.querySelector('canvas[aria-label^=Accuracy]').getBoundingClientRect())"
    )
    await page.mouse("mouseMoved", left + width / 2, top + height / 2)


async def color_by_ratio(page: Page) -> None:
    await page.click("input[value=ratio]")
    await page.mouse("mouseMoved", 5, 5)
    await page.evaluate("document.getElementById('group').scrollTop = 0")


async def scroll_to_answers(page: Page) -> None:
    """To the last row of the drawings above them."""
    found = "[...document.querySelectorAll('h2')].find((e) => e.textContent === 'Before and after')"
    await page.evaluate(f"{found}.scrollIntoView(); window.scrollBy(0, -425)")


def report_of_sums() -> Path:
    asyncrl("report", measured())
    return RUNS / "sums" / "report.html"


def report_of_several() -> Path:
    asyncrl("report", *several(), "--out", REPORTS)
    return REPORTS / "report.html"


THREE = "sums,gentle,revisited"
PAGE = (
    Picture("overview", every_run, "", "#runs tr"),
    Picture("compare", lambda: several()[0].parent, f"compare?runs={THREE}", "#results tr", height=1000),
    Picture("chain", every_run, "chains", "#stories article", height=1000),
    Picture("curves", sums, "sums/curves", "#charts canvas", point_at_step),
    Picture("group", sums, varied_group, "#group article", color_by_ratio, height=700),
    Picture("answers", visited, "revisited/answers", "#tasks article", height=640),
    Picture("evaluations", measured, "sums/evaluations", "main canvas", height=900),
    Picture("ledger", visited, "revisited/ledger", "#ledger-rows tr"),
    Picture("servers", lambda: RUNS / "live", "live/servers", "main table"),
    Picture("faults", visited, "revisited/faults", "#causes article"),
    Picture("log", visited, "revisited/log", "#log-rows tr"),
)
REPORTED = (
    Picture("report", report_of_sums, width=1100, height=1000),
    Picture("before-after", report_of_sums, act=scroll_to_answers, width=1100, height=960, scheme="dark"),
    Picture("several", report_of_several, width=1100, height=1000),
)
CARD = "card"
"""The one that `asyncrl report --png` draws."""
LEARNING = "learning"
"""The one of the curves that `make seeds` kept; it trains nothing."""
NAMES = (*(picture.name for picture in (*PAGE, *REPORTED)), CARD, LEARNING)


async def take(picture: Picture, devtools: str) -> None:
    place = picture.of()
    async with tab(devtools, width=picture.width, height=300) as page:
        await page.prefer(picture.scheme)
        if picture in REPORTED:
            await page.open(place.as_uri())
            await shoot(picture, page)
            return
        async with served(place) as url:
            await page.open(f"{url}#/")
            address = picture.address() if callable(picture.address) else picture.address
            await go(page, f"#/{address}", picture.ready)
            await shoot(picture, page)


async def shoot(picture: Picture, page: Page) -> None:
    """As high as what is shown, and not higher than wanted."""
    await page.evaluate(SETTLED)
    needed = int(await page.evaluate(CONTENT_HEIGHT))
    await page.resize(picture.width, min(picture.height, needed))
    if picture.act is not None:
        await picture.act(page)
    await page.evaluate(SETTLED)
    await page.evaluate(ANYWHERE)
    assert page.complaints == [], page.complaints
    await page.screenshot(IMAGES / f"{picture.name}.png")


async def take_live(picture: Picture, devtools: str) -> None:
    """Takes it of a run that trains meanwhile, which is stopped afterwards, as Ctrl-C would."""
    run = RUNS / "live"
    shutil.rmtree(run, ignore_errors=True)
    command = [ASYNCRL, "train", ARITHMETIC, "name=live", f"run_folder={run}"]
    print("$ asyncrl", *command[1:], flush=True)
    process = subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.DEVNULL)
    try:
        while (status := read_status(run) if run.is_dir() else None) is None or status["step"] < LIVE_STEP:
            assert process.poll() is None, f"the run ended with {process.returncode} before step {LIVE_STEP}"
            await asyncio.sleep(0.2)
        await take(picture, devtools)
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.wait)


def shrink(path: Path) -> None:
    """Fewer colors, the same pixels."""
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(NUM_COLORS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {small.width} x {small.height}, {size // 1000} kB", flush=True)
    assert size <= MOST_BYTES, f"{path} has {size} bytes, expected {MOST_BYTES} at most"


async def take_all(names: Sequence[str], devtools: str) -> None:
    # A stopped run is one of those of the overview.
    for picture in sorted((*PAGE, *REPORTED), key=lambda each: each.name != "servers"):
        if picture.name in names:
            await (take_live if picture.name == "servers" else take)(picture, devtools)
            shrink(IMAGES / f"{picture.name}.png")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=", ".join(NAMES))
    names = parser.parse_args().names or NAMES
    RUNS.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] = f"{ASYNCRL.parent}:{os.environ['PATH']}"
    begun = time.monotonic()
    if LEARNING in names:
        draw(IMAGES / f"{LEARNING}.png", read_curves())
        shrink(IMAGES / f"{LEARNING}.png")
    if CARD in names:
        asyncrl("report", measured(), "--png", IMAGES / f"{CARD}.png")
        shrink(IMAGES / f"{CARD}.png")
    if {picture.name for picture in (*PAGE, *REPORTED)} & set(names):
        with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as devtools:
            asyncio.run(take_all(names, devtools))
    print(f"{len(names)} pictures in {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
