"""The section `teacher`: what it cannot be beside, and what it makes of the other sections."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.replay.settings import QueueSettings

ON = {"path": "teacher"}


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"teacher": {"coefficient": 2.0}}, "teacher.coefficient is set but teacher.path is not"),
        ({"teacher": {"top_k": 8}}, "teacher.top_k is set but teacher.path is not"),
        ({"teacher": {**ON, "coefficient": 0.0}}, "0 but teacher.top_k is not set: .* would teach nothing"),
        ({"teacher": {**ON, "top_k_coefficient": 0.5}}, "no forward KL that it could weigh"),
        ({"teacher": {**ON, "top_k": 8}, "rollout": {"top_p": 0.9, "top_k": 5}}, "rollout.top_k, top_p or"),
        ({"teacher": ON, "rollout": {"top_k": 5}}, "rollout.top_k, top_p or min_p is too: .* no KL"),
        ({"teacher": ON, "algorithm": {"advantage": "gae"}}, "the critic gives each token an advantage"),
        ({"teacher": ON, "algorithm": {"advantage": "remax"}}, "whose greedy responses are generated"),
        ({"teacher": ON, "algorithm": {"nll_coefficient": 0.1}}, "algorithm.nll_coefficient is set but"),
        ({"teacher": ON, "rollout": {"pilot_samples": 2}}, "rollout.pilot_samples is set but"),
        ({"teacher": ON, "data": {"selection": {"by": "learnable"}}}, "data.selection is set but"),
        ({"teacher": {**ON, "extra_arguments": ["--dtype", "auto"]}}, "teacher.extra_arguments"),
        ({"teacher": ON, "placement": {"teacher": [0, 1]}}, "placement.teacher names 2 GPU"),
        (
            {"teacher": ON, "cluster": {"backend": "ray", "shared_disk": False}},
            "only the policy's model is handed to other nodes",
        ),
        ({"teacher": ON, "stage": "sft"}, "teacher.path is 'teacher' but stage is sft"),
    ],
)
def test_what_a_teacher_cannot_be_beside_is_refused(
    tmp_path: Path, sections: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        make_recipe(tmp_path, **sections)


def test_alone_it_needs_no_group_and_every_group_teaches(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, teacher=ON, rollout={"samples_per_group": 1})
    assert not recipe.has_verdicts() and QueueSettings.of(recipe).always_teaches
    with pytest.raises(InputError, match="samples_per_group is 1 but algorithm.advantage grpo needs"):
        make_recipe(tmp_path, teacher={**ON, "with_reward": True}, rollout={"samples_per_group": 1})
    assert make_recipe(tmp_path, teacher={**ON, "with_reward": True}).has_verdicts()


def test_dynamic_sampling_is_allowed_beside_it_though_it_drops_nothing_then(tmp_path: Path) -> None:
    make_recipe(tmp_path, teacher={**ON, "with_reward": True}, algorithm={"preset": "dapo"})


def test_its_server_is_one_of_its_own(tmp_path: Path) -> None:
    recipe = make_recipe(
        tmp_path,
        teacher={**ON, "dtype": "float32", "max_total_tokens": 4096},
        serving={"num_servers": 3, "max_total_tokens": 512},
    )
    own = recipe.of_teacher()
    assert (own.model.path, own.model.dtype) == ("teacher", "float32")
    assert (own.serving.num_servers, own.serving.max_total_tokens) == (1, 4096)
    elsewhere = make_recipe(tmp_path, teacher={**ON, "url": "http://127.0.0.1:1"})
    assert (recipe.teacher.num_started(), elsewhere.teacher.num_started()) == (1, 0)
