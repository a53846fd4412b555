"""Whatever a program sends back, the host reads and compares it quickly, in little memory, and never fails."""
# Tables of short texts read best unbroken.
# ruff: noqa: E501

import functools
import json
import time
import tracemalloc
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.command import Limits
from verifiers.code import compare, tests, values
from verifiers.code.compare import same_output
from verifiers.code.extract import extract_program
from verifiers.code.grade import _judge_call
from verifiers.code.tests import CallTest, parse_code_reference
from verifiers.extract import extract_answer

P = 2**61 - 1
"""Multiples of it all have the hash 0."""
MEBIBYTE = 1 << 20
# Measured under load: below 0.1 s each; what these tests are for took seconds to minutes.
SECONDS = 0.7


def quick(work: Callable[[], object]) -> object:
    """The work's result. Fails when it takes more CPU time than anything on the host may, three times in a row:
    a garbage collection over all that the other tests left can fall into one of them."""
    for _ in range(3):
        started = time.thread_time()
        result = work()
        used = time.thread_time() - started
        if used < SECONDS:
            return result
    raise AssertionError(f"{used:.2f} s of CPU time, expected less than {SECONDS}")


def integers(count: int) -> list[list[str]]:
    return [["i", hex(number * P)] for number in range(count)]


@functools.cache
def digits(bits: int) -> str:
    power = 3**bits
    return hex(power >> (power.bit_length() - bits) | 1)


def nested(depth: int, number: int = 0) -> list[object]:
    if depth == 0:
        return ["F", [["i", hex(number % 4 * P)]]]
    return ["F", [nested(depth - 1, 2 * number), nested(depth - 1, 2 * number + 1)]]


VALUES: dict[str, Callable[[], object]] = {
    "a set whose members share a hash": lambda: ["S", integers(40_000)],
    "a smaller such set": lambda: ["S", integers(6_000)],
    "a dictionary of such keys": lambda: ["d", [[key, None] for key in integers(6_000)]],
    "tuples that share a hash": lambda: ["S", [["t", [number, number]] for number in integers(3_000)]],
    "sets of sets that share a hash": lambda: nested(11),
    "a fraction of huge integers": lambda: ["q", digits(4_000_000), digits(3_999_999)],
    "fractions of large integers": lambda: [
        "S",
        [["q", digits(65_000 + n), digits(65_010)] for n in range(6)],
    ],
    "a huge integer": lambda: ["i", digits(4_000_000)],
    "a decimal of a billion digits": lambda: ["D", "1e999999999"],
    "such decimals in a set": lambda: ["S", [["D", f"1e{n + 10**8}"] for n in range(9_000)]],
    "decimals of many digits": lambda: ["S", [["D", "9" * 9990 + f".{n}"] for n in range(25)]],
    "tiny floats": lambda: ["S", [["f", (n * 5e-324).hex()] for n in range(8_000)]],
    "a range without end": lambda: ["r", 0, 10**300, 1],
    "a long string": lambda: "\x00" * (4 * MEBIBYTE),
    "a deep value": lambda: json.loads('["t", [' * 50 + '["l", []]' + "]]" * 50),
}
LINES: dict[str, Callable[[], bytes]] = {
    name: lambda make=make: json.dumps({"value": make()}).encode() for name, make in VALUES.items()
} | {
    "short lines": lambda: b"\n" * (16 * MEBIBYTE),
    "many numbers": lambda: b"[" + b"0," * (8 * MEBIBYTE),
    "many lists": lambda: b"[" + b"[]," * (5 * MEBIBYTE) + b"0]",
    "brackets": lambda: b"[" * (16 * MEBIBYTE),
    "a long number": lambda: b"9" * 200_000,
    "a long decimal": lambda: b'{"value": 0.' + b"9" * 200_000 + b"}",
    "an error of lists": lambda: json.dumps({"error": [[]] * 9_000}).encode(),
}
EXPECTED = [5, None, [1, 2], set(range(6_000)), {n: n for n in range(6_000)}]


def parameters_of(cases: Iterable[str], *, exhaustive: tuple[str, ...]) -> list[object]:
    """The names, of which some are like another that `make test` has."""
    assert set(exhaustive) <= set(cases)
    return [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in exhaustive)) for name in cases]


LIKE_OTHER_LINES = (
    *("a smaller such set", "a dictionary of such keys", "such decimals in a set", "tiny floats"),
    *("fractions of large integers", "a long string", "many numbers", "brackets"),
)


