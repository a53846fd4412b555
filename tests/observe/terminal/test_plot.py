"""Plots made of characters, against pictures drawn by hand."""

from asyncrl.observe.terminal.plot import Curve, plot


def draw(curve: Curve, *, is_unicode: bool = True) -> list[str]:
    # 9 characters: two for the labels, a space and the axis, five of canvas.
    return plot(
        curve, width=9, height=2, y_range=(0, 10), y_label=lambda y: f"{y:.0f}", is_unicode=is_unicode
    )


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right() -> None:
    assert draw(Curve([(0, 0), (50, 10)]), is_unicode=False) == [
        "10 |  ***",
        " 0 |***  ",
        "   +-----",
        "    0  50",
    ]


def test_braille_dots_are_four_times_as_fine() -> None:
    # A flat line at the bottom sets the lowest two dots of each character.
    assert draw(Curve([(0, 0), (50, 0)]))[1] == " 0 │⣀⣀⣀⣀⣀"


def test_an_interval_is_an_upright_bar() -> None:
    top, bottom, *_ = draw(Curve([(0, 10), (1, 10)], [(0, 0, 10)]))
    assert (top[4], bottom[4]) == ("⡏", "⡇")


def test_values_outside_the_range_stay_on_the_canvas() -> None:
    lines = draw(Curve([(0, -5), (1, 15)]), is_unicode=False)
    assert all(len(line) <= 9 for line in lines)


def test_a_single_point_is_shown() -> None:
    assert "*" in "".join(draw(Curve([(3, 5)]), is_unicode=False))
