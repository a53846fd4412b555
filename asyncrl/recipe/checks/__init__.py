"""Checks across the sections of a recipe; each raises ValueError with the key to change."""

from asyncrl.recipe import stage
from asyncrl.recipe.checks import machines, sampling, training

CHECKS = (
    *(stage.check_columns, stage.check_asked_servers),
    *(sampling.check_sizes, sampling.check_oversampling),
    *(sampling.check_template_arguments, sampling.check_history, sampling.check_summaries),
    *(sampling.check_untrained_summaries, sampling.check_agent, training.check_staleness),
    *(sampling.check_repetition, training.check_advantage, training.check_divergence),
    *(training.check_routing_replay, sampling.check_pilot, sampling.check_mixture, training.check_critic),
    *(training.check_schedules, training.check_scaling, training.check_loss_scale, training.check_lora),
    *(training.check_entropy_control, machines.check_teacher, sampling.check_drops),
    *(machines.check_evaluation, machines.check_placement, machines.check_servers, training.check_agreement),
)
"""In the order in which mistakes are told."""
