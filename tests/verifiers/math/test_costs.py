"""What is put to sympy: the tree alone tells which expressions are too large, before it is imported or asked;
and the short ways of reading an answer come to the same as the whole way."""

import itertools
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.extract import last_box
from verifiers.math import algebra, answer
from verifiers.math.arithmetic import Undecided
from verifiers.math.costs import require_affordable
from verifiers.math.parser import parse_answer, parse_tokens
from verifiers.math.tokens import Token, Unreadable, tokenize
from verifiers.math.verifier import MathVerifier
from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome

GOLDS = ("42", r"\sum_{k=1}^{10} k")
"""The second has an operation, so the operations of an answer are evaluated, too."""

HUGE = [
    r"\prod_{k=1}^{1000000} k", "9^{9^{9^{9}}}", r"\prod_{k=1}^{999999} k^{k}", r"\sum_{k=1}^{900000} k!",
    r"\binom{10^9}{5\cdot 10^8}", "(10^9)!", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{10^9}",
    r"\det\begin{pmatrix}9^{9^9}&1\\1&2\end{pmatrix}", r"\sum_{k=1}^{n} k^{9999}",
    r"\prod_{a=1}^{9999}\prod_{b=1}^{9999} ab", r"\frac{(10^{10})!}{(10^{10}-1)!}",
    r"\int_0^1 (x+a)^{90}(x+b)^{90}(x+c)^{90} dx", r"\frac{d^{10}}{dx^{10}} x^{x^{x^{x}}}",
    r"\lim_{x\to\infty} \frac{e^{e^{e^{e^{x}}}}}{x}", r"\sum_{k=1}^{10} 9^{9^{9^k}}",
]  # fmt: skip

HONEST = [
    r"\sum_{k=1}^{1000000} k^2", r"\sum_{k=1}^{10^{100}} k", r"\sum_{k=1}^{\infty} \frac{1}{k^2}",
    r"\prod_{k=2}^{\infty} (1-\frac{1}{k^2})", r"\prod_{k=1}^{n} \frac{k}{k+1}",
    r"\sum_{k=0}^{n} \binom{n}{k}", r"\lim_{n\to\infty} (1+\frac1n)^n",
    r"\lim_{x\to0} (\cos x)^{\frac{1}{x^2}}", r"\int_0^1 x^{10}(1-x)^{10} dx",
    r"\int_0^\infty e^{-x^2} dx", r"\frac{d^{10}}{dx^{10}} x^3e^x\sin x", r"\frac{d}{dx} x^{x^x}",
    r"\begin{pmatrix}1&1\\1&0\end{pmatrix}^{60}", r"\frac{10000!}{9998!}", r"\binom{100}{50}",
    r"\sum_{k=1}^{1000} 2^k", r"\sum_{n=1}^{\infty} \frac{n^3}{2^n}", r"\sum_{k=1}^{n} k^{10}",
]  # fmt: skip


def boxed(answer: str) -> str:
    return f"The answer is $\\boxed{{{answer}}}$."


def huge_expressions() -> st.SearchStrategy[str]:
    """Values of more than a million digits: growing operations, one inside or beside the other."""
    numbers = st.integers(10**6, 10**9).map(str)
    grown = st.one_of(
        numbers.map(lambda n: f"{n}!"),
        numbers.map(lambda n: rf"\binom{{{n}}}{{{int(n) // 2}}}"),
        st.tuples(st.integers(7, 99), numbers).map(lambda pair: f"{pair[0]}^{{{pair[1]}0}}"),
        numbers.map(lambda n: rf"\prod_{{k=1}}^{{{n}}} k"),
        numbers.map(lambda n: rf"\prod_{{k=1}}^{{{n}}} (2k+1)"),
        numbers.map(lambda n: rf"\sum_{{k=1}}^{{{n}}} k^{{k}}"),
        numbers.map(lambda n: rf"\sum_{{k=1}}^{{{n}}} k!"),
        st.just("9^{9^{9^9}}"),
    )
    return st.recursive(
        grown,
        lambda inner: st.one_of(
            inner.map(lambda text: f"({text})!"),
            inner.map(lambda text: f"2^{{{text}}}"),
            inner.map(lambda text: rf"({text})^{{3}}+1"),
            inner.map(lambda text: rf"\sum_{{j=1}}^{{20}} j\cdot ({text})"),
            inner.map(lambda text: rf"\prod_{{j=1}}^{{7}} (j+{text})"),
            inner.map(lambda text: rf"\det\begin{{pmatrix}}{text}&1\\2&3\end{{pmatrix}}"),
            st.tuples(inner, inner).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
            st.tuples(inner, inner).map(lambda pair: rf"({pair[0]})\cdot({pair[1]})"),
        ),
        max_leaves=3,
    )


@given(huge_expressions())
@settings(max_examples=150)
def test_what_has_millions_of_digits_is_not_affordable(text: str) -> None:
    with pytest.raises(Undecided):
        require_affordable(parse_answer(text))


