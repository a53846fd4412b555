"""The reward of the comparison: what the math verifier says of whole numbers, and nothing else of it."""

from verifiers.extract import extract_answer


def is_correct(response: str, answer: str) -> bool:
    """Whether the box after the last </think> holds the same whole number as the row's answer."""
    found = extract_answer(response).answer
    try:
        return found is not None and int(found) == int(answer)
    except ValueError:
        return False
