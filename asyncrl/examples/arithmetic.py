"""Additions of two numbers of 2 to 4 digits, and how one works them column by column, right to left.

Owns what a problem is and what working it looks like; `rows` makes data files of it, `corpus` a noisy
pre-training text. No torch.
"""

from random import Random

Terms = tuple[int, ...]
"""Numbers to add, in the order of the prompt."""


def draw_addition(random: Random) -> Terms:
    """Two numbers, each of 2, 3 or 4 digits with equal chance, independently."""
    return _draw_number(random), _draw_number(random)


def work_addition(terms: Terms, random: Random, noise: float) -> tuple[str, int]:
    """The working of `terms` and the sum it comes to: "7+5+0=12;4+8+1=13;3+0+1=4", 432.

    A column reads digit+digit+carry=column sum; a column's digit and carry are taken from the column sum
    as it is written. So each step that `noise` (a probability) puts off by one makes the result wrong,
    and the text is consistent with the result all the same.
    """
    columns = add_columns(terms[0], terms[1], random, noise)
    first, second = digits_from_right(terms[0]), digits_from_right(terms[1])
    carries = [0, *(column // 10 for column in columns)]
    steps = [
        f"{_digit(first, place)}+{_digit(second, place)}+{carries[place]}={column}"
        for place, column in enumerate(columns)
    ]
    return ";".join(steps), read_columns(columns)


def add_columns(first: int, second: int, random: Random, noise: float) -> list[int]:
    """Column sums from the right, carry included; each is off by one with probability `noise`."""
    one, other = digits_from_right(first), digits_from_right(second)
    columns: list[int] = []
    for place in range(max(len(one), len(other))):
        carry = columns[-1] // 10 if columns else 0
        column = _digit(one, place) + _digit(other, place) + carry
        if random.random() < noise:
            # A zero can only be off upwards: a negative column has no digit and no carry.
            column += random.choice([-1, 1]) if column else 1
        columns.append(column)
    return columns


def read_columns(columns: list[int]) -> int:
    """The number that column sums from the right stand for, last carry included: [12, 13, 4] -> 432."""
    total = columns[-1]
    for column in reversed(columns[:-1]):
        total = total * 10 + column % 10
    return total


def digits_from_right(number: int) -> list[int]:
    return [int(digit) for digit in reversed(str(number))]


def _digit(digits: list[int], place: int) -> int:
    return digits[place] if place < len(digits) else 0


def _draw_number(random: Random) -> int:
    num_digits = random.choice([2, 3, 4])
    return random.randrange(10 ** (num_digits - 1), 10**num_digits)
