"""Sentences of the command line about a mistake, apart from the page that it names."""


def without_page(said: str) -> str:
    """The sentence of a refusal on standard error, whose last line names a page."""
    sentence, _, page = said.strip().rpartition("\n")
    assert page.startswith("Read: "), said
    return sentence
