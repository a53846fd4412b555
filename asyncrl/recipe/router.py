"""The subsection `trainer.router`."""

from asyncrl.recipe.sections.section import NonNegativeFloat, Section


class Router(Section):
    """Routers of a mixture of experts. No loss pushes them towards balance: which experts get a token is the
    policy's own choice."""

    frozen: bool = False
    """Routers keep the base model's weights, as many fine-tunes of mixtures of experts have it: what a token
    is routed by then changes through the layers before it alone. The critic's routers are trained."""
    bias_update_rate: NonNegativeFloat = 0.0
    """For routers of sigmoids with a bias per expert (GLM-4.5): after each optimizer step the biases of
    experts with less than the mean load rise by this, those of others fall by it. 0: biases stay the base
    model's, as in most fine-tunes: a policy that learns from few kinds of tasks needs few experts.
    DeepSeek-V3 was pretrained with 0.001."""
