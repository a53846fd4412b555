"""Missing golds in real files, as `asyncrl verify-data` and `asyncrl check` meet them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.base_model import write_base_model
from fakes.commands import Command

from asyncrl.commands import main as cli

GOOD = [{"prompt": f"{n}+1=", "answer": float(n + 1)} for n in range(3)]


def with_arrow(path: Path, rows: list[dict[str, Any]]) -> None:
    # Not above, nor pandas below: every process of a run of tests imports this file.
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def with_pandas(path: Path, rows: list[dict[str, Any]]) -> None:
    import pandas

    pandas.DataFrame(rows).to_parquet(path)


def with_json_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def with_json(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps({"version": 2, "data": rows}))


@pytest.fixture
def verify_data(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(path: Path, *more: str) -> tuple[int, str]:
        code = cli.main(["verify-data", str(path), *more])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return code, said.out + said.err

    return run


@pytest.mark.parametrize(
    ("verifier", "write", "gold"),
    [
        # tests/verifiers/test_golds.py has every spelling under every verifier.
        *(("math", write, gold) for write in (with_arrow, with_pandas) for gold in (math.nan, None)),
        ("./own.py:V", with_arrow, ""),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value),
)
def test_parquet_without_an_answer_is_listed_with_its_row(
    write: Callable[..., None],
    gold: object,
    verifier: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verify_data: Callable[..., tuple[int, str]],
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    good = [{**row, "answer": str(row["answer"])} for row in GOOD] if isinstance(gold, str) else GOOD
    write(tmp_path / "rows.parquet", [*good, {"prompt": "?", "answer": gold}])
    code, said = verify_data(tmp_path / "rows.parquet", "--verifier", verifier)
    assert code == 1 and f"{tmp_path}/rows.parquet, row 4: The gold is missing" in said, said
    assert "broken golds     1 of 4" in said


OWN = """
from verifiers.verdict import correct, wrong
class V:
    def parse_reference(self, raw): return str(raw)
    def verify(self, response, reference):
        return correct() if response == "\\\\boxed{%s}" % reference else wrong()
"""


def test_a_folder_that_the_datasets_library_reads_is_no_way_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_command: Command
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "published").mkdir()
    with_arrow(tmp_path / "published" / "train.parquet", [*GOOD, {"prompt": "?", "answer": math.nan}])
    recipe = recipe_on(tmp_path, tmp_path / "published", Path("nowhere"))
    said = whole_command("verify-data", recipe, code=1).out
    assert "published train, row 4: The gold is missing: it is nan" in said


FLAWS = [
    ('"answer": NaN', "NaN is not JSON"),
    ('"answer": 2, "more": {"inside": [1, -Infinity]}', "-Infinity is not JSON"),
    ('"answer": 1e400', "the number 1e400 is out of the range of a float"),
    ('"answer": 2, "answer": 3', 'the key "answer" stands twice'),
    ('"answer": 2, "more": [{"a": 1, "a": 1}]', 'the key "a" stands twice'),
]


@pytest.mark.parametrize(("fields", "complaint"), FLAWS)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "lines.json"])
def test_what_is_no_json_is_refused_with_its_row(
    name: str, fields: str, complaint: str, tmp_path: Path, verify_data: Callable[..., tuple[int, str]]
) -> None:
    lines = [*map(json.dumps, GOOD), f'{{"prompt": "?", {fields}}}']
    is_list = name == "rows.json"
    (tmp_path / name).write_text(f"[{','.join(lines)}]" if is_list else "\n".join(lines))
    code, said = verify_data(tmp_path / name)
    where = f"{tmp_path}/{name}, row 4" if is_list else f"{tmp_path}/{name}:4"
    assert code == 2 and f"{where}: not JSON: {complaint}" in said, said


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base_model(tmp_path_factory.mktemp("model"))


def recipe_on(folder: Path, train: Path, model: Path) -> Path:
    recipe = {
        "name": "t",
        "run_folder": str(folder / "run"),
        "model": {"path": str(model)},
        "data": {"train": str(train)},
        "rollout": {"max_new_tokens": 16},
        "evaluation": {"every_steps": 0},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "recipe.yaml"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_check_refuses_the_row_before_anything_starts(
    name: str, model: Path, tmp_path: Path, whole_command: Command
) -> None:
    path = tmp_path / name
    write = {"rows.jsonl": with_json_lines, "rows.json": with_json, "rows.parquet": with_arrow}[name]
    write(path, [*GOOD, {"prompt": "?", "answer": math.nan}])
    said = whole_command("check", recipe_on(tmp_path, path, model), code=2).err
    where = f"{path}:4" if name == "rows.jsonl" else f"{path}, row 4"
    assert where in said and "Traceback" not in said
    assert ("The gold is missing: it is nan" if name == "rows.parquet" else "NaN is not JSON") in said
