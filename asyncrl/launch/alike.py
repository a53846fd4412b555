"""Which starts of servers and trainers take about as long: what a bar's estimate is remembered by."""

import hashlib
import json
import platform
from pathlib import Path

from asyncrl.recipe import Recipe


def start_like(what: str, recipe: Recipe, model_folder: Path) -> str:
    """The words for a start of `what` (numbers included) on this machine: equal where the network, the engine
    and the layout are. Weights and rows do not count."""
    config = model_folder / "config.json"
    decides = {
        "network": config.read_text(encoding="utf-8", errors="replace") if config.is_file() else "",
        "adapters": recipe.model.model_dump(mode="json")["lora"],
        "device": recipe.placement.device,
        "colocated": recipe.placement.colocated,
        "backend": recipe.cluster.backend,
        "engine": recipe.serving.model_dump(mode="json", exclude={"first_port", "servers"}),
        "layout": recipe.trainer.parallel.model_dump(mode="json"),
    }
    text = json.dumps(decides, sort_keys=True)
    return f"{what} on {platform.node()}, {hashlib.sha256(text.encode()).hexdigest()[:16]}"
