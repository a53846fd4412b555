"""The recipe: every mistake is named with its key, its value and a way out."""

import math
from pathlib import Path

import pytest

from asyncrl.algorithms.surrogates import clip_range
from asyncrl.errors import InputError
from asyncrl.recipe.file import dump_recipe, load_recipe, shown

NO_WEIGHT = "algorithm.importance_weight=none"
MINIMAL = "name: t\nmodel: {path: m}\ndata: {train: d.jsonl, heldout: h.jsonl}\n"


def write(folder: Path, text: str = MINIMAL) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def test_a_minimal_recipe_has_a_default_for_everything_else(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path))
    assert (recipe.rollout.groups_per_batch, recipe.rollout.max_staleness) == (16, 2)
    assert recipe.folder() == tmp_path / "runs" / "t"


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
        ("rollout.samples_per_group=0", r"rollout\.samples_per_group is 0"),
        ("rollout.samples_per_group=1", r"rollout\.samples_per_group is 1 .* or algorithm\.advantage to gae"),
        ("trainer.learning_rate=-1", r"trainer\.learning_rate is -1"),
        ("trainer.learning_rate=.inf", r"trainer\.learning_rate is inf"),
        ("trainer.learning_rate=.nan", r"trainer\.learning_rate is nan"),
        ("trainer.learning_rate=1.0e+6", r"trainer\.learning_rate is 1000000\.0: .*less than or equal to 1"),
        ("critic.learning_rate=.inf", r"critic\.learning_rate is inf"),
        ("rollout.temperature=.inf", r"rollout\.temperature is inf"),
        ("algorithm.kl_coefficient=.inf", r"algorithm\.kl_coefficient is inf"),
        ("algorithm.entropy_coefficient=.inf", r"algorithm\.entropy_coefficient is inf"),
        ("algorithm.overlong_penalty=.inf", r"algorithm\.overlong_penalty is inf"),
        ("algorithm.veto_low=.inf", r"algorithm\.veto_low is inf"),
        ("algorithm.dual_clip=.inf", r"algorithm\.dual_clip is inf"),
        ("rollout.oversampling=.inf", r"rollout\.oversampling is inf"),
        ("algorithm.advantage=magic", r"algorithm\.advantage is 'magic'.*'grpo', 'dr_grpo'"),
        ("algorithm.mask_low=9", r"algorithm\.mask_low is 9.*algorithm\.mask_high is 5"),
        ("algorithm.clip_around=behavior", r"Set algorithm\.importance_weight to none"),
        ("algorithm.overlong_buffer_tokens=64", r"every response would be punished"),
        ("trainer.optimizer_steps_per_batch=17", r"rollout\.groups_per_batch is 16"),
        ("algorithm={advantage: pass_at_k, pass_k: 9}", r"no 9 answers to take the best of"),
        ("algorithm={rejection: [token_range, magic]}", r"algorithm\.rejection\.1 is 'magic'"),
        ("model.path=null", r"model\.path is None"),
        ("rollout.max_staleness", r"Write section\.key=value"),
        ("name.x=1", r"name is a value, not a section"),
        ("rollout.temperature=[", r"not YAML"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_recipe(write(tmp_path), [override])


def test_a_critic_allows_groups_of_one(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path), ["algorithm.advantage=gae", "rollout.samples_per_group=1"])
    assert recipe.algorithm.needs_critic() and recipe.algorithm.min_group_size() == 1


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.context_tokens=64", "rollout.max_new_tokens=64"], "Lower rollout.max_new_tokens or raise"),
        (["serving.max_running_requests=4"], "Raise serving.max_running_requests to at least 8"),
        (["evaluation.every_steps=0", "evaluation.stop_at_accuracy=0.9"], "Set evaluation.every_steps"),
        (["algorithm.advantage=gae", "critic.warmup_steps=50"], "Lower critic.warmup_steps"),
        (
            ["algorithm.advantage=gae", "rollout.samples_per_group=1", "replay.drops_no_signal=true"],
            "Set replay.drops_no_signal to false",
        ),
        (
            ["replay.repeated_groups_per_batch=4", "rollout.max_staleness=0"],
            "nothing may be trained a second time. Set rollout.max_staleness",
        ),
        (["replay.repeated_groups_per_batch=17"], "there are 16 at most. Lower it, or raise replay.max_uses"),
        (["data.heldout=null"], "Name a held-out file in data.heldout"),
    ],
)
def test_an_impossible_combination_says_which_two_keys_and_what_to_change(
    tmp_path: Path, overrides: list[str], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        load_recipe(write(tmp_path), overrides)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (["algorithm.surrogate=reinforce", "algorithm.clip_around=behavior", NO_WEIGHT], "takes no ratio"),
        (["algorithm.surrogate=gspo", "algorithm.dual_clip=3"], "gspo has no second bound"),
        (["algorithm.importance_floor=3"], "every weight would be the same"),
        (
            ["algorithm.importance_floor=0.5", "algorithm.importance_weight=masked"],
            "masked has no lower bound",
        ),
        (["algorithm.clip_around=behavior"], "the same ratio would count twice"),
        (["algorithm.advantage=gae", "replay.drops_no_signal=true"], "a group teaches also where"),
        (["algorithm.advantage=reinforce_pp", "replay.drops_no_signal=true"], "a group teaches also where"),
    ],
)
def test_terms_that_cannot_work_together_are_refused_with_a_way_out(
    tmp_path: Path, override: list[str], said: str
) -> None:
    with pytest.raises(InputError, match=said) as error:
        load_recipe(write(tmp_path), override)
    assert "Set " in str(error.value) or "set " in str(error.value) or "Lower " in str(error.value)


