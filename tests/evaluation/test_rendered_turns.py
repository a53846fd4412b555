"""Evaluations of a run whose chat template renders each turn's context ask for what training asks for."""

import dataclasses
import itertools
from pathlib import Path

import pytest
from fakes.records import make_score
from rollout.test_rendered_history import END, HEADER, asked_by, run_of, thinking

from asyncrl.evaluation.evaluator import Evaluator
from asyncrl.records import SamplingParams


class Correct:
    async def grade(self, *_: object) -> object:
        return make_score()


@pytest.mark.parametrize("family", ["qwen3", "smollm2"])
async def test_an_evaluation_reads_the_contexts_of_training(tmp_path: Path, family: str) -> None:
    async with run_of(tmp_path, family, samples=1) as run:
        (trained,) = await run.play()
        num_asked = len(run.engine.bodies)
        generator = run.player.generator
        evaluator = Evaluator(
            *(generator.fleet, generator.waits, Correct(), run.codec),  # type: ignore[arg-type]
            *(SamplingParams(1.0, 1000, run.codec.stop_token_ids), 2000, "run", itertools.count()),
            conversations=dataclasses.replace(run.player.conversations),
        )
        ((answer,),) = await evaluator.answer([asked_by(run.codec)], num_samples=1, is_greedy=True)
        asked = [body["input_ids"][0] for body in run.engine.bodies]
        assert asked[num_asked:] == asked[:num_asked]
        assert (answer.num_tokens, answer.num_turns) == (trained.num_sampled_in_all(), 3)
        # For people, the conversation as it was sampled.
        said = [f"{thinking(n)}{END}\n<|im_start|>user\nnot {n}{END}\n{HEADER}" for n in range(2)]
        assert answer.text == f"{said[0]}{said[1]}{thinking(2)}{END}"
