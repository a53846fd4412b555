"""`make docs`: the site of docs/ in .bench/site, by mkdocs-material. Every link must lead somewhere.

Pages keep their places (README.md, docs/, verifiers/README.md, ...), so their links are those of the
repository; files that they name are copied beside them. The navigation is the tables of docs/README.md.

Reference pages are generated and exist here alone: what each command says with --help, `asyncrl keys`,
`asyncrl algorithms`, and the recipes of published runs. Where a page names `asyncrl keys KEY` or `asyncrl
algorithms NAME`, the site links to it.
"""

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".bench" / "site"
SOURCE, BUILT = FOLDER / "source", FOLDER / "html"
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "verifiers/README.md")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ENTRY = re.compile(r"^(- |## |\| )`?([a-z0-9_.]+)`?(?= \(|$| \|)", re.MULTILINE)
"""A key, a section, or a row of a table, which becomes an anchor: keys.html#rollout.temperature."""
SHOWN = re.compile(r"(?<!\[)`asyncrl (keys|algorithms)(?: ([a-z0-9_.]+))?`")
SLUGIFY = "as GitHub"
"""Stands for a function, which plain YAML cannot hold."""
SLUGIFY_TAG = "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}"


def main() -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for page in (*PAGES, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*")))):
        copy(page)
    for page in sorted(SOURCE.rglob("*.md")):
        for named in linked(page):
            copy(str(named.relative_to(ROOT)))
    for page in sorted(SOURCE.rglob("*.md")):
        page.write_text(with_links(page), encoding="utf-8")
    for name, text in reference().items():
        (SOURCE / "docs" / name).write_text(text, encoding="utf-8")
    config = FOLDER / "mkdocs.yml"
    text = yaml.safe_dump(settings(), sort_keys=False)
    config.write_text(text.replace(f"slugify: {SLUGIFY}", f"slugify: {SLUGIFY_TAG}"), encoding="utf-8")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "true", "DISABLE_MKDOCS_2_WARNING": "true"}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", str(config)]
    code = subprocess.run(command, env=environment, check=False).returncode
    if code == 0:
        print(f"{(BUILT / 'index.html').relative_to(ROOT)}: {len(list(BUILT.rglob('*.html')))} pages")
    return code


def copy(name: str) -> None:
    source, target = ROOT / name, SOURCE / name
    if source.is_file() and not target.exists() and "__pycache__" not in source.parts:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def linked(page: Path) -> Iterator[Path]:
    """Files of the repository that a page links to."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        path = (ROOT / page.relative_to(SOURCE)).parent / target
        if "://" not in target and path.is_file():
            yield Path(os.path.normpath(path))


def with_links(page: Path) -> str:
    """The text of a page, in which commands that print keys and terms link to where the site has them."""
    folder = os.path.relpath(SOURCE / "docs", page.parent)

    def link(found: re.Match[str]) -> str:
        target = f"{folder}/{found[1]}-reference.md" + (f"#{found[2]}" if found[2] else "")
        return f"[{found[0]}]({os.path.normpath(target)})"

    text = page.read_text(encoding="utf-8")
    parts = re.split(f"({FENCE.pattern})", text, flags=FENCE.flags)
    return "".join(part if place % 2 else SHOWN.sub(link, part) for place, part in enumerate(parts))


def reference() -> dict[str, str]:
    """Name -> text of each generated page."""
    keys, terms = (
        ENTRY.sub(r'\1<span id="\2"></span>`\2`', asyncrl(name)) for name in ("keys", "algorithms")
    )
    return {
        "commands-reference.md": commands_page(),
        "keys-reference.md": keys,
        "algorithms-reference.md": f"# Loss terms and presets\n\n{terms}",
        "published-reference.md": runpy.run_path(str(ROOT / ".make" / "published.py"))["page"](),
    }


def asyncrl(*words: str) -> str:
    """The output of a command."""
    return subprocess.run(
        [sys.executable, "-m", "asyncrl.commands.main", *words],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def navigation() -> list[dict[str, object]]:
    """The sections of docs/README.md with their pages, titled as the pages are."""
    sections: list[dict[str, object]] = [{"asyncrl": "README.md"}]
    for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", index(), re.MULTILINE | re.DOTALL):
        pages = dict.fromkeys(link for link in LINK.findall(body) if link.endswith(".md"))
        places = [os.path.normpath(f"docs/{page}") for page in pages]
        sections.append({title: [{heading(SOURCE / place): place} for place in places]})
    sections[-1][next(iter(sections[-1]))] += [{"Changelog": "CHANGELOG.md"}]  # type: ignore[operator]
    pages = sorted(SOURCE.glob("docs/*-reference.md"))
    sections.insert(2, {"Reference": [{heading(page): str(page.relative_to(SOURCE))} for page in pages]})
    return sections


def index() -> str:
    return (ROOT / "docs" / "README.md").read_text(encoding="utf-8")


def heading(page: Path) -> str:
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else page.stem


def commands_page() -> str:
    """Every command with what it says of itself."""
    sys.path.insert(0, str(ROOT))
    from asyncrl.commands.main import COMMANDS as commands

    parts = ["# Commands\n"]
    for name, text in commands.items():
        said = asyncrl(name, "--help").strip()
        parts.append(f"## {name}\n\n{text[0].upper()}{text[1:]}.\n\n```text\n{said}\n```\n")
    return "\n".join(parts)


def version() -> str:
    """The package's version; with "unreleased" and the commit, unless that has its tag and no changes."""
    found = re.search(
        r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found is not None
    commit = git("rev-parse", "--short=8", "HEAD")
    has_changes = bool(git("status", "--porcelain"))
    if not commit or (f"v{found[1]}" in git("tag", "--points-at", "HEAD").split() and not has_changes):
        return found[1]
    return f"{found[1]} unreleased, {commit}{' with changes' if has_changes else ''}"


def git(*words: str) -> str:
    """The words that git prints; none where the files are no repository of it."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return ""
    found = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def settings() -> dict[str, object]:
    return {
        "site_name": f"asyncrl {version()}",
        "copyright": f"Of asyncrl {version()}.",
        "docs_dir": str(SOURCE),
        "site_dir": str(BUILT),
        # Pages open from a disk, without a server.
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            # A reader's browser asks no other host.
            "font": False,
            "features": [
                "navigation.sections",
                "navigation.top",
                "search.highlight",
                "content.code.copy",
                "toc.follow",
            ],
            "palette": [
                {"media": "(prefers-color-scheme: light)", "scheme": "default"},
                {"media": "(prefers-color-scheme: dark)", "scheme": "slate"},
            ],
        },
        "plugins": ["search"],
        "markdown_extensions": [
            "tables",
            "attr_list",
            {"toc": {"permalink": True, "slugify": SLUGIFY}},
            "pymdownx.superfences",
            "pymdownx.highlight",
        ],
        "validation": {"links": {"not_found": "warn", "anchors": "warn", "unrecognized_links": "warn"}},
        "nav": navigation(),
        "not_in_nav": "/docs/README.md\n",
    }


if __name__ == "__main__":
    sys.exit(main())