@pytest.mark.parametrize(
    ("surrogate", "low", "high"),
    [
        ("ppo_clip", 0.8, 1.2),
        ("gspo", 0.8, 1.2),
        ("cispo", 0.0, 1.2),
        ("gmpo", math.exp(-0.4), math.exp(0.4)),
    ],
)
def test_a_clip_range_that_is_not_set_is_that_of_the_surrogates_paper(
    tmp_path: Path, surrogate: str, low: float, high: float
) -> None:
    algorithm = load_recipe(write(tmp_path), [f"algorithm.surrogate={surrogate}"]).algorithm
    assert clip_range(algorithm) == pytest.approx((low, high), abs=1e-4)
    set_high = load_recipe(write(tmp_path), [f"algorithm.surrogate={surrogate}", "algorithm.clip_high=0.5"])
    assert clip_range(set_high.algorithm) == pytest.approx((low, 1.5), abs=1e-4)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model is missing"):
        load_recipe(write(tmp_path, "name: t\ndata: {train: d, heldout: h}\n"))


@pytest.mark.parametrize(
    ("text", "said"), [("- a\n", "holds list"), ("a: [", "cannot be read as YAML"), ("", "NoneType")]
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_recipe(write(tmp_path, text))


def test_a_missing_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no recipe"):
        load_recipe(tmp_path / "none.yaml")


def test_a_term_in_a_file_is_found_from_the_recipes_folder_also_by_its_copy_elsewhere(tmp_path: Path) -> None:
    text = "name: t\nmodel: {path: m}\ndata: {train: d}\nevaluation: {every_steps: 0}\n"
    text += "algorithm: {surrogate: './own.py:loss', rejection: ['./own.py:keep', token_veto]}\n"
    (tmp_path / "recipe.yaml").write_text(text)
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert recipe.algorithm.surrogate == f"{tmp_path.resolve()}/own.py:loss"
    assert recipe.algorithm.rejection == [f"{tmp_path.resolve()}/own.py:keep", "token_veto"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "run" / "recipe.yaml") == recipe


def test_remax_asks_for_room_for_its_greedy_trajectory(tmp_path: Path) -> None:
    text = "name: t\nmodel: {path: m}\ndata: {train: d}\nevaluation: {every_steps: 0}\n"
    text += "algorithm: {advantage: remax}\nserving: {max_running_requests: 8}\n"
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(InputError, match="9 requests per group.*at least 9"):
        load_recipe(tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml", ["algorithm.advantage=grpo"]).trajectories_per_group() == 8


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


def test_people_see_a_path_below_the_current_folder_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "runs" / "t") == Path("runs/t")
    assert shown(tmp_path.parent / "t") == tmp_path.parent / "t"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MINIMAL + "name: u\n", "name is there twice, in lines 1 and 4"),
        (MINIMAL + "data: {train: e}\n", "data is there twice, in lines 3 and 4"),
        (MINIMAL + "rollout: {temperature: 1, temperature: 2}\n", "temperature is there twice"),
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
