"""Stand-ins for the models and datasets that recipes/published names, on a hub of this machine.

A model is its true config.json, a tokenizer of bytes and weights that are a header in front of a hole: they
take no disk and are never read. They lie in the hub's cache from the start, so nothing of them is sent. A
dataset is a few rows in its true layout.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from fakes.hub import Hub, running_hub
from huggingface_hub import constants
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from asyncrl.data.benchmarks import CATALOG
from asyncrl.model.folder import read_shape
from asyncrl.model.weights import expected_tensors

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


def _shape(
    sizes: tuple[int, int, int, int, int, int], positions: int, theta: float, *, is_tied: bool
) -> dict[str, Any]:
    """`sizes`: layers, hidden, heads, key-value heads, feed-forward, vocabulary."""
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
    return {
        "architectures": ["Qwen2ForCausalLM"],
        **dict(zip((*names, "intermediate_size", "vocab_size"), sizes, strict=True)),
        "max_position_embeddings": positions,
        "rope_theta": theta,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "use_sliding_window": False,
        "tie_word_embeddings": is_tied,
        "eos_token_id": 256,
    }


_1B5 = (28, 1536, 12, 2, 8960, 151936)
_7B = (28, 3584, 28, 4, 18944, 152064)
SHAPES = {
    "Qwen/Qwen2.5-0.5B": _shape((24, 896, 14, 2, 4864, 151936), 32768, 1e6, is_tied=True),
    "Qwen/Qwen2.5-1.5B": _shape(_1B5, 131072, 1e6, is_tied=True),
    "Qwen/Qwen2.5-3B": _shape((36, 2048, 16, 2, 11008, 151936), 32768, 1e6, is_tied=True),
    "Qwen/Qwen2.5-7B": _shape(_7B, 131072, 1e6, is_tied=False),
    "Qwen/Qwen2.5-7B-Instruct": _shape(_7B, 32768, 1e6, is_tied=False),
    "Qwen/Qwen2.5-Math-7B": _shape(_7B, 4096, 1e4, is_tied=False),
    "Qwen/Qwen2.5-32B": _shape((64, 5120, 40, 8, 27648, 152064), 131072, 1e6, is_tied=False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _shape(_1B5, 131072, 1e4, is_tied=False),
}
"""What the models' config.json say, as far as it decides anything here; the end token is the stand-ins'."""


def write_stand_in(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    # ByteLevel's alphabet: one token for each byte, so that any text can be encoded.
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT}))
    _write_hole(folder)
    return folder


def _write_hole(folder: Path) -> None:
    """model.safetensors of the size that config.json makes it, of which only the header is on disk."""
    header, end = {}, 0
    for name, size in expected_tensors(read_shape(folder)):
        begin, end = end, end + 2 * math.prod(size)
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(content).to_bytes(8, "little") + content)
        stream.truncate(8 + len(content) + end)


def _verl(question: str, answer: str) -> dict[str, Any]:
    asked = (
        "Solve the following math problem step by step. The last line of your response should be of the form "
        f'Answer: $Answer (without quotes).\n\n{question}\n\nRemember to put your answer after "Answer:".'
    )
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": asked, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": question},
    }


def _simplerl(question: str, answer: str) -> dict[str, Any]:
    asked = (
        f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{question}<|im_end|>"
    )
    return {
        "prompt": [{"content": asked, "role": "user"}],
        "answer": answer,
        "reward_model": {"ground_truth": answer, "style": "rule"},
        "extra_info": {"question": question, "answer": answer},
    }


def _orz(question: str, answer: str) -> list[dict[str, Any]]:
    truth = {"value": answer, "pass_at_n": None}
    return [{"from": "human", "value": question}, {"from": "assistant", "ground_truth": truth}]


def _processed(question: str, answer: str) -> dict[str, Any]:
    asked = _verl(question, answer)
    return {"prompt": question, "solution": answer, **asked, "source_prompt": asked["prompt"]} | {
        "prompt": question
    }


TRAIN = [("What is $1+2$?", "3"), ("What is $10^2$?", "100")]
TEST = [("What is $2+3$?", "5"), ("What is $2^5$?", "32")]


def write_datasets(folder: Path) -> dict[str, Path]:
    """Hub id -> folder."""
    problems = [{"problem": q, "solution": f"\\boxed{{{a}}}", "answer": a} for q, a in TEST]
    aime = [{**row, "answer": f"0{row['answer']}"} for row in problems]
    amc = [{"problem": q, "answer": float(a)} for q, a in TEST]
    countdown = [{"target": 24 + i, "nums": [1, 2, 3, 4 + i]} for i in range(8)]
    level = "simplelr_qwen_level3to5"
    files: dict[str, dict[str, list[Any]]] = {
        "Jiayi-Pan/Countdown-Tasks-3to4": {"data/train-00000-of-00001.parquet": countdown},
        "hkust-nlp/SimpleRL-Zoo-Data": {
            f"{level}/train.parquet": [*(_simplerl(*row) for row in TRAIN), _simplerl("No answer?", "")],
            f"{level}/test.parquet": [_simplerl(*row) for row in TEST],
            # Another layout next to it: only the recipe's `folder` keeps them apart.
            "simplelr_abel_level3to5/train.parquet": [{"problem": "another"}],
        },
        "Open-Reasoner-Zero/orz_math_57k_collection": {
            "orz_math_57k_collection.json": [_orz(*row) for row in TRAIN]
        },
        "BytedTsinghua-SIA/DAPO-Math-17k": {
            "data/dapo-math-17k.parquet": [_verl(*row) for row in TRAIN for _ in range(2)]
        },
        "BytedTsinghua-SIA/AIME-2024": {
            "data/aime-2024.parquet": [_verl(*row) for row in TEST for _ in range(3)]
        },
        "open-r1/DAPO-Math-17k-Processed": {
            "all/train-00000-of-00001.parquet": [_processed(*row) for row in TRAIN]
        },
        "HuggingFaceH4/MATH-500": {"test.jsonl": problems},
        "HuggingFaceH4/aime_2024": {"data/train-00000-of-00001.parquet": aime},
        "AI-MO/aimo-validation-amc": {"data/train-00000-of-00001.parquet": amc},
        **{
            f"MathArena/{name}": {"data/train-00000-of-00001.parquet": problems}
            for name in ("hmmt_feb_2025", "brumo_2025", "cmimc_2025")
        },
    }
    questions = [{"question": q, "answer": a} for q, a in TEST]
    files |= {
        CATALOG["aime24"].source.path or "": {"test.jsonl": problems},
        CATALOG["aime25"].source.path or "": {"test.jsonl": problems},
        CATALOG["amc23"].source.path or "": {"test.jsonl": questions},
        CATALOG["minerva_math"].source.path or "": {"test.jsonl": questions},
        CATALOG["olympiadbench"].source.path or "": {
            "test.jsonl": [{"question": q, "final_answer": [a]} for q, a in TEST]
        },
        "openai/gsm8k": {"main/test.jsonl": [{"question": q, "answer": f"#### {a}"} for q, a in TEST]},
    }
    for hub_id, contents in files.items():
        for name, rows in contents.items():
            path = folder / hub_id / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".parquet":
                pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
            elif path.suffix == ".json":
                path.write_text(json.dumps(rows))
            else:
                path.write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "open-r1/DAPO-Math-17k-Processed/README.md").write_text(
        "---\nconfigs:\n- config_name: all\n  data_files:\n  - split: train\n    path: all/train-*\n---\n"
    )
    (folder / "openai/gsm8k/README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: test\n    path: main/test*\n---\n"
    )
    return {hub_id: folder / hub_id for hub_id in files}


@contextmanager
def published_hub(folder: Path) -> Iterator[Hub]:
    """A hub with all of them, which this process asks until the end."""
    with running_hub() as hub, pytest.MonkeyPatch.context() as patch:
        hub.models |= write_datasets(folder / "datasets")
        hub.commits = {benchmark.source.revision or "" for benchmark in CATALOG.values()}
        cache = folder / "cache"
        for hub_id, config in SHAPES.items():
            entry = cache / f"models--{hub_id.replace('/', '--')}"
            hub.models[hub_id] = write_stand_in(entry / "snapshots" / hub.commit, config)
            (entry / "refs").mkdir()
            (entry / "refs" / "main").write_text(hub.commit)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr("datasets.config.HF_DATASETS_CACHE", folder / "rows")
        yield hub
