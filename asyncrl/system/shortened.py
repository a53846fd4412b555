"""Long texts for people: the beginning and the end, with a remark between them."""


def shortened(text: str, most: int) -> str:
    """`text`, or its first and last `most` / 2 characters with how many are left out."""
    half = most // 2
    left_out = len(text) - 2 * half
    if left_out <= 0:
        return text
    return f"{text[:half]}\n[... {left_out:,} of {len(text):,} characters are not shown ...]\n{text[-half:]}"
