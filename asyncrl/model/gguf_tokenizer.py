"""The tokenizer of a GGUF file as tokenizer.json: byte-level BPE with the pre-tokenizer that the file names.

llama.cpp names a pre-tokenizer (`tokenizer.ggml.pre`) and has its pattern in code: the patterns of those
that Llama, Qwen2 and SmolLM use stand here, as in the models' own tokenizer.json.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split
from tokenizers.processors import ByteLevel as ByteLevelProcessor
from tokenizers.processors import TemplateProcessing

from asyncrl.errors import InputError

CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that no text makes by merging; the first are special."""
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LLAMA_PATTERN = QWEN_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _bytes(*, use_regex: bool) -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _by_pattern(pattern: str) -> PreTokenizer:
    return Sequence([Split(Regex(pattern), behavior="isolated"), _bytes(use_regex=False)])


PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {
    "gpt-2": lambda: _bytes(use_regex=True),
    # Digits part a text first, as in llama.cpp: the two spaces of "and  25" are one piece. What transformers
    # reads from a GGUF file lacks this step, and has them apart.
    "smollm": lambda: Sequence([Digits(individual_digits=True), _bytes(use_regex=True)]),
    "qwen2": lambda: _by_pattern(QWEN_PATTERN),
    "llama-bpe": lambda: _by_pattern(LLAMA_PATTERN),
}


def write_tokenizer(file: Path, metadata: dict[str, Any], folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json with the chat template, and generation_config.json.

    `metadata` is that of the GGUF file. Raises InputError for a tokenizer that is not known here.
    """
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise InputError(
            f"{file} has a tokenizer of kind {kind!r} with pre-tokenizer {pre!r}; byte-level BPE (gpt2) with "
            f"{', '.join(PRE_TOKENIZERS)} can be converted. Use the original model folder, or its hub id."
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    _build(metadata, tokens, pre).save(str(folder / "tokenizer.json"))
    special = {
        f"{name}_token": tokens[metadata[key]]
        for name, key in (
            ("bos", "tokenizer.ggml.bos_token_id"),
            ("eos", "tokenizer.ggml.eos_token_id"),
            ("pad", "tokenizer.ggml.padding_token_id"),
        )
        if key in metadata
    }
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **special,
    }
    if template := metadata.get("tokenizer.chat_template"):
        configuration["chat_template"] = template
    stops = {"eos_token_id": metadata["tokenizer.ggml.eos_token_id"]}
    for name, content in (("tokenizer_config", configuration), ("generation_config", stops)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _build(metadata: dict[str, Any], tokens: list[str], pre: str) -> Tokenizer:
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # Llama 3 takes a piece that is a token as it is, before any merge.
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.post_processor = ByteLevelProcessor(trim_offsets=False)
    for token, type_ in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True):
        if type_ in (CONTROL, USER_DEFINED):
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=type_ == CONTROL)])
    if metadata.get("tokenizer.ggml.add_bos_token", False):
        bos = metadata["tokenizer.ggml.bos_token_id"]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    return tokenizer
