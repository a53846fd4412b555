"""The tokenizer of the examples: one token per character, and one for each marker of an answer.

Writes the files that `tokenizers` and `transformers` load. Encoding puts <bos> in front, always, by the
tokenizer's own post-processor: so every program that encodes a prompt gets the same ids. Decoding without the
special tokens gives the text back to the letter. A character outside the vocabulary is an error.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

BOS, EOS, PAD = "<bos>", "<eos>", "<pad>"
SPECIAL = (BOS, EOS, PAD)
"""Ids 0, 1 and 2."""
MARKERS = ("<think>", "</think>", "\\boxed{")
"""Ordinary tokens, not special ones: decoding must never skip them."""
CHARACTERS = "0123456789+-*/=;:,.()?! }\n"
VOCABULARY = (*SPECIAL, *MARKERS, *CHARACTERS)
"""32 tokens; the place is the id. A task may add characters of its own behind them."""
BOS_ID, EOS_ID, PAD_ID = range(3)


def build_tokenizer(extra: str = "") -> Tokenizer:
    """The tokenizer of VOCABULARY and the characters of `extra`."""
    return split_tokenizer((*VOCABULARY, *extra), r"<think>|</think>|\\boxed\{|[\s\S]")


def split_tokenizer(vocabulary: Sequence[str], pattern: str) -> Tokenizer:
    """A token per match of `pattern`; ids are places in `vocabulary`, which begins with SPECIAL."""
    tokenizer = Tokenizer(WordLevel({token: index for index, token in enumerate(vocabulary)}))
    tokenizer.pre_tokenizer = Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    # Without a first token that is always the same, a small model learns where a digit stands far later.
    tokenizer.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)])
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """tokenizer.json and the two files that tell transformers which tokens are special."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # transformers would otherwise drop spaces before punctuation when it decodes.
        "clean_up_tokenization_spaces": False,
        **special,
    }
    for name, content in [("tokenizer_config", configuration), ("special_tokens_map", special)]:
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
