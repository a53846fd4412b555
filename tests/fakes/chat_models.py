"""Tiny random models of real architectures, with the byte tokenizer and chat template of chat_codec.py."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fakes.chat_codec import END, make_chat_codec

if TYPE_CHECKING:
    import transformers

Family = Literal["qwen2", "qwen3", "llama"]


def write_chat_model(folder: Path, *, family: Family = "qwen2") -> "transformers.PreTrainedModel":
    """A model that continues any text with noise."""
    import transformers

    return _write(folder, transformers.AutoModelForCausalLM, family)


def write_reward_model(
    folder: Path, *, family: Family, num_labels: int = 1
) -> "transformers.PreTrainedModel":
    """A model with a head for `num_labels` numbers."""
    import transformers

    return _write(folder, transformers.AutoModelForSequenceClassification, family, num_labels=num_labels)


def _write(folder: Path, kind: Any, family: Family, **more: Any) -> "transformers.PreTrainedModel":
    import torch
    import transformers

    codec = make_chat_codec(folder)
    (end,) = codec.encode(END)
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=264,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
        **more,
    )
    torch.manual_seed(0)
    model = kind.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # At the usual scale attention is almost uniform, and wrong rows would hardly show.
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)
    model.save_pretrained(folder)
    return model.eval()
