"""Pages that are one file: the frame, style and tables that reports of runs, of chains and of several runs
share. Templates escape what a user or a model wrote."""

import re
from importlib import resources
from typing import Any

from markupsafe import Markup

from asyncrl.observe.metrics.charts import BLUE, GREEN, MUTED, ORANGE, PURPLE
from asyncrl.observe.terminal.curves import GRID, INK

VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "line",
    "#ffffff": "paper",
    BLUE: "blue",
    ORANGE: "orange",
    GREEN: "green",
    PURPLE: "purple",
}
"""Colour of a drawing -> the variable of report.css that has it, light and dark."""


def render_page(template: str, **values: Any) -> str:
    """`template`: PACKAGE/FILE, such as report/report.html."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FunctionLoader(_static)
    )
    style = Markup(_static("report/report.css"))
    return environment.get_template(template).render(style=style, **values)


def themed(svg: str) -> Markup:
    """The drawing in the page's colours, which follow the reader's choice of light or dark."""
    return Markup(re.sub(r"#[0-9a-f]{6}\b", lambda found: _variable(found[0]), svg))


def _variable(color: str) -> str:
    name = VARIABLES.get(color)
    return color if name is None else f"var(--{name})"


def _static(name: str) -> str:
    package, file = name.split("/")
    return (resources.files("asyncrl.readers") / package / "static" / file).read_text(encoding="utf-8")
