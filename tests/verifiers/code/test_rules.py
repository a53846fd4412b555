"""The pure rules: comparing output, reading programs from responses, and values across the border."""
# Tables of one-line programs read best unbroken.
# ruff: noqa: E501

import math
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.code import values
from verifiers.code.compare import same_output
from verifiers.code.extract import extract_program
from verifiers.code.match import same_value


@pytest.mark.parametrize(("expected", "actual", "whitespace", "same"), [
    ("1 2\n3", "1 2\n3\n", "lines", True),
    ("1 2\n3", "1  2 \r\n\r\n3  \n\n", "lines", True),
    ("1 2\n3", "1\n2\n3", "lines", False),
    ("1 2\n3", "1\n2\n3", "tokens", True),
    ("1 2\n3", "1  2\n3", "exact", False),
    ("1 2\n3", "1 2\n3\n", "exact", True),
    ("1", "", "lines", False),
    ("", "\n\n", "lines", True),
    ("1", "1 1", "lines", False),
    ("0.5", "0.5000000001", "lines", True),
    ("0.5", "5e-1", "lines", True),
    ("0.5", "0.51", "lines", False),
    ("5", "5.0", "lines", False),
    ("5", "5.0000001", "lines", False),
    ("1.0", "1", "lines", True),
    ("0.5", "nan", "lines", False),
    ("0.5", "inf", "lines", False),
    ("1e400", "2e400", "lines", False),
    ("YES", "yes", "lines", False),
    ("größe", "größe", "lines", True),
    ("1000000.5", "1000000.0", "lines", True),
    ("0.0", "1e-9", "lines", True),
    ("3.2e-9", "0", "lines", False),
    ("3.2e-9", "0.0", "lines", False),
    ("0.0000000032", "0.0000000031", "lines", False),
    ("3.2e-9", "3.2000000001e-9", "lines", True),
    ("0.000003", "0.0000032", "lines", True),
    ("0.000003", "0.0000036", "lines", False),
    ("0.001", "0.0010001", "lines", True),
    ("0.00100000", "0.00100001", "lines", False),
    ("1e-999999999", "1", "lines", False),
    ("1e300", "1", "lines", False),
    ("6.626e-34", "0", "lines", False),
    ("6.62607015e-34", "0.0", "lines", False),
    ("6.626e-34", "6.6260000001e-34", "lines", True),
    ("5.551115123125783e-17", "0.0", "lines", True),
    ("-5.551115123125783e-17", "0", "lines", True),
])  # fmt: skip
def test_output_is_compared_by_lines_of_tokens(expected, actual, whitespace, same):
    assert same_output(expected, actual.encode(), whitespace=whitespace) == same


def test_bytes_that_are_no_text_equal_nothing():
    assert not same_output("x", b"\xff")


def test_without_a_tolerance_decimals_are_tokens_like_others():
    assert not same_output("0.5", b"0.50", tolerance=0)


def test_nan_equals_nothing():
    nan, inf, negative = (values.encode(x) for x in (math.nan, math.inf, -math.inf))
    assert not same_value(nan, nan)
    assert not same_value(["l", [nan]], ["l", [nan]])
    assert same_value(inf, inf) and not same_value(inf, negative)


@pytest.mark.parametrize(("expected", "actual", "same"), [
    (3.2e-9, 0.0, False), (3.2e-9, 3.2e-9 * (1 + 1e-9), True), (3.2e-9, 3.3e-9, False), (1e-3, 1.0005e-3, False),
    (0.0, 1e-9, True), (0.1 + 0.2 - 0.3, 0.0, True), (1e6, 1e6 + 0.5, True), (1e6, 1e6 + 5, False), (0.0, 1e-5, False),
    (3.2e-13, 0, False), (6.6e-34, 0.0, False), (3.2e-13, 3.2e-13 * (1 + 1e-9), True),
])  # fmt: skip
def test_the_tolerance_is_relative_to_what_is_expected(expected, actual, same):
    assert same_value(values.encode(expected), values.encode(actual)) == same


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False)
    | st.builds(range, st.integers(-9, 9)),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
    | st.sets(st.integers() | st.text()),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN)
def test_plain_values_survive_the_border_with_their_types(value):
    import json

    back = values.decode(values.loads(json.dumps(values.encode(value)).encode()))
    assert back == value
    assert repr(type(back)) == repr(type(value))


