"""`asyncrl plan` for published models of each family: config.json alone says their parameters and memory."""

import json
from pathlib import Path

import yaml
from fakes.commands import Command
from families.known import tiny
from families.properties import of_each_family


@of_each_family("plan")
def test_plan_counts_a_published_model_from_its_config(
    architecture: str, tmp_path: Path, command: Command
) -> None:
    models = tiny(architecture).published
    assert models, "no published model"
    for config, count in models.values():
        (tmp_path / "config.json").write_text(json.dumps(config))
        recipe = {
            "name": "published",
            "model": {"path": str(tmp_path), "dtype": "bfloat16"},
            "data": {"train": "none.jsonl"},
            "evaluation": {"every_steps": 0},
        }
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        size_gb = 20 * count / 1e9
        arguments = ["plan", str(tmp_path / "recipe.yaml"), "--gpu-memory-gb"]
        assert f"parameters {count:,}\n" in command(*arguments, "100000").out
        # 18 bytes of state for each parameter do not fit into ten.
        assert "a trainer rank needs" in command(*arguments, size_gb / 2, code=2).err
