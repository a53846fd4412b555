"""The text of single tokens, so that a page can show which version wrote each.

Joined, the texts are the decoded response. A character made of several tokens belongs to the last one.
"""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from asyncrl.errors import InputError

# Enough tokens before the first one to tell whether it begins with a space, and to finish a character.
CONTEXT_TOKENS = 6
INCOMPLETE = "\ufffd"


class TokenTexts:
    """Decodes with the tokenizer of a model folder; without one, tokens are shown as numbers."""

    def __init__(self, model_folder: Path) -> None:
        path = model_folder / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path)) if path.is_file() else None
        except Exception as error:  # the library raises bare Exception for a file that it cannot read
            raise InputError(f"{path} cannot be read as a tokenizer: {error}") from error

    def __call__(self, prompt: Sequence[int], response: Sequence[int]) -> list[str]:
        """One text per response token."""
        if self._tokenizer is None:
            return [f"[{token}]" for token in response]
        before = list(prompt[-CONTEXT_TOKENS:])
        ids = before + list(response)
        texts = []
        # Decode from `start` with and without the newest token; the difference is its text. Decoding all from
        # the beginning each time would be quadratic; decoding one token alone loses its leading space.
        start, shown = 0, len(before)
        for end in range(len(before) + 1, len(ids) + 1):
            known, longer = self._decode(ids[start:shown]), self._decode(ids[start:end])
            is_last = end == len(ids)
            if len(longer) > len(known) and (is_last or not longer.endswith(INCOMPLETE)):
                texts.append(longer[len(known) :])
                start, shown = shown, end
            else:
                texts.append("")
        return texts

    def _decode(self, ids: list[int]) -> str:
        assert self._tokenizer is not None
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))
