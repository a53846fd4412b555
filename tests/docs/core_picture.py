"""The picture of the core in docs/architecture.md, made from its list and from the imports of its files.

.venv/bin/python -P tests/docs/core_picture.py     draws it again
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
SECTION = "## Read these in an afternoon"
BLOCK = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)
SEAMS = {
    "step parts": ("trainer/parts", "trainer/step/part"),
    "take parts": ("controller/take_parts", "controller/trainer_wire"),
    "loss terms": ("algorithms/catalog", "algorithms/losses"),
    "transports": ("trainer/publishing/transports", "trainer/publishing/publish"),
}
"""Name -> what attaches there, and the file of the core that it attaches to."""
SHARED = "records"
"""Every stage passes its types on: no arrow."""


def stages(page: str) -> dict[str, list[str]]:
    """Stage -> its files, below asyncrl and without their ending."""
    section = page.partition(SECTION)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", section, re.MULTILINE)
    return {name: re.findall(r"`([\w/]+)\.py`", files) for name, files in rows if "`" in files}


def imported(file: str) -> Iterator[str]:
    """Files that a file of asyncrl imports."""
    source = (ROOT / "asyncrl" / f"{file}.py").read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                yield module.removeprefix("asyncrl.").replace(".", "/")


def picture(page: str) -> str:
    """An arrow leads from a stage to those whose files it imports, a dotted one from a seam to its stage."""
    stage_of = {file: stage for stage, files in stages(page).items() for file in files}
    arrows = []
    for stage, files in stages(page).items():
        asked = {each for file in files for each in imported(file)} & (stage_of.keys() - {SHARED})
        arrows += [f"  {stage} --> {other}" for other in sorted({stage_of[each] for each in asked} - {stage})]
    dotted = [f"  {name.replace(' ', '_')}([{name}]) -.-> {stage_of[at]}" for name, (_, at) in SEAMS.items()]
    return "\n".join(["```mermaid", "flowchart TD", *arrows, *dotted, "```", ""])


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda found: picture(page), page), encoding="utf-8")


if __name__ == "__main__":
    main()
