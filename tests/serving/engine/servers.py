"""Real SGLang servers for tests and benchmarks: a small random model, started as a run starts it."""

import atexit
import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
import torch
from fakes.template import Forked, Template
from tokenizers import Tokenizer, models, pre_tokenizers

from asyncrl.model.supported import BITWISE_VARIABLE
from asyncrl.recipe import Model, Serving
from asyncrl.serving.engine.environment import engine_arguments, engine_environment
from asyncrl.system.network import free_ports

if TYPE_CHECKING:
    import transformers

VOCABULARY = 24
STOP = 1
NUM_LAYERS = 3
START_SECONDS = 300


def write_model(
    folder: Path,
    *,
    seed: int,
    num_kv_heads: int = 2,
    context: int = 2048,
    ffn_size: int = 384,
    stop: int = STOP,
    family: str = "qwen3",
    **settings: object,
) -> Path:
    """A model with random weights, of the size that the arithmetic recipe trains; `family` is a model_type,
    `settings` are more of its configuration."""
    import transformers

    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": ffn_size,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": num_kv_heads,
        "head_dim": 32,
        "max_position_embeddings": context,
        "bos_token_id": None,
        "eos_token_id": stop,
        "tie_word_embeddings": True,
    }
    config = transformers.AutoConfig.for_model(family, **sizes | settings)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # At the usual scale attention is almost uniform, and a wrong mask would hardly show.
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)
            if name.endswith(("bias", "sinks")):
                parameter.normal_()
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(std=0.2)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


NEVER = (20, 21, 22, 23)
"""The ids that `masked_model` never samples."""


