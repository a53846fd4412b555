"""The part of a model folder that the controller reads: a character tokenizer and the end token."""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

CHARACTERS = "0123456789+-=;<>{}\\abcdefghijklmnopqrstuvwxyz "


def write_tokenizer(folder: Path) -> Path:
    """Ids: 0 bos, 1 eos, 2 pad, then CHARACTERS."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {name: i for i, name in enumerate(["<bos>", "<eos>", "<pad>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    return folder
