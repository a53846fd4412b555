"""Line plots for a terminal: braille dots, or stars if the encoding has none.

Pure functions from numbers to lines of text; the caller adds colors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]

# Bit of the dot at (column, row) in a braille character's 2 x 4 grid, rows from the top.
BRAILLE_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
BRAILLE_BLANK = 0x2800


@dataclass(frozen=True, slots=True)
class Curve:
    points: Sequence[Point]
    """In order of x."""
    intervals: Sequence[tuple[float, float, float]] = ()
    """x, low, high: drawn as vertical bars."""


def plot(
    curve: Curve,
    *,
    width: int,
    height: int,
    y_range: tuple[float, float],
    y_label: Callable[[float], str],
    is_unicode: bool,
) -> list[str]:
    """`height` lines with y labels, then the x axis and its end labels; each at most `width` characters."""
    low, high = y_range
    left, right = curve.points[0][0], curve.points[-1][0]
    margin = max(len(y_label(low)), len(y_label(high)))
    canvas = _Canvas(width - margin - 2, height)

    def place(x: float, y: float) -> tuple[int, int]:
        across = (x - left) / (right - left) if right > left else 0.5
        up = min(1.0, max(0.0, (y - low) / (high - low)))
        return round(across * (canvas.columns - 1)), round((1 - up) * (canvas.rows - 1))

    for x, bottom, top in curve.intervals:
        canvas.line(place(x, bottom), place(x, top))
    places = [place(x, y) for x, y in curve.points]
    for start, end in zip(places, places[1:] or places, strict=False):
        canvas.line(start, end)

    labels = {0: y_label(high), height - 1: y_label(low)}
    rule, corner, dash = ("│", "└", "─") if is_unicode else ("|", "+", "-")
    lines = [
        f"{labels.get(row, ''):>{margin}} {rule}{text}"
        for row, text in enumerate(canvas.text(is_unicode=is_unicode))
    ]
    ends = f"{left:g}{f'{right:g}':>{canvas.width - len(f'{left:g}')}}"
    return [*lines, f"{'':>{margin}} {corner}{dash * canvas.width}", f"{'':>{margin}}  {ends}"]


class _Canvas:
    """Dots, two per character across and four down; (0, 0) is the top left one."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.columns, self.rows = width, 2 * width, 4 * height
        self._cells = [[0] * width for _ in range(height)]

    def line(self, start: Point, end: Point) -> None:
        (x0, y0), (x1, y1) = start, end
        num = int(max(abs(x1 - x0), abs(y1 - y0), 1))
        for i in range(num + 1):
            x, y = round(x0 + (x1 - x0) * i / num), round(y0 + (y1 - y0) * i / num)
            self._cells[y // 4][x // 2] |= BRAILLE_BITS[x % 2][y % 4]

    def text(self, *, is_unicode: bool) -> list[str]:
        def character(bits: int) -> str:
            if is_unicode:
                return chr(BRAILLE_BLANK + bits) if bits else " "
            return "*" if bits else " "

        return ["".join(map(character, row)) for row in self._cells]