@pytest.mark.parametrize("name", parameters_of(LINES, exhaustive=LIKE_OTHER_LINES))
def test_no_value_takes_long_to_judge(name):
    line = LINES[name]()
    for expected in EXPECTED:
        others = ("identical", "true", "false") if expected is None else ()
        for relation in ("same", "equal", *others):
            test = CallTest("f()", expected, relation)
            outcome = quick(lambda test=test: _judge_call(test, line, 1e-6))
            assert not outcome.passed or relation in ("true", "false")
            assert len(outcome.why) < 400


def test_a_value_takes_no_more_memory_than_its_line():
    line = LINES["many lists"]()
    tracemalloc.start()
    try:
        assert not _judge_call(CallTest("f()", [1]), line, 1e-6).passed
        assert tracemalloc.get_traced_memory()[1] < MEBIBYTE
    finally:
        tracemalloc.stop()


def test_a_large_right_value_is_right():
    # 20,000 members and 300 KB: more than is read where a small value is due.
    for value in (list(range(20_000)), set(range(20_000)), {n: str(n) for n in range(10_000)}, "é" * 60_000):
        line = json.dumps({"value": values.encode(value)}).encode()
        assert _judge_call(CallTest("f()", value), line, 1e-6).passed
        assert _judge_call(CallTest("f()", value, "equal"), line, 1e-6).passed
        assert "where the expected one takes" in _judge_call(CallTest("f()", 5), line, 1e-6).why


def test_an_expected_value_too_large_for_the_host_is_refused_or_left_to_a_judge(monkeypatch):
    monkeypatch.setattr(tests, "MAX_EXPECTED_MEMBERS", 2_000)
    large = "[" + "0," * 2_002 + "]"
    with pytest.raises(ValueError, match="more than 2000 members; use an assert statement"):
        parse_code_reference([{"call": "f()", "expect": large}], lang="python", limits=Limits())
    parsed = parse_code_reference([{"assert": f"assert f() == {large}"}], lang="python", limits=Limits())
    assert type(parsed.tests[0]).__name__ == "AssertTest"


OUTPUTS = {
    "short lines": lambda: b"1\n" * (8 * MEBIBYTE),
    "line ends": lambda: b"\n" * (16 * MEBIBYTE),
    "carriage returns": lambda: b"\r\n" * (8 * MEBIBYTE),
    "spaces": lambda: b" " * (16 * MEBIBYTE),
    "spaces and more": lambda: b"1" + b" " * (16 * MEBIBYTE) + b"2",
    "no text": lambda: b"\xff" * (16 * MEBIBYTE),
    "one token": lambda: b"1." + b"0" * (16 * MEBIBYTE),
    "four bytes each": lambda: "😀".encode() * (4 * MEBIBYTE),
    "tabs": lambda: b"1\t" * (8 * MEBIBYTE),
    "other spaces": lambda: "1\u00a0".encode() * (5 * MEBIBYTE),
}


LIKE_OTHER_OUTPUTS = ("carriage returns", "spaces", "four bytes each", "tabs", "other spaces")


@pytest.mark.parametrize("name", parameters_of(OUTPUTS, exhaustive=LIKE_OTHER_OUTPUTS))
def test_no_output_takes_long_or_much_memory_to_compare(name):
    output = OUTPUTS[name]()
    for expected in ("", "1", "1.5", "1.0\n" * 1000):
        for whitespace in compare.WHITESPACE:
            work = lambda: same_output(expected, output, whitespace=whitespace)  # noqa: B023, E731
            is_same = expected == "" and name in ("line ends", "carriage returns", "spaces")
            is_same = is_same and (whitespace, name) != ("exact", "spaces")
            # An output that is to be exact is not read when it is far too long.
            assert quick(work) is (is_same and whitespace != "exact")
    tracemalloc.start()
    try:
        same_output("1.0\n" * 1000, output)
        # At most a piece of the output, and a copy of it without the spaces at its end.
        assert tracemalloc.get_traced_memory()[1] < len(output) + MEBIBYTE
    finally:
        tracemalloc.stop()


def test_the_comparison_reads_spaces_and_lines_as_python_does():
    everything = "".join(map(chr, range(0x11_0000)))
    for run in compare._RUN.findall(everything):
        assert run.isspace() or not any(map(str.isspace, run))
    lines = everything.splitlines(keepends=True)
    assert compare._LINE_END.findall(everything) == [line[-1] for line in lines[:-1]]


