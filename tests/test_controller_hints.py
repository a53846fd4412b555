"""What a run tells of responses that are cut off or never right: between fake servers and a fake trainer."""

import asyncio
from pathlib import Path

from fakes.engine import FakeEngine
from fakes.trainer import FakeTrainer
from test_controller import controller_on, make_recipe

from asyncrl.zero_reward import NUM_STEPS


def test_a_run_whose_responses_are_all_cut_off_and_wrong_says_so_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        recipe = make_recipe(
            trainer={"num_steps": NUM_STEPS + 2},
            rollout={"max_new_tokens": 4},
            evaluation={"every_steps": 0},
        )
        # Five tokens to a response, of which four are allowed.
        async with (
            FakeEngine() as engine,
            controller_on(tmp_path, recipe, [engine]) as (controller, notebook),
        ):
            await controller.run(FakeTrainer(controller.queue_url, tmp_path).run)
            assert [row["cut_share"] for row in notebook.steps] == [1.0] * (NUM_STEPS + 2)
            (hint,) = [note for note in notebook.notes if "no response was correct" in note]
            assert "100% were cut at rollout.max_new_tokens (4)" in hint
            assert 'The verifier "exact" looks for' in hint

    asyncio.run(scenario())
