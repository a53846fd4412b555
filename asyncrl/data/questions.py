"""Digests of what prompts ask, to find the same question in two files: a text and the same text as a chat
message are one, whatever space stands between the words."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

DIGEST_BYTES = 16


def question_digest(prompt: str | Iterable[dict[str, Any]]) -> bytes:
    """The digest of a text, or of the user's messages in a chat."""
    if isinstance(prompt, str):
        texts = [prompt]
    else:
        texts = [str(message.get("content")) for message in prompt if message.get("role") == "user"]
    text = "\0".join(" ".join(each.split()) for each in texts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
