"""Sums for which a calculator pays, and answers in the form of turns.call_format: tags."""

from random import Random

from asyncrl.examples.tool_sums import (
    ToolSumsOptions,
    build_tokenizer,
    draw_corpus,
    draw_sum,
    is_long,
    respond,
)

OPTIONS = ToolSumsOptions(num_examples=400)


def test_half_of_the_sums_are_long() -> None:
    random = Random(0)
    sums = [draw_sum(random) for _ in range(400)]
    assert 150 < sum(map(is_long, sums)) < 250
    assert all(len(str(n)) in ((4, 5) if is_long(terms) else (1, 2)) for terms in sums for n in terms)


def test_a_call_holds_the_sum_and_its_output_is_what_the_calculator_says() -> None:
    from asyncrl.turns.tools.calculator import calculator

    for example in draw_corpus(OPTIONS, without=set()):
        if example.observed:
            call, _, rest = example.response.partition(example.observed)
            expression = call.removeprefix("<calculator>").removesuffix("</calculator>")
            value = calculator(expression)
            assert example.observed == f"<output>{value}</output>" and rest == f"\\boxed{{{value}}}"
            assert f"{expression}=" == example.prompt


def test_only_short_sums_are_right_without_a_call() -> None:
    for terms in ((12, 7), (1234, 56789)):
        examples = [respond(terms, Random(seed), called=0.0) for seed in range(20)]
        are_right = {example.response == f"\\boxed{{{sum(terms)}}}" for example in examples}
        assert are_right == {not is_long(terms)}


def test_held_out_sums_are_not_in_the_corpus() -> None:
    first = next(iter(draw_corpus(OPTIONS, without=set()))).terms
    left = draw_corpus(OPTIONS, without={(min(first), max(first))})
    assert all(sorted(example.terms) != sorted(first) for example in left)


def test_the_base_model_does_not_learn_what_the_calculator_writes() -> None:
    from asyncrl.examples import pretrain

    example = respond((1234, 56789), Random(0), called=1.0)
    tokenizer = build_tokenizer()
    ids, are_learned = pretrain._encode(tokenizer, example)
    learned = tokenizer.decode(
        [token for token, is_learned in zip(ids, are_learned, strict=True) if is_learned]
    )
    assert learned == "<calculator>1234+56789</calculator>\\boxed{58023}"
    assert tokenizer.decode(ids) == f"{example.prompt}{example.response}"