@pytest.mark.parametrize("text", HONEST)
def test_what_a_gold_may_ask_for_is_affordable(text: str) -> None:
    require_affordable(parse_answer(text))


def test_bombs_do_not_ask_sympy() -> None:
    code = (
        "import sys; from verifiers.math.verifier import MathVerifier; v = MathVerifier(operations='any')\n"
        f"for gold in {GOLDS!r}:\n"
        f"    for answer in {HUGE!r}:\n"
        "        v.verify('\\\\boxed{' + answer + '}', v.parse_reference(gold))\n"
        "print('sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


async def test_bombs_are_wrong_and_kill_no_worker() -> None:
    async with VerifierPool(num_workers=1) as pool:
        for gold in GOLDS:
            reference = pool.parse_reference("math", {}, gold)
            for text in HUGE:
                verdict = await pool.verify("math", {"operations": "any"}, boxed(text), reference)
                assert verdict.outcome is Outcome.WRONG, (text, verdict)
        assert pool.num_killed == 0


GRADED = [
    ("42", r"\boxed{42, \frac{84}{2}}", "wrong"),
    ("42", r"$\boxed{42}$, $\boxed{\frac{84}{2}}$", "correct"),
    (r"\text{(C)} 42", r"\boxed{C}", "correct"),
    ("42", r"\boxed{C}", "wrong"),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(len(GRADED)), 2)))
def test_an_earlier_response_does_not_change_a_verdict(order: tuple[int, int]) -> None:
    verifier = MathVerifier()
    for gold, response, expected in (GRADED[number] for number in order):
        reference = verifier.parse_reference(gold)
        assert verifier.verify(response, reference).outcome.value == expected, (gold, response)
        quick = verifier.verify_fast(response, reference)
        assert quick is not None and quick.outcome.value == expected, (gold, response)


def test_cache_keys_differ_where_verdicts_may() -> None:
    verifier = MathVerifier()
    keys = {verifier.cache_key(response, verifier.parse_reference(gold)) for gold, response, _ in GRADED}
    assert len(keys) == len(GRADED)


CASES = Path(__file__).parents[1] / "cases"
PIECES = st.lists(
    st.sampled_from(
        r"5|12.5|0.5...|m| m| s|C|^\circ|\circ C|x|km|kg| and | no |act|\$|\pounds|\Omega|\in|\mathbb{Z}"
        r"|\text{ cm}|\text{where}|integer|,| |$|{|}|(|)|\(|\)|:|.|\,|**|/|=|\frac12|\cup|-|2^|k|%".split("|")
    ),
    max_size=8,
).map("".join)


@cache
def written() -> list[str]:
    rows = [
        json.loads(line)
        for file in sorted(CASES.glob("*.jsonl"))
        for line in file.read_text("utf-8").splitlines()
    ]
    return [text for row in rows for text in (str(row["gold"]), last_box(row["response"]) or row["response"])]


def check_all_ways(text: str) -> None:
    try:
        tokens = tokenize(text)
    except Unreadable:
        return
    if not any(map(answer._is_short_word, tokens)):
        assert tree(tokens, short_words=True) == tree(tokens, short_words=False)


def tree(tokens: list[Token], *, short_words: bool) -> object:
    try:
        return parse_tokens(list(tokens), short_words=short_words)
    except Unreadable as error:
        return str(error)


def test_what_is_skipped_changes_no_text_of_the_cases() -> None:
    for text in written():
        check_all_ways(text)


@given(PIECES)
@settings(max_examples=400)
def test_what_is_skipped_changes_no_text(text: str) -> None:
    check_all_ways(text)


@given(st.from_regex(r"[-+]?[0-9]{1,5}(\.[0-9]{1,4}|/[1-9][0-9]{0,3})?", fullmatch=True))
@settings(max_examples=200)
def test_a_plain_number_is_read_as_by_the_grammar(text: str) -> None:
    found = answer.read_answer(text)
    assert found.readings == (parse_answer(text),)
    assert found.text == found.words == text and found.unit is None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What reaches sympy's own proof."""
    found: list[object] = []

    def note(difference: object) -> bool:
        found.append(difference)
        return False

    monkeypatch.setattr(algebra, "_is_zero", note)
    return found


@pytest.mark.parametrize("depth", [3, 14])
def test_a_plain_number_is_not_proved_equal_to_an_answer_with_letters(
    asked: list[object], depth: int
) -> None:
    verifier = MathVerifier()
    response = r"\boxed{x-1" + r"\log" * depth + "4}"
    assert verifier.verify(response, verifier.parse_reference("22")).outcome is Outcome.WRONG
    assert not asked


@pytest.mark.parametrize(("depth", "num_asked"), [(2, 1), (14, 0)])
def test_functions_inside_functions_are_put_to_sympy_up_to_a_depth(
    asked: list[object], depth: int, num_asked: int
) -> None:
    left, right = (parse_answer(r"\ln" * depth + end) for end in (" x", " (x+0)"))
    assert algebra.proves_equal(left, right) is False
    assert len(asked) == num_asked
