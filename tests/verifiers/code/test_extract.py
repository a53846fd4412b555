"""Reading the program in a response."""
# Tables of one-line programs read best unbroken.
# ruff: noqa: E501

import time

import pytest

from verifiers.code.extract import extract_program


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
        pytest.param("x```python\n", marks=pytest.mark.exhaustive),
        "```python\nx```\n",
        "`",
        pytest.param("a ```\n", marks=pytest.mark.exhaustive),
        "- ",
        "1. ",
        pytest.param("> ```", marks=pytest.mark.exhaustive),
        "> ```\n> x\n",
        "```.```</s>",
        pytest.param("```.", marks=pytest.mark.exhaustive),
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
