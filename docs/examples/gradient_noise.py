"""A step part to copy: the gradient noise scale, as a column. A row of `trainer/parts/table.py` adds it."""

import torch

from asyncrl.trainer.step.part import StepPart


class GradientNoise(StepPart):
    """`gradient_noise`: tr(S) / |G|^2, in sequences: a batch far larger than that repeats itself.

    McCandlish et al. 2018 (arXiv 1812.06162, appendix A.1): of gradients of b sequences E|g|^2 is
    |G|^2 + tr(S) / b. The small ones are those of the mini-batches, the large one is their mean; that weights
    move between them is neglected. Needs trainer.optimizer_steps_per_batch of 2 or more, without which the
    column is missing, float32, and one rank. Keeps one more copy of the gradient.
    """

    def __init__(self, learner, recipe):
        self.learner = learner

    def prepare(self, step):
        self.num_sequences, self.squares, self.total = len(step.batch.sequences), [], 0.0

    def stepped(self, norm):
        if norm is None:
            return
        parameters = self.learner.model.parameters()
        gradient = torch.cat([each.main_grad.flatten() for each in parameters if each.requires_grad])
        # As it was before the optimizer clipped it.
        gradient = gradient * (norm / gradient.norm().clamp(min=1e-30))
        self.squares.append(norm**2)
        self.total = self.total + gradient

    def finish(self, metrics):
        count = len(self.squares)
        if count < 2:
            return {}
        small, large = sum(self.squares) / count, (self.total / count).square().sum().item()
        signal = (count * large - small) / (count - 1)
        noise = (small - large) * self.num_sequences / (count - 1)
        return {"gradient_noise": noise / signal if signal > 0 else float("inf")}
