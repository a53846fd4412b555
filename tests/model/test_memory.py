"""The arithmetic of `asyncrl plan`; tests/trainer/test_memory.py measures what it plans."""

import dataclasses
from pathlib import Path

from fakes.recipes import make_recipe
from fakes.shapes import tiny_shape

from asyncrl.model.flops import generation_flops, matrix_weights, peak_flops, token_flops
from asyncrl.model.layout import Layout
from asyncrl.model.memory import LOGITS_AT_ONCE, AdamStates, RankMemory, parameters_by_kind, rank_memory

ALONE = Layout()


def test_recomputation_holds_one_layer_and_the_inputs_of_all():
    memory = rank_memory(tiny_shape(), dtype="float32", tokens_per_micro_batch=10)
    # 2 layers; a layer holds 10 tokens x (6 x 32 + 7 x 32 + 2 x 32 + 5 x 48) numbers, its input 10 x 32.
    layer = 4 * 10 * (6 * 32 + 7 * 32 + 2 * 32 + 5 * 48)
    assert memory.activations == 2 * layer
    assert memory.activations_recomputed == layer + 2 * 4 * 10 * 32


def test_tensor_and_pipeline_ranks_divide_the_layers_and_not_the_norms():
    shape = tiny_shape()
    counts = parameters_by_kind(shape)
    halved = memory_at(Layout(tensor=2))
    divided = counts["attention"] + counts["mlp"] + counts["embedding"] + counts["output layer"]
    assert halved.weights == 4 * (divided // 2 + counts["norms"])
    staged = memory_at(Layout(pipeline=2))
    layers = (counts["attention"] + counts["mlp"]) // 2
    assert staged.weights == 4 * (layers + round(counts["norms"] / 2) + counts["embedding"])


def test_data_parallel_ranks_share_the_optimizer_only_when_it_is_distributed():
    alone = memory_at(Layout())
    assert dataclasses.replace(memory_at(Layout(data=2)), checkpoint_copy=alone.checkpoint_copy) == alone
    both = memory_at(Layout(data=2))
    shared = memory_at(Layout(data=2, is_optimizer_distributed=True))
    assert shared.optimizer == alone.optimizer // 2
    # Each writes a half of a checkpoint, however the optimizer is divided.
    assert shared.checkpoint_copy == both.checkpoint_copy == alone.checkpoint_copy // 2
    assert (shared.weights, shared.gradients) == (alone.weights, alone.gradients)


def test_context_ranks_share_the_tokens():
    assert memory_at(Layout(context=2)).activations == memory_at(Layout()).activations // 2


def test_frozen_attention_of_a_critic_has_neither_gradient_nor_moments():
    def critic(layout: Layout = ALONE, **given: bool) -> int:
        options = {"dtype": "float32", "tokens_per_micro_batch": 8, "layout": layout}
        return rank_memory(tiny_shape(), **options, has_critic=True, **given).critic

    attention = parameters_by_kind(tiny_shape())["attention"]
    frozen = {"freezes_critic_attention": True}
    assert critic() - critic(**frozen) == attention * (4 + 8)
    assert critic(Layout(tensor=2)) - critic(Layout(tensor=2), **frozen) == attention // 2 * (4 + 8)
    shared = Layout(data=2, is_optimizer_distributed=True)
    assert critic(shared) - critic(shared, **frozen) == attention * 4 + attention // 2 * 8


def test_a_save_that_training_waits_for_needs_no_copy_not_of_the_critic_either():
    def memory(saves_in_background: bool) -> RankMemory:
        return rank_memory(
            tiny_shape(),
            dtype="float32",
            tokens_per_micro_batch=8,
            has_critic=True,
            saves_in_background=saves_in_background,
        )

    copied, waiting = memory(True), memory(False)
    # Of weights (4 bytes) and moments (8), so a third is the weights'.
    assert (copied.checkpoint_copy, waiting.checkpoint_copy) == (3 * copied.weights, 0)
    # 4 + 4 + 8 bytes a parameter, and 12 in the copy.
    assert waiting.critic == copied.critic and copied.critic_copy * 16 == copied.critic * 12
    assert copied.copies() == copied.checkpoint_copy + copied.critic_copy
    assert waiting.copies() == 0
    # The copies are host memory where the rank computes on a GPU.
    assert waiting.total() == waiting.computing() == copied.computing() == copied.total() - copied.copies()


def test_states_in_bfloat16_take_half_also_in_the_copy_of_a_checkpoint():
    def memory(**keys: object) -> RankMemory:
        section = make_recipe(Path("unused"), trainer=keys).trainer
        return rank_memory(
            tiny_shape(),
            dtype="bfloat16",
            tokens_per_micro_batch=8,
            layout=Layout(data=2, is_optimizer_distributed=True),
            has_critic=True,
            adam=AdamStates.of(section),
        )

    plain, first = memory(), memory(exp_avg_dtype="bfloat16")
    both = memory(exp_avg_dtype="bfloat16", exp_avg_sq_dtype="bfloat16")
    # Master weights and two moments of 4 bytes each, shared by two ranks.
    parameters = plain.weights // 2
    assert [m.optimizer * 2 for m in (plain, first, both)] == [
        12 * parameters,
        10 * parameters,
        8 * parameters,
    ]
    # The copies: weights of 2 bytes and the states, the critic's too; two ranks write a half each.
    written = [m.checkpoint_copy * 2 for m in (plain, first, both)]
    assert written == [14 * parameters, 12 * parameters, 10 * parameters]
    assert plain.offloaded == both.offloaded == 0
    moved = memory(optimizer_cpu_offload=True)
    assert moved.optimizer == 0 and moved.copies() == plain.copies()
    # With float32 gradients there, 16 bytes a parameter, the critic's included.
    values = moved.critic // (2 + 4)
    assert moved.offloaded == 16 * (parameters + values) // 2
    assert moved.computing() == plain.computing() - 12 * (parameters + values) // 2


def test_logits_of_a_large_vocabulary_are_those_of_a_chunk():
    shape = dataclasses.replace(tiny_shape(), vocab_size=152_000)
    few, many = (rank_memory(shape, dtype="float32", tokens_per_micro_batch=n).logits for n in (4096, 65536))
    assert few == many == 4 * 4 * LOGITS_AT_ONCE


def test_the_gradient_of_the_output_layer_is_summed_up_apart():
    shape = tiny_shape()
    weight = shape.vocab_size * shape.hidden_size
    assert memory_at(Layout()).output_gradient == weight * 4
    # In chunks: a float32 sum, and a part in the type of the weights.
    mixed = rank_memory(shape, dtype="bfloat16", tokens_per_micro_batch=8)
    assert mixed.output_gradient == weight * (4 + 2)
    assert memory_at(Layout(tensor=2)).output_gradient == weight // 2 * (4 + 4)
    assert mixed.computing() == memory_without(mixed) + mixed.output_gradient


def memory_without(memory: RankMemory) -> int:
    return dataclasses.replace(memory, output_gradient=0).computing()


def memory_at(layout: Layout) -> RankMemory:
    return rank_memory(tiny_shape(), dtype="float32", tokens_per_micro_batch=8, layout=layout)


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
