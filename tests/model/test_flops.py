import dataclasses

from fakes.shapes import tiny_shape

from asyncrl.model.flops import generation_flops, matrix_weights, peak_flops, token_flops

SHAPE = tiny_shape()


def test_a_token_costs_six_operations_per_weight_of_its_matrices():
    # per layer: q and o 32 x 32 each, k and v 32 x 16 each, feed-forward 3 x 32 x 48
    assert token_flops(SHAPE) == 6 * 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)


def test_only_the_chosen_experts_cost_anything():
    experts = dataclasses.replace(SHAPE, num_experts=8, experts_per_token=2, expert_ffn_size=10)
    # router 32 x 8, two networks of 3 x 32 x 10
    assert token_flops(experts) == 6 * 2 * (2 * 32 * 32 + 2 * 32 * 16 + 32 * 8 + 2 * 3 * 32 * 10)


def test_sampling_takes_a_forward_pass_per_token_that_is_fed_and_the_output_layer_per_sampled_one():
    # A prompt of 3, a response of 2: the last one is not fed. They look at 1 + 2 + 3 + 4 tokens.
    found = generation_flops(SHAPE, num_prompt_tokens=3, num_sampled_tokens=2, num_fed_tokens=1, num_looks=10)
    weights = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    # Output layer 32 x 40; scores and values, 2 operations each, of 4 heads of size 8 in 2 layers.
    assert found == 2 * weights * 4 + 2 * 32 * 40 * 2 + 4 * 10 * 4 * 8 * 2
    assert matrix_weights(SHAPE) == weights + 32 * 40


def test_the_peak_is_the_recipes_or_that_of_a_known_gpu():
    assert peak_flops(100.0, None) == 1e14
    assert peak_flops(None, None) is None
    assert peak_flops(None, "NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops(None, "Some GPU") is None