def masked_model(folder: Path) -> Path:
    """`write_model` whose last four ids no text contains; two rows give the largest logits, one is zero."""
    import safetensors.torch

    write_model(folder, seed=0, stop=10 * VOCABULARY)
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    row = torch.randn(128, generator=torch.Generator().manual_seed(0))
    for token, scale in zip(NEVER, (9.0, 0.0, -9.0, 1.0), strict=True):
        weights["model.embed_tokens.weight"][token] = scale * row
    safetensors.torch.save_file(weights, file, metadata={"format": "pt"})
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(NEVER[0])}, unk_token="t0"))
    tokenizer.add_special_tokens(["<pad>", "<|reserved_special_token_0|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    return folder


@functools.cache
def load_model(folder: Path) -> "transformers.PreTrainedModel":
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@contextlib.contextmanager
def running_server(
    model_folder: Path,
    log_path: Path,
    *extra_arguments: str,
    without: Sequence[str] = (),
    dtype: Literal["float32", "bfloat16"] = "float32",
    is_bitwise: bool = False,
    has_gpu: bool = False,
    variables: Mapping[str, str] = MappingProxyType({}),
    **sizes: int,
) -> Iterator[tuple[str, int]]:
    """URL and process id of a server with weight version 0; `sizes` are fields of the recipe's serving,
    `variables` are added to its environment."""
    (port,) = free_ports(1)
    # The version is not for recipes to set.
    serving = Serving(**sizes).model_copy(
        update={"extra_arguments": ["--weight-version", "0", *extra_arguments]}
    )
    arguments = engine_arguments(
        serving,
        Model(path=str(model_folder), dtype=dtype),
        has_gpu=has_gpu,
        port=port,
        model_folder=model_folder,
        stream_interval=16,
        seed=0,
    )
    environment = _environment(is_bitwise=is_bitwise, has_gpu=has_gpu) | dict(variables)
    process = _start([a for a in arguments if a not in without], environment, log_path)
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}/ready", process, log_path)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            # One that still starts may not heed the signal; it must not outlive the tests.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start(arguments: list[str], environment: dict[str, str], log_path: Path) -> subprocess.Popen | Forked:
    """In a session of its own. A test has it forked from a process that has imported SGLang, which takes a
    server eight of its ten CPU seconds."""
    with log_path.open("wb") as log:
        if "PYTEST_VERSION" in os.environ and lasting(environment) == lasting(_imported()):
            return _template().start(arguments[1], arguments[2:], environment=environment, output=log)
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def said_beside_engine(script: str | Path, folder: Path) -> list[str]:
    """The lines that a script prints, in a process that has imported SGLang and its plugin. `folder` is for
    its text and its output."""
    if isinstance(script, str):
        (folder / "script.py").write_text(script)
        script = folder / "script.py"
    printed, errors = folder / "printed", folder / "errors"
    with printed.open("wb") as output:
        environment = _environment()
        process = _template().start(
            "fakes.script", [str(errors), str(script)], environment=environment, output=output
        )
    assert process.wait() == 0, errors.read_text()[-3000:]
    return printed.read_text().splitlines()


def lasting(environment: Mapping[str, str]) -> dict[str, str]:
    """Without the variable that pytest sets for each test."""
    return {name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"}


def _environment(*, is_bitwise: bool = False, has_gpu: bool = False) -> dict[str, str]:
    environment = os.environ | engine_environment(threads=1, has_gpu=has_gpu)
    return environment | {BITWISE_VARIABLE: str(int(is_bitwise))}


@functools.cache
def _imported() -> dict[str, str]:
    """The environment in which the template imports SGLang and its plugin, which read some of it then."""
    return _environment()


@functools.cache
def _template() -> Template:
    template = Template("fakes.engine_imports", environment=_imported())
    atexit.register(template.__exit__)
    return template.__enter__()


def _wait_until_ready(url: str, process: subprocess.Popen | Forked, log_path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log_path.read_text()[-3000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
            if reply.status == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"not ready after {START_SECONDS} s:\n{log_path.read_text()[-3000:]}")


def new_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=120), connector=aiohttp.TCPConnector(limit=0)
    )


async def post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Any:
    async with session.post(url, json=body) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.json(content_type=None)


async def stream(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Events of one streamed /generate, as they come."""
    async with session.post(f"{url}/generate", json=body | {"stream": True}) as reply:
        assert reply.status == 200, await reply.text()
        async for line in reply.content:
            if line.startswith(b"data: {"):
                yield json.loads(line[len(b"data: ") :])


async def abort(session: aiohttp.ClientSession, url: str, request_id: str) -> None:
    async with session.post(f"{url}/abort_request", json={"rid": request_id}) as reply:
        assert reply.status == 200


async def publish(
    session: aiohttp.ClientSession, url: str, folder: Path, version: int, *, has_check: bool = False
) -> None:
    """What asyncrl.serving.publication.install does; with `has_check` the server computes its digests too."""
    await post(session, f"{url}/pause_generation", {"mode": "in_place"})
    body = {"model_path": str(folder), "weight_version": str(version), "flush_cache": False}
    await post(session, f"{url}/update_weights_from_disk", body)
    if has_check:
        await post(session, f"{url}/weights_checker", {"action": "checksum"})
    await post(session, f"{url}/continue_generation", {"torch_empty_cache": False})


@torch.no_grad()
def reference_logprobs(
    prompt: Sequence[int], response: Sequence[int], models: Sequence["transformers.PreTrainedModel"]
) -> list[float]:
    """Log-prob of each response token under its own model, on keys and values the earlier models computed."""
    import transformers

    cache, tokens = transformers.DynamicCache(), [*prompt, *response]
    result: list[float] = []
    num_threads = torch.get_num_threads()
    # A model this small is slower on several threads, much slower where a server uses the other core.
    torch.set_num_threads(1)
    for model, run in itertools.groupby(models):
        num_tokens = len(list(run))
        # The last of them is only predicted.
        end = len(prompt) + len(result) + num_tokens - 1
        inputs = torch.tensor([tokens[cache.get_seq_length() : end]])
        logprobs = torch.log_softmax(model(inputs, past_key_values=cache).logits[0].float(), -1)
        predicted = torch.tensor(tokens[end + 1 - num_tokens : end + 1])
        result += logprobs[-num_tokens:].gather(1, predicted[:, None])[:, 0].tolist()
    torch.set_num_threads(num_threads)
    assert len(result) == len(response)
    return result
