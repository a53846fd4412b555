"""The text that Prometheus reads, by its own parser."""

import pytest
from fakes.trackers import needs

from asyncrl.observe.metrics.prometheus import Histogram, counter, gauge, histogram, text


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


def test_a_counter_says_so_in_its_name() -> None:
    with pytest.raises(AssertionError, match="tokens"):
        counter("tokens", "", 1)


@needs("prometheus_client")
def test_whatever_a_label_holds_is_read_back() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    labels = {"verifier": 'a "quoted"\\path\nof two lines', "outcome": "é"}
    written = text([gauge("g", 'Help with "quotes"\\ and\nlines.', [(labels, 1.5e-7), ({}, 10**15 + 1)])])
    (family,) = text_string_to_metric_families(written)
    assert family.documentation == 'Help with "quotes"\\ and\nlines.'
    assert [(s.labels, s.value) for s in family.samples] == [(labels, 1.5e-7), ({}, 10**15 + 1)]
