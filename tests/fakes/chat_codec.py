"""A tokenizer that has a token per byte, and Qwen2.5's chat template: any text can be a turn."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from asyncrl.model.tokenizer import TextCodec

TEMPLATE = Path(__file__).parents[1] / "model" / "chat_templates" / "qwen2_5.jinja"
END = "<|im_end|>"
HEADER = "<|im_start|>assistant\n"
"""In front of each turn."""


def make_chat_codec(
    folder: Path, *, has_template: bool = True, template: Path = TEMPLATE, added: Sequence[str] = ()
) -> TextCodec:
    """`added` are further special tokens; <s> and </s> among them are those that templates call by name."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", END, *added])
    tokenizer.add_tokens(
        [AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id(END)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    config = {"chat_template": template.read_text(encoding="utf-8")} if has_template else {}
    config |= {"bos_token": "<s>", "eos_token": "</s>"} if "</s>" in added else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return TextCodec(folder)