@given(PLAIN)
def test_a_value_is_the_same_as_itself(value):
    assert same_value(values.encode(value), values.encode(value))


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)  # fmt: skip


@given(
    JSON
    | st.lists(
        st.sampled_from(["l", "d", "i", "f", "S", "r", "q", "D", "b", "o", [], ["i", "z"], 5]), max_size=4
    )
)
def test_whatever_comes_back_is_decoded_or_refused(form):
    try:
        values.decode(form)
    except values.NotPlain:
        pass


@given(st.binary())
def test_whatever_line_comes_back_is_read_or_refused(line):
    try:
        values.loads(line)
    except values.NotPlain:
        pass


@pytest.mark.parametrize("value", [object(), lambda: 1, [object()], type])
def test_what_is_no_data_does_not_cross(value):
    with pytest.raises(values.NotPlain):
        values.encode(value)


def test_an_absurd_integer_does_not_cross():
    with pytest.raises(values.NotPlain, match="bits"):
        values.encode(1 << (1 << 25))


def test_subclasses_cross_as_their_plain_base():
    class Always(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    back = values.decode(values.encode([Always(5), Fraction(1, 2), Decimal("1.50")]))
    assert type(back[0]) is int and back[0] == 5 and back[1:] == [Fraction(1, 2), Decimal("1.50")]


@pytest.mark.parametrize(("response", "program"), [
    ("```python\nx = 1\n```", "x = 1\n"),
    ("text\n```py\na\n```\nmore\n```python\nb\n```\nOutput:\n```\n3\n```", "b\n"),
    ("```\nx = 1\n```\nprints\n```\n1 2 oops\n```", "x = 1\n"),
    ("```text\nnot this\n```\n~~~python\nx\n~~~", "x\n"),
    ("x = 1", "x = 1"),
    ("<think>```python\nbad\n```</think>```python\ngood\n```", "good\n"),
    ("<think>unfinished ```python\nbad\n```", None),
    ("```python\nx = 1", "x = 1"),
    ("```python\nx = 1\n```\n```python\ncut", "x = 1\n"),
    ("````python\n```\ninner\n```\n````", "```\ninner\n```\n"),
    ("1. First:\n   ```python\n   x = 1\n   ```", "   x = 1\n"),
    ("``` python\nx\n```", "x\n"),
    ("- One:\n\n  ```python\n  def f():\n      return 1\n  ```", "def f():\n    return 1\n"),
    ("1. ```python\n   def f():\n       return 1\n   ```", "def f():\n    return 1\n"),
    ("\t```python\n\tx = 1\n\t```", "x = 1\n"),
    ("```python\r\nx = 1\r\n\r\ny = 2\r\n```\r\nDone.", "x = 1\n\ny = 2\n"),
    ("```python\nx = 1```", "x = 1\n"),
    ("```python\ndef f():\n    return 1```\nUsage:\n```python\nf()\n```", "def f():\n    return 1\n"),
    ("Here it is:```python\nx = 1\n```", "x = 1\n"),
    ("```python import math\nx = math.pi\n```", "import math\nx = math.pi\n"),
    ("```pythonimport math\nx = math.pi\n```", "import math\nx = math.pi\n"),
    ("```python x.py\nx = 1\n```", "x = 1\n"),
    ("```python title=\"from here\"\nx = 1\n```", "x = 1\n"),
    ("Use ```x``` and\n```python print(1)```\n", "print(1)\n"),
    ("```python\ndef f():\n    '''\n    ```python\n    f()\n    ```\n    '''\n```", "def f():\n    '''\n    ```python\n    f()\n    ```\n    '''\n"),
    ("```python\ndef f(): return 1\n```\nUsage:\n```python\nprint(f())\n```", "def f(): return 1\n"),
    ("```python\ndef g(): return 1\ng()\n```\nUsage:\n```python\nprint(g())\n```", "def g(): return 1\ng()\n"),
    ("```python\nimport math\n```\nthen\n```python\ndef f(): return math.pi\n```", "import math\n\ndef f(): return math.pi\n"),
    ("```python\ndef f(): return 1\n```\nor better\n```python\ndef f(): return 2\n```\nso\n```python\nx = f()\n```", "def f(): return 2\n"),
    ("```python\nx = 1\n```<|im_end|>", "x = 1\n"),
    ("```python\nx = 1\n```</s>", "x = 1\n"),
    ("**```python\nx = 1\n```**", "x = 1\n"),
    ("```python\nx = 1\n```.\nIt works.", "x = 1\n"),
    ("```python\nx = 1```<|eot_id|>", "x = 1\n"),
    ("> ```python\n> def f():\n>     return 1\n>\n> x = 1\n> ```\n> It works.", "def f():\n    return 1\n\nx = 1\n"),
    ("- > - ```python\n  >   def f():\n  >       return 1\n  >   ```\n", "def f():\n    return 1\n"),
    ("> ```python\n> def f(): return 2\n> ```\n```python\ny = 1 > f()\n```", "def f(): return 2\n"),
    ("", None),
    ("```\n```", None),
])  # fmt: skip
def test_the_program_is_the_last_block_of_its_language(response, program):
    found = extract_program(response, "python", ("f",))
    assert (found.strip() if found else found) == (program.strip() if program else program)


@pytest.mark.parametrize("blocks", [
    ["def encode(s): return s[::-1]", "def decode(s): return s[::-1]"],
    ["def encode(s): return turn(s)", "def decode(s): return turn(s)", "def turn(s): return s[::-1]"],
    ["def turn(s): return s[::-1]\ndef encode(s): return s", "def encode(s): return turn(s)", "def decode(s): return turn(s)",
     "print(decode(encode('ab')))"],
    ["def turn(s): return flip(s)\ndef flip(s): return s[::-1]\ndef decode(s): return turn(s)", "def encode(s): return flip(s)"],
])  # fmt: skip
def test_what_the_tests_need_is_taken_from_all_blocks(blocks):
    response = "\nand\n".join(f"```python\n{block}\n```" for block in blocks)
    program = extract_program(response, "python", ("decode", "encode"))
    namespace = {}
    exec(program, namespace)
    assert namespace["decode"]("ab") == namespace["encode"]("ab") == "ba"
    assert "print" not in program


@pytest.mark.parametrize(("response", "program"), [
    ("```python\ndef main(): print(1)\n```\nand\n```python\nmain()\n```", "def main(): print(1)\n\nmain()\n"),
    ("```python\ndef main(): print(1)\nmain()\n```\nShorter:\n```python\nprint(1)\n```", "print(1)\n"),
])  # fmt: skip
def test_a_program_that_is_run_as_a_whole_is_the_last_one_with_what_it_needs(response, program):
    assert extract_program(response, "python") == program


@pytest.mark.parametrize(("response", "program"), [
    ("```cpp\nint main() {}```", "int main() {}\n"),
    ("  ```c++\r\n  int main() {}\r\n  ```", "int main() {}\n"),
    ("```cpp\nint main() {}", "int main() {}\n"),
])  # fmt: skip
def test_a_program_of_another_language_is_read_the_same_way(response, program):
    found = extract_program(response, "cpp")
    assert found is not None and found.rstrip("\n") == program.rstrip("\n")


@pytest.mark.parametrize(
    "text",
    [
        "```python\n",
        "x```python\n",
        "```python\nx```\n",
        "`",
        "a ```\n",
        "- ",
        "1. ",
        "> ```",
        "> ```\n> x\n",
        "```.```</s>",
        "```.",
        "```python x```",
    ],
)
def test_reading_takes_time_in_proportion_to_the_text(text):
    def seconds(size):
        started = time.thread_time()
        extract_program("x" + text * (size // len(text)), "python", ("f",))
        extract_program(text * (size // len(text)), "python", ("f",))
        return time.thread_time() - started

    # Quadratic reading would take 64 times as long for 8 times the text; 50 ms hide what a clock cannot tell.
    small = min(seconds(50_000) for _ in range(3))
    assert min(seconds(400_000) for _ in range(2)) < 24 * small + 0.05


PIECES = [
    "```",
    "python",
    "\n",
    "\r\n",
    "def f(): pass",
    "~~~",
    " ",
    "x",
    "'', '",
    "- ",
    "print(f())",
    '"""',
    "# ",
]


@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_read(text):
    for lang in ("python", "cpp"):
        found = extract_program(text, lang)
        # A fence's own indentation is no part of the program, nor are carriage returns.
        words = "".join(text.split())
        assert found is None or all("".join(line.split()) in words for line in found.split("\n"))