FRAGMENTS = ["1", "1.5", "1.50", "15e-1", "x", " ", "  ", "\t", "\n", "\r\n", "\r", "\v", "\x1c", "\x1f", "\x85",
             "\u00a0", "\u2028", "\u3000", "é", "😀", "nan", "-", "0" * 9]  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


def plain_comparison(expected: str, actual: str, whitespace: str) -> bool:
    """The rule, written for short texts."""
    ours, theirs = (
        [line.split() for line in text.splitlines() if line.split()] for text in (expected, actual)
    )
    if whitespace == "tokens":
        ours, theirs = [sum(ours, [])], [sum(theirs, [])]
    same_shape = [len(line) for line in ours] == [len(line) for line in theirs]
    return same_shape and all(
        compare._tokens_equal(a, b, 1e-6)
        for line, other in zip(ours, theirs, strict=True)
        for a, b in zip(line, other, strict=True)
    )


@given(TEXTS, TEXTS, st.sampled_from(["lines", "tokens"]), st.sampled_from([1, 3, 1 << 16]))
@settings(max_examples=60)
def test_reading_by_pieces_gives_the_same_as_reading_whole(expected, actual, whitespace, piece):
    kept, compare._PIECE_BYTES = compare._PIECE_BYTES, piece
    try:
        for text in (actual, expected.replace(" ", "  ").replace("\n", "\n\n ") + "\n"):
            found = same_output(expected, text.encode(), whitespace=whitespace)
            if found != plain_comparison(expected, text, whitespace):
                # Only a run without plain spaces, longer than all that is expected, may be refused unread.
                assert not found and len(text.encode()) > len(expected.encode()) + piece
    finally:
        compare._PIECE_BYTES = kept


NUMBERS = (
    st.booleans() | st.integers(-3, 3) | st.integers() | st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, 1e300, float("inf")])
    | st.floats(allow_nan=False) | st.fractions(-2, 2, max_denominator=3) | st.sampled_from([Decimal("1.0"), Decimal("0.50"),
    Decimal("1e1000"), Decimal("10e999"), Decimal("-0")]) | st.complex_numbers(allow_nan=False, max_magnitude=2) | st.just(1 + 0j)
)  # fmt: skip
ATOMS = NUMBERS | st.none() | st.text(max_size=2) | st.binary(max_size=2) | st.builds(
    range, st.integers(-2, 2), st.integers(-2, 2), st.sampled_from([1, 2, -1]))  # fmt: skip
HASHABLE = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
LIKE = st.recursive(
    HASHABLE | st.sets(HASHABLE, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HASHABLE, inner, max_size=3),
    max_leaves=8,
)


@given(LIKE, LIKE)
@settings(max_examples=40)
def test_encoded_values_are_equal_exactly_when_python_says_so(ours, theirs):
    for a, b in ((ours, theirs), (ours, ours), ([ours, theirs], [theirs, ours])):
        assert compare.equal_value(values.encode(a), values.encode(b)) == (a == b)


@given(st.lists(NUMBERS, min_size=2, max_size=8))
@settings(max_examples=40)
def test_sets_of_numbers_are_the_same_by_value_with_true_apart_from_1(numbers):
    half = len(numbers) // 2
    ours, theirs = set(numbers[:half]), set(numbers[half:])
    as_kinds = [{(isinstance(x, bool), x) for x in members} for members in (ours, theirs)]
    assert compare.same_value(values.encode(ours), values.encode(theirs)) == (as_kinds[0] == as_kinds[1])


def test_values_are_shown_as_python_writes_them():
    for value in ([1, (2,), {"a": None}], {1.5}, "x'y", b"x", (), True, Fraction(1, 2), [[]], range(3)):
        assert compare.shown(values.encode(value)) == repr(value)
    assert compare.shown(["l", [["i", "0x1"]] * 1000], 10) == "[1, 1, 1, "
    assert compare.shown(["i", hex(1 << 5000)]) == "a number of 5001 bits"
    assert "no encoded value" in compare.shown(["d", [5]])


TAGS = st.sampled_from(["l", "t", "S", "F", "d", "i", "f", "c", "q", "D", "b", "ba", "r", "o", "?"])
STRINGS = st.sampled_from(["0x1", hex(P), "nan", "inf", "sNaN", "1e999999999", "-0x1", "zz", "0x1p9999", "", "\ud800", "0" * 500,
                           "9" * 5000]) | st.text(max_size=5)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | STRINGS
