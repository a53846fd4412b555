"""Run in a process of its own, with the server's environment: what SGLang reads of config.json and misses.

Prints one line per family: its architecture and what SGLang's model lacks in a config.json as transformers
saves it, though the published config.json has it. compare.py runs it.
"""

import ast
import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.utils.hf_transformers.config import get_config

from asyncrl.serving.engine.hooks import completed_models
from asyncrl.serving.engine.plugin import register

sys.path.append(str(Path(__file__).parents[2]))

from families.known import TINY

MODELS = "sglang.srt.models."
FOLDER = Path(str(importlib.util.find_spec(MODELS + "llama").origin)).parent


def read_attributes(module: str, seen: set[str]) -> Iterator[str]:
    """Attributes of `config` that a module of SGLang's models reads, and those that it imports from."""
    if module in seen:
        return
    seen.add(module)
    for node in ast.walk(ast.parse((FOLDER / f"{module.replace('.', '/')}.py").read_text())):
        match node:
            case ast.ImportFrom(module=str(base)) if (FOLDER / f"{base.removeprefix(MODELS)}.py").exists():
                yield from read_attributes(base.removeprefix(MODELS), seen)
            case ast.Attribute(value=ast.Name("config") | ast.Attribute(attr="config"), attr=name):
                yield name


def lacking(config: Mapping[str, Any]) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        found = get_config(folder, trust_remote_code=False)
    # SGLang names some otherwise, and leaves the models that it does not have to transformers.
    for file in FOLDER.glob("*.py"):
        if f"\nclass {found.architectures[0]}(" in file.read_text():
            return {name for name in read_attributes(file.stem, set()) if not hasattr(found, name)}
    return set()


def main() -> None:
    register(completed_models.hooks())
    HookRegistry.apply_hooks()
    for architecture, entry in TINY.items():
        config = getattr(transformers, f"{entry.config}Config")
        own = {*config().to_dict(), *config.attribute_map}
        settings = {name: value for name, value in entry.settings.items() if name in own}
        saved = config(**settings, num_hidden_layers=2).to_dict()
        (published, _), *_ = entry.published.values()
        missing = lacking(saved | {"architectures": [architecture]}) - lacking(published)
        print(architecture, *sorted(missing), flush=True)
