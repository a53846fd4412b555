"""Prometheus's text format, version 0.0.4: families of counters, gauges and histograms, as lines.

Source: prometheus.io/docs/instrumenting/exposition_formats. Owns the rule that every name begins with
`asyncrl_` and a counter's ends with `_total`. Keeps no state but that of a Histogram.
"""

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "asyncrl_"
Sample = tuple[Mapping[str, str], float]
"""Labels and value."""


class Histogram:
    """Counts values by size, cheaply enough for each verdict."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascending: a value counts in the first bucket whose bound it does not exceed."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value


def counter(name: str, help: str, samples: Iterable[Sample] | float) -> Iterator[str]:
    """A number that only rises, since the run began or since this start."""
    assert name.endswith("_total"), name
    return _family(name, "counter", help, samples)


def gauge(name: str, help: str, samples: Iterable[Sample] | float) -> Iterator[str]:
    """A number as it is now."""
    return _family(name, "gauge", help, samples)


def histogram(name: str, help: str, counted: Histogram) -> Iterator[str]:
    yield from _head(name, "histogram", help)
    total = 0
    for bound, count in zip((*counted.bounds, None), counted.counts, strict=True):
        total += count
        upper = "+Inf" if bound is None else _number(bound)
        yield _line(f"{name}_bucket", {"le": upper}, total)
    yield _line(f"{name}_sum", {}, counted.sum)
    yield _line(f"{name}_count", {}, total)


def text(families: Iterable[Iterable[str]]) -> str:
    """The answer to a scrape."""
    return "".join(f"{line}\n" for lines in families for line in lines)


def _family(name: str, kind: str, help: str, samples: Iterable[Sample] | float) -> Iterator[str]:
    found = [({}, samples)] if isinstance(samples, (int, float)) else samples
    yield from _head(name, kind, help)
    for labels, value in found:
        yield _line(name, labels, value)


def _head(name: str, kind: str, help: str) -> Iterator[str]:
    escaped = help.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {PREFIX}{name} {escaped}"
    yield f"# TYPE {PREFIX}{name} {kind}"


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{PREFIX}{name}{{{inside}}} {_number(value)}" if inside else f"{PREFIX}{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    """Whole numbers without a fraction: a counter of tokens stays exact."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))
