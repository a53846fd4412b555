"""Recipes as files: every mistake is named with its key, its value and a way out."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import dump_recipe, load_recipe, model_recipe, parse_recipe, shown

MINIMAL = "name: t\nmodel: {path: m}\ndata: {train: d.jsonl, heldout: h.jsonl}\n"


def write(folder: Path, text: str = MINIMAL) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def test_the_resolved_recipe_reads_back_equal(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path), ["trainer.learning_rate=3e-4", "serving.servers=[http://a:1]"])
    again = write(tmp_path, dump_recipe(recipe))
    assert load_recipe(again) == recipe


def test_overrides_are_yaml(tmp_path: Path) -> None:
    recipe = load_recipe(
        write(tmp_path),
        ["rollout.max_staleness=0", "data.is_shuffled=false", "evaluation.stop_at_accuracy=0.9"],
    )
    assert recipe.rollout.max_staleness == 0
    assert recipe.data.is_shuffled is False
    assert recipe.evaluation.stop_at_accuracy == 0.9


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.max_stalenes=0", r"unknown key rollout\.max_stalenes\. Did you mean max_staleness\?"),
        ("rolout.max_staleness=0", r"unknown key rolout\. Did you mean rollout\?"),
        ("trainer.zzz=0", r"Known here: num_steps"),
        ("rollout.max_staleness=many", r"rollout\.max_staleness is 'many'"),
        ("algorithm={rejection: [token_range, magic]}", r"algorithm\.rejection\.1 is 'magic'"),
        ("model.path=null", r"model\.path is null"),
        ("rollout.max_staleness", r"Write section\.key=value"),
        ("name.x=1", r"name is a value, not a section"),
        ("rollout.temperature=[", r"not YAML"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_recipe(write(tmp_path), [override])


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model is missing"):
        load_recipe(write(tmp_path, "name: t\ndata: {train: d, heldout: h}\n"))


@pytest.mark.parametrize(
    ("text", "said"), [("- a\n", "holds a list"), ("a: [", "cannot be read as YAML"), ("", "is empty")]
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_recipe(write(tmp_path, text))


PYTHON = re.compile(
    r"NoneType|\bNone\b|\bTrue\b|\bFalse\b|\bdict(ionary)?\b|\bstr(ing)?s?\b|\binstance\b|\btuple\b"
)
"""Words of Python, or of programmers, for values of YAML."""


@pytest.mark.parametrize("value", ["null", "3", "true", "[1]", "{1: 2}", "{a: 2}", "0.5", "x y", "[[null]]"])
def test_a_value_of_another_kind_is_complained_of_in_words_of_yaml(tmp_path: Path, value: str) -> None:
    path, num_refused = write(tmp_path), 0
    for key in all_keys(Recipe):
        try:
            load_recipe(path, [f"{key}={value}"])
        except InputError as error:
            num_refused += 1
            assert not PYTHON.search(str(error)), f"{key}={value}: {error}"
    assert num_refused > 10


def all_keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from all_keys(field.annotation, f"{prefix}{name}.")


def test_a_missing_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no recipe"):
        load_recipe(tmp_path / "none.yaml")


def test_a_term_in_a_file_is_found_from_the_recipes_folder_also_by_its_copy_elsewhere(tmp_path: Path) -> None:
    text = "name: t\nmodel: {path: m}\ndata: {train: d}\nevaluation: {every_steps: 0}\n"
    text += "algorithm: {surrogate: './own.py:loss', rejection: ['./own.py:keep', token_veto]}\n"
    (tmp_path / "recipe.yaml").write_text(text)
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert recipe.algorithm.surrogate.name == f"{tmp_path.resolve()}/own.py:loss"
    assert [term.name for term in recipe.algorithm.rejection] == [
        f"{tmp_path.resolve()}/own.py:keep",
        "token_veto",
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "run" / "recipe.yaml") == recipe


def test_paths_of_a_recipe_are_relative_to_it_and_those_of_the_command_line_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = write(tmp_path, MINIMAL + "verifying: {default: './mine.py:V', options: {parts: ['./b.py:W']}}\n")
    for written in (path, Path("../recipe.yaml")):
        recipe = load_recipe(written, ["data.train=t.jsonl", "evaluation.num_tasks=3", "model={path: ~/m}"])
        assert recipe.data.train == f"{tmp_path}/elsewhere/t.jsonl"
        assert recipe.data.heldout == f"{tmp_path}/h.jsonl"
        assert recipe.model.path == f"{tmp_path}/home/m"
        assert recipe.verifying.default == f"{tmp_path}/mine.py:V"
        assert recipe.verifying.options == {"parts": [f"{tmp_path}/b.py:W"]}
        assert recipe.verifying.own_files() == tmp_path
        assert recipe.folder() == tmp_path / "runs" / "t"
    assert load_recipe(path, ["verifying={default: './over here.py:V'}"]).verifying.default == (
        f"{tmp_path}/elsewhere/over here.py:V"
    )
    assert load_recipe(path, ["run_folder=r-{name}"]).folder() == tmp_path / "elsewhere" / "r-t"


def test_a_models_hub_id_stays_unless_that_path_exists_or_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere" / "owner" / "here").mkdir(parents=True)
    (tmp_path / "owner" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    text = "name: t\nmodel: {path: owner/NAME}\ndata: {train: d.jsonl, heldout: h.jsonl}\n"
    path = write(tmp_path, text.replace("NAME", "here"))
    # Relative to the recipe there is no such folder; relative to the current one there is.
    assert load_recipe(path).model.path == "owner/here"
    assert load_recipe(path, ["model.path=owner/here"]).model.path == f"{tmp_path}/elsewhere/owner/here"
    assert load_recipe(path, ["model.path=owner/model"]).model.path == "owner/model"
    assert load_recipe(path, ["data.train=owner/r.jsonl"]).data.train == f"{tmp_path}/elsewhere/owner/r.jsonl"
    write(tmp_path, text.replace("NAME", "model"))
    assert load_recipe(path).model.path == f"{tmp_path}/owner/model"
    write(tmp_path, text.replace("NAME", "new") + "prepare: {folder: owner, target: './own.py:make'}\n")
    assert load_recipe(path).model.path == f"{tmp_path}/owner/new"
    assert load_recipe(path, ["model.path=other/new"]).model.path == "other/new"


def test_people_see_a_path_below_the_current_folder_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "runs" / "t") == Path("runs/t")
    assert shown(tmp_path.parent / "t") == tmp_path.parent / "t"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MINIMAL + "name: u\n", "name appears twice, in lines 1 and 4"),
        (MINIMAL + "data: {train: e}\n", "data appears twice, in lines 3 and 4"),
        (MINIMAL + "rollout: {temperature: 1, temperature: 2}\n", "temperature appears twice"),
    ],
)
def test_a_key_that_is_written_twice_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_recipe(write(tmp_path, text))


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(MINIMAL, encoding="utf-8-sig")
    assert load_recipe(tmp_path / "recipe.yaml").name == "t"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["seed=1", "rollout.max_staleness=many"],
            r'^override "rollout.max_staleness=many": rollout\.max_st',
        ),
        (["rollout={max_staleness: many}"], r'^override "rollout={max_staleness: many}": rollout\.max_st'),
        (
            ["seed=1", "serving.max_running_requests=4"],
            r'^override "serving.max_running_requests=4": rollout',
        ),
        (["trainer.zzz=0"], r'^override "trainer.zzz=0": unknown key'),
    ],
)
def test_an_error_that_an_override_made_names_it(tmp_path: Path, overrides: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_recipe(write(tmp_path), overrides)


def test_paths_of_sources_follow_the_rule_and_hub_ids_stay(tmp_path: Path) -> None:
    (tmp_path / "data" / "rows").mkdir(parents=True)
    train = [
        "data/t.jsonl",
        "data/rows",
        {"path": "openai/gsm8k", "columns": "./own.py:to_row"},
        {"path": "../x.parquet", "columns": "gsm8k"},
    ]
    raw = {
        "name": "x",
        "model": {"path": "m"},
        "data": {"train": train, "heldout": {"path": "./h.json"}},
        "evaluation": {"every_steps": 0},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(raw))
    recipe = load_recipe(tmp_path / "recipe.yaml")
    found = [(source.path, source.columns) for source in recipe.data.train_sources()]
    assert found == [
        (f"{tmp_path}/data/t.jsonl", "asyncrl"),
        (f"{tmp_path}/data/rows", "asyncrl"),
        ("openai/gsm8k", f"{tmp_path}/own.py:to_row"),
        (f"{tmp_path.parent}/x.parquet", "gsm8k"),
    ]
    assert recipe.data.heldout_sources()[0].path == f"{tmp_path}/h.json"
    again = tmp_path / "elsewhere.yaml"
    again.write_text(dump_recipe(recipe))
    assert load_recipe(again).data == recipe.data


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"train": 3}, "data.train is 3: expected text"),
        ({"train": {"path": "a", "colums": "gsm8k"}}, "data.train.colums. Did you mean columns?"),
        ({"train": ["a", {"path": "b", "wieght": 2}]}, "data.train.1.wieght. Did you mean weight?"),
        ({"train": ["a", {"path": "b", "weight": 2}]}, "a weight to b, but none to a"),
        ({"train": []}, "is an empty list"),
        (
            {"train": "a", "heldout": ["b", {"path": "c", "weight": 2}]},
            "data.heldout gives a weight to c, but none to b",
        ),
        ({"train": {"path": "a", "columns": {"prompt": "q"}}}, "data.train.columns.answer is missing"),
        (
            {"train": {"path": "a", "columns": {"prompt": "q", "answer": "a", "anser_after": "#"}}},
            "data.train.columns.anser_after. Did you mean answer_after?",
        ),
    ],
)
def test_a_mistake_in_a_source_is_named(data: dict[str, object], sentence: str) -> None:
    raw = {"name": "x", "model": {"path": "m"}, "data": data, "evaluation": {"every_steps": 0}}
    with pytest.raises(InputError) as refused:
        parse_recipe(raw, source="recipe.yaml")
    assert sentence in str(refused.value)


def test_benchmarks_that_are_files_are_relative_to_the_recipe_and_names_stay(tmp_path: Path) -> None:
    named = "evaluation: {benchmarks: [gsm8k, own/rows.jsonl, 'aime24:copies/aime24.parquet']}\n"
    found = load_recipe(write(tmp_path, MINIMAL + named)).evaluation.benchmarks
    assert found == ["gsm8k", f"{tmp_path}/own/rows.jsonl", f"aime24:{tmp_path}/copies/aime24.parquet"]


def test_a_model_alone_has_a_recipe_of_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert model_recipe("model", ["model.context_tokens=128"]).model.path == str(tmp_path / "model")
    assert model_recipe("Qwen/Qwen2.5-0.5B").model.path == "Qwen/Qwen2.5-0.5B"


def overlay(folder: Path, text: str) -> str:
    (folder / "over").mkdir(exist_ok=True)
    (folder / "over" / "overlay.yaml").write_text(text)
    return f"@{folder}/over/overlay.yaml"


def test_an_overlay_is_merged_key_by_key_in_the_order_of_the_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, f"{MINIMAL}rollout: {{max_staleness: 0, samples_per_group: 4}}\n")
    given = overlay(tmp_path, "rollout: {max_staleness: 3, stop: [a]}\ntrainer: {num_steps: 7}\n")
    recipe = load_recipe(path, ["trainer.num_steps=5", given, "rollout.stop=[b]"])
    rollout = recipe.rollout
    assert (rollout.max_staleness, rollout.samples_per_group, rollout.stop) == (3, 4, ["b"])
    assert recipe.trainer.num_steps == 7


def test_paths_of_an_overlay_are_relative_to_it(tmp_path: Path) -> None:
    given = overlay(tmp_path, "run_folder: ../out/{name}\ndata: {heldout: h.jsonl}\n")
    recipe = load_recipe(write(tmp_path), [given])
    assert recipe.folder() == tmp_path / "out" / "t"
    assert recipe.data.heldout_sources()[0].path == str(tmp_path / "over" / "h.jsonl")
    assert recipe.data.train_sources()[0].path == str(tmp_path / "d.jsonl")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rollout: {max_staleness: many}", r'override "@.*overlay\.yaml": rollout\.max_staleness is'),
        ("rollout: {max_stalenes: 1}", r'override "@.*": unknown key rollout\.max_stalenes\. Did you mean'),
        ("rolout: {max_staleness: 1}", r'override "@.*": unknown key rolout\. Did you mean rollout'),
        ("rollout: {max_new_tokens: 99}\nmodel: {context_tokens: 9}", r'override "@.*": rollout\.max_new_to'),
        ("- a", r"overlay\.yaml holds a list, expected the sections of a recipe"),
    ],
)
def test_a_mistake_in_an_overlay_names_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_recipe(write(tmp_path), [overlay(tmp_path, text)])


def test_a_missing_overlay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no overlay at .*none\.yaml"):
        load_recipe(write(tmp_path), [f"@{tmp_path}/none.yaml"])
