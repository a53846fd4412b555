"""The page that Prometheus scrapes: it agrees with the run, and whatever a label holds is read back."""

import re
from pathlib import Path

import aiohttp
import pytest
from fakes.controllers import controller_on, make_recipe
from fakes.engine import FakeEngine
from fakes.trackers import needs
from fakes.trainer import FakeTrainer

from asyncrl.observe.metrics.prometheus import Histogram, gauge, histogram, text

parser = pytest.importorskip("prometheus_client.parser", reason="make setup TRACKERS=1")

Samples = dict[str, dict[tuple[str, ...], float]]


async def scrape(url: str) -> tuple[Samples, dict[str, str]]:
    """Name -> label values -> value, and name -> type."""
    async with aiohttp.request("GET", f"{url}/metrics") as response:
        assert response.status == 200
        written = await response.text()
    samples: Samples = {}
    kinds: dict[str, str] = {}
    for family in parser.text_string_to_metric_families(written):
        kinds[family.name] = family.type
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return samples, kinds


async def test_a_scrape_agrees_with_the_run(tmp_path: Path) -> None:
    async with FakeEngine() as engine, controller_on(tmp_path, make_recipe(), [engine]) as found:
        controller, notebook = found
        trainer = FakeTrainer(controller.queue_url, tmp_path)
        await controller.run(trainer.run)
        samples, kinds = await scrape(controller.queue_url)
        counts = controller.queue.conservation()
        seconds = [row["step_seconds"] for row in notebook.steps]

    def value(name: str, *labels: str) -> float:
        return samples[f"asyncrl_{name}"][labels]

    assert value("tokens_generated_total") == counts["generated"] == 4 * 2 * 2 * 5
    assert value("tokens_trained_total") == counts["trained"]
    assert value("steps_total") == len(seconds) == 4 and value("policy_version") == 4
    assert value("step_seconds_count") == 4
    assert value("step_seconds_sum") == pytest.approx(sum(seconds))
    # Each group that was taken, and none of them above max_staleness: 1.
    assert value("staleness_versions_count") == 4 * 2
    assert value("staleness_versions_bucket", "1") == 4 * 2
    graded = sum(samples["asyncrl_verdicts_total"].values())
    assert graded == value("verifier_seconds_count") >= 4 * 2 * 2
    assert {labels[0] for labels in samples["asyncrl_verdicts_total"]} == {"exact"}
    assert value("servers", "serving") + value("servers", "suspect") == 1 and value("servers", "dead") == 0
    assert value("server_tokens_total", engine.url) >= counts["generated"]
    assert value("queue_groups", "open") == value("queue_groups", "ready") == 0
    last = notebook.steps[-1]
    assert value("value", "reward/mean") == pytest.approx(last["reward_mean"])
    assert value("value", "eval/greedy_accuracy") == notebook.evaluations[-1]["greedy_accuracy"]
    assert kinds["asyncrl_tokens_generated"] == "counter"
    assert kinds["asyncrl_step_seconds"] == kinds["asyncrl_verifier_seconds"] == "histogram"


async def test_the_page_lists_every_family(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "trackers.md").read_text()
    listed = set(re.findall(r"`asyncrl_(\w+)`", page))
    async with FakeEngine() as engine, controller_on(tmp_path, make_recipe(), [engine]) as (controller, _):
        _, kinds = await scrape(controller.queue_url)
    names = {f"{name}_total" if kind == "counter" else name for name, kind in kinds.items()}
    # Those of agents are there in runs that have one.
    of_agents = {name for name in listed if name.startswith("agent")}
    assert listed - of_agents == {name.removeprefix("asyncrl_") for name in names}


def test_a_histogram_counts_up_to_each_bound_and_all_in_the_last_bucket() -> None:
    counted = Histogram((1, 2.5))
    for value in (0.5, 1, 2, 7):
        counted.observe(value)
    assert list(histogram("step_seconds", "Of a step.", counted)) == [
        "# HELP asyncrl_step_seconds Of a step.",
        "# TYPE asyncrl_step_seconds histogram",
        'asyncrl_step_seconds_bucket{le="1"} 2',
        'asyncrl_step_seconds_bucket{le="2.5"} 3',
        'asyncrl_step_seconds_bucket{le="+Inf"} 4',
        "asyncrl_step_seconds_sum 10.5",
        "asyncrl_step_seconds_count 4",
    ]


@needs("prometheus_client")
def test_whatever_a_label_holds_is_read_back() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    labels = {"verifier": 'a "quoted"\\path\nof two lines', "outcome": "é"}
    written = text([gauge("g", 'Help with "quotes"\\ and\nlines.', [(labels, 1.5e-7), ({}, 10**15 + 1)])])
    (family,) = text_string_to_metric_families(written)
    assert family.documentation == 'Help with "quotes"\\ and\nlines.'
    assert [(s.labels, s.value) for s in family.samples] == [(labels, 1.5e-7), ({}, 10**15 + 1)]
