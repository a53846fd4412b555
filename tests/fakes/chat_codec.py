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
    folder: Path,
    *,
    has_template: bool = True,
    template: Path = TEMPLATE,
    added: Sequence[str] = (),
    stops: Sequence[str] = (END,),
    **named: str | None,
) -> TextCodec:
    """`added` are further special tokens, `stops` those that end a response, and `named` those that templates
    call by name, such as bos_token; <s> and </s> where they are added and none is named."""
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
    ends = [tokenizer.token_to_id(stop) for stop in stops]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    config = {"chat_template": template.read_text(encoding="utf-8")} if has_template else {}
    config |= named or ({"bos_token": "<s>", "eos_token": "</s>"} if "</s>" in added else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return TextCodec(folder)