FORMS = st.recursive(
    LEAVES | st.lists(STRINGS, max_size=2).flatmap(lambda rest: TAGS.map(lambda tag: [tag, *rest])),
    lambda inner: st.tuples(TAGS, st.lists(inner, max_size=4)).map(list)
    | st.tuples(st.just("d"), st.lists(st.tuples(inner, inner).map(list), max_size=3)).map(list)
    | st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=20,
)  # fmt: skip
REPORTS = FORMS | st.fixed_dictionaries({"value": FORMS}) | st.fixed_dictionaries({"error": FORMS})
DUE = st.sampled_from([None, True, 0, 1.5, "x", b"x", [1], (), {1}, {1: [2.0]}, float("nan"), 1j, ...])


@given(st.binary(max_size=50) | REPORTS.map(lambda report: json.dumps(report).encode()), DUE,
       st.sampled_from(["same", "equal", "identical", "true", "false"]))  # fmt: skip
@settings(max_examples=60)
def test_whatever_a_program_reports_there_is_an_outcome(line, expected, relation):
    outcome = quick(lambda: _judge_call(CallTest("f()", expected, relation), line, 1e-6))
    assert isinstance(outcome.passed, bool) and len(outcome.why) < 400


@given(FORMS, st.integers(1, 3000), st.sampled_from(["l", "S", "F", "t", "d"]), LIKE)
@settings(max_examples=30)
def test_many_of_whatever_a_program_reports_are_judged_quickly(form, count, tag, expected):
    members = [[form, form]] * count if tag == "d" else [form] * count
    line = json.dumps({"value": [tag, members]}).encode()
    for relation in ("same", "equal"):
        quick(lambda relation=relation: _judge_call(CallTest("f()", [expected], relation), line, 1e-6))


UNITS = st.sampled_from(["\\boxed{", "\\boxed", "\\fbox{", "{", "}", "\\", "answer", "answer to ", " is ", "final ", "####", "*", "_", "`",
                         "```", "~~~", "```python\n", "\n", " ", "\t", ".", ":", "x", "1", "(", "[", "'", "<think>", "</think>", "not ",
                         "lambda x:", "if ", "\r\n", "\u3000", "İ", "\ud800", "or "]) | st.text(max_size=3)  # fmt: skip
RESPONSES = st.lists(st.tuples(st.lists(UNITS, min_size=1, max_size=3).map("".join), st.sampled_from([1, 1, 2, 40, 5000])), max_size=5).map(
    lambda parts: "".join(unit * count for unit, count in parts)
)  # fmt: skip


@given(RESPONSES)
@settings(max_examples=40)
def test_whatever_a_response_holds_it_is_read_quickly(response):
    found = quick(lambda: extract_answer(response, fallbacks=["final_answer", "hashes", "last_line"]))
    assert (found.answer is None) == bool(found.reason)
    for lang in ("python", "cpp"):
        program = quick(lambda lang=lang: extract_program(response, lang))
        # A fence's own indentation is no part of the program, nor are carriage returns.
    words = "".join(response.split())
    assert program is None or all("".join(line.split()) in words for line in program.split("\n"))


HOSTILE_TEXTS = {
    "asterisks": "*" * 40_000 + "a",
    "asterisks at the end": "a" + "*" * 4_000_000,
    "hashes and asterisks": "#### " + "*" * 40_000 + "a",
    "an answer in spaces": "answer to" + " " * 100_000,
    "answers in spaces": ("answer to x" + " " * 9) * 50_000,
    "spaces after boxes": ("\\boxed" + " " * 1000) * 4_000,
    "boxes of braces": ("\\boxed{" + "{}" * 8_000) * 200,
    "a fence and spaces": "```" + " " * 40_000 + "`",
    "a fence and letters": "```" + "a" * 40_000 + "`",
    "many blocks": "```\nx\n```\n" * 300_000,
    "long blocks": ("```\n" + "x = 1\n" * 3_000 + "```\n") * 200,
    "growing fences": "".join("`" * n + "\n" + "`" * n + "\n" for n in range(3, 1500)),
}


@pytest.mark.parametrize("name", HOSTILE_TEXTS)
def test_no_response_takes_long_to_read(name):
    text = HOSTILE_TEXTS[name]
    quick(lambda: extract_answer(text, fallbacks=["final_answer", "hashes", "last_line"]))
    quick(lambda: extract_program(text, "python"))
