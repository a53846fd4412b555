"""`asyncrl plan`: figures from config.json alone, and a refusal of what cannot fit."""

import json
from pathlib import Path

import pytest
import yaml
from fakes.recipes import make_recipe
from fakes.shapes import tiny_shape

from asyncrl import cli
from asyncrl.commands.plan import check_fits, first_token_staleness
from asyncrl.errors import InputError

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
}
"""Qwen3-8B."""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    path = tmp_path / "recipe.yaml"
    raw = {
        "name": "large",
        "model": {"path": str(tmp_path / "model"), "dtype": "bfloat16"},
        "data": {"train": "none.jsonl"},
        "evaluation": {"every_steps": 0},
    }
    path.write_text(yaml.safe_dump(raw))
    return path


def test_a_large_model_is_refused_on_a_gpu_it_cannot_fit(recipe: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["plan", str(recipe), "--gpu-memory-gb", "80"]) == 2
    captured = capsys.readouterr()
    # 8.19 billion parameters, as its card says; 18 bytes each of state alone.
    assert "parameters 8,190,735,360" in captured.out
    assert "a trainer rank needs" in captured.err and "72.0 GB" in captured.err
    assert "trainer.tokens_per_micro_batch" in captured.err


def test_it_fits_where_there_is_room(recipe: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["plan", str(recipe), "--gpu-memory-gb", "1000"]) == 0
    output = capsys.readouterr().out
    # 32768 tokens x 36 layers x 2 x 8 heads x 128 x 2 bytes
    assert "key-value cache             4.5 GiB  32768 tokens" in output
    assert "16 groups x 8 samples = 128 trajectories, at most 8,192 response tokens" in output


def test_gpus_are_counted_for_what_runs_here(recipe: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["trainer.num_processes=4", "serving.num_servers=2", "serving.tensor_parallel_size=2"]
    assert cli.main(["plan", str(recipe), *asked, "--gpu-memory-gb", "1000"]) == 0
    assert "8 where every process has its own: 4 for the trainer, 4 for servers\n" in capsys.readouterr().out
    elsewhere = [*asked, "serving.servers=[http://a:1]"]
    assert cli.main(["plan", str(recipe), *elsewhere, "--gpu-memory-gb", "1000"]) == 0
    assert "4 for the trainer, 0 for servers, those of external servers apart" in capsys.readouterr().out


def test_a_frozen_reference_is_counted_where_a_kl_needs_one(recipe: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["plan", str(recipe), "--gpu-memory-gb", "1000"]) == 0
    assert "  reference  " not in capsys.readouterr().out
    assert cli.main(["plan", str(recipe), "algorithm.kl_coefficient=0.1", "--gpu-memory-gb", "1000"]) == 0
    assert "  reference  " in capsys.readouterr().out


def test_a_critic_costs_as_much_state_as_a_policy_without_its_output_layer(
    recipe: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["plan", str(recipe), "--gpu-memory-gb", "1000"]) == 0
    assert "  critic  " not in capsys.readouterr().out
    assert cli.main(["plan", str(recipe), "algorithm.advantage=gae", "--gpu-memory-gb", "1000"]) == 0
    # (8,190,735,360 - 151,936 x 4,096 of the output layer + 4,096 of the head) x 32 bytes, a copy included
    assert "critic                    225.6 GiB" in capsys.readouterr().out


def test_more_processes_than_the_machine_has_memory_for_are_refused(
    recipe: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["plan", str(recipe), "trainer.num_processes=1000"]) == 2
    assert "1000 trainer rank(s) of" in capsys.readouterr().err


def test_a_folder_without_config_is_said(recipe: Path, capsys: pytest.CaptureFixture[str]):
    (recipe.parent / "model" / "config.json").unlink()
    assert cli.main(["plan", str(recipe)]) == 2
    assert "holds no config.json" in capsys.readouterr().err


def test_a_model_that_is_made_by_the_first_run_is_said(recipe: Path, capsys: pytest.CaptureFixture[str]):
    raw = yaml.safe_load(recipe.read_text())
    raw["prepare"] = {"target": "a.b:c", "folder": "x"}
    raw["model"]["path"] = str(recipe.parent / "none")
    recipe.write_text(yaml.safe_dump(raw))
    assert cli.main(["plan", str(recipe)]) == 2
    assert "is not made yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("capacity", "max_staleness", "expected"),
    [
        # 128 requests hold 16 groups of 8: one batch of 16 groups.
        (128, 2, (1.0, 16)),
        # 1024 hold 128, but 3 batches of 16 may be admitted.
        (1024, 2, (3.0, 48)),
        (1024, 0, (1.0, 16)),
    ],
)
def test_staleness_follows_from_what_is_in_flight(
    capacity: int, max_staleness: int, expected: tuple[float, int]
):
    recipe = make_recipe(
        Path("none"), rollout={"max_staleness": max_staleness}, serving={"max_running_requests": capacity}
    )
    assert first_token_staleness(recipe) == expected


def test_a_layout_that_the_model_does_not_divide_into_is_refused():
    recipe = make_recipe(Path("none"), trainer={"num_processes": 4, "parallel": {"tensor": 4}})
    with pytest.raises(InputError, match="trainer.parallel.tensor"):
        check_fits(recipe, tiny_shape(), gpu_memory_gb=None)


def test_oversampling_bounds_what_is_in_flight():
    recipe = make_recipe(
        Path("none"),
        rollout={"max_staleness": 2, "oversampling": 1.25},
        serving={"max_running_requests": 1024},
    )
    # 1.25 x 16 groups, although 3 x 16 may be admitted.
    assert first_token_staleness(recipe) == (1.25, 20)
