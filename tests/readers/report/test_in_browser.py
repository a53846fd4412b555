"""A report in a real browser, from a disk and without a network, light and dark."""

from pathlib import Path

from fakes.chromium import chromium, needs_chromium
from fakes.evaluated_run import evaluate_run
from fakes.finished_run import write_run

from asyncrl.readers.report.write import write_report

pytestmark = needs_chromium
COLORS = """
[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
 ...[...document.querySelectorAll('figure svg [style*="var(--"]')].map((e) => {
   const style = getComputedStyle(e); return `${style.fill} ${style.stroke}`; })]
"""


async def test_the_page_asks_for_nothing_and_its_drawings_follow_light_and_dark(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    evaluate_run(run)
    write_report(run)
    async with chromium(tmp_path / "browser", width=400, height=800) as page:
        await page.call("Network.enable")
        await page.call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=0,
            uploadThroughput=0,
        )
        await page.open((run / "report.html").as_uri())
        assert await page.evaluate("performance.getEntriesByType('resource').length") == 0
        found = {}
        for scheme in ("light", "dark"):
            await page.prefer(scheme)
            found[scheme] = await page.evaluate(COLORS)
        paper, ink = (found["light"][place] == found["dark"][place] for place in (0, 1))
        assert not paper and not ink
        drawn = list(zip(found["light"][2:], found["dark"][2:], strict=True))
        assert len(drawn) > 50 and all(light != dark for light, dark in drawn)
        # Tables scroll on their own.
        assert await page.evaluate("document.documentElement.scrollWidth") <= 400
        assert page.complaints == []
