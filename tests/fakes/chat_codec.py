"""A tokenizer that has a token per byte, and Qwen2.5's chat template: any text can be a turn."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from asyncrl.model.tokenizer import TextCodec

TEMPLATE = Path(__file__).parents[1] / "model" / "chat_templates" / "qwen2_5.jinja"
END = "<|im_end|>"
HEADER = "<|im_start|>assistant\n"
"""In front of each turn."""


def make_chat_codec(folder: Path, *, has_template: bool = True) -> TextCodec:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", END])
    tokenizer.add_tokens(
        [AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id(END)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    config = {"chat_template": TEMPLATE.read_text()} if has_template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return TextCodec(folder)
