"""The sections `sft` and `dpo` of stages that learn from rows, and `teacher`."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from asyncrl.recipe.sections.section import (
    CHANGEABLE,
    PATH_OR_HUB_ID,
    TASK_ROWS,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
)
from asyncrl.recipe.server_options import refuse_options


class SFT(Section):
    """Supervised fine-tuning, `stage: sft`: the model imitates the rows of data.train. A row has chat
    messages (column messages), or a prompt and a response. The loss is the negative log-likelihood of the
    tokens that are learned, a mean over those of the whole batch."""

    rows_per_batch: Positive = 32
    """Rows of a step."""
    loss_on: Literal["response", "assistant"] = "assistant"
    """Which tokens of chat messages are learned; each turn with the token that ends it. `asyncrl prompt`
    shows them in color.
    response: the last message, which is the assistant's; all before it is context.
    assistant: every turn of the assistant that answers something."""
    too_long: Literal["refuse", "cut", "leave_out"] = "refuse"
    """Rows of more tokens than model.context_tokens.
    refuse: the first one ends the start.
    cut: what is beyond the limit is left off, and the row teaches no end.
    leave_out: they are counted and shown, and the others are used."""


class DPO(Section):
    """Preference optimization, `stage: dpo`: the model learns which of two responses is preferred. A row has
    a prompt, chosen and rejected. The loss is a mean over the pairs of the batch."""

    rows_per_batch: Positive = 32
    """Pairs of a step."""
    loss: Literal["dpo", "ipo"] = "dpo"
    """h is how much more the policy prefers the chosen response than the reference does, the model that the
    run began with.
    dpo: -ln sigmoid(beta h), by sums over the tokens of a response (Rafailov et al. 2023).
    ipo: (h - 1 / (2 beta))^2, by means (Azar et al. 2023). For pairs that all agree, which dpo overfits."""
    beta: PositiveFloat = 0.1
    """How close the policy stays to the reference: the smaller, the farther it may go."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """With dpo, the chance that the two sides of a pair are the wrong way round (cDPO)."""
    nll_coefficient: NonNegativeFloat = 0.0
    """Weight of the negative log-likelihood of the chosen response, a mean over its tokens: where both
    responses become less likely (Pang et al. 2024: 1). 0: off."""
    too_long: Literal["refuse", "leave_out"] = "refuse"
    """Pairs with a side of more tokens than model.context_tokens.
    refuse: the first one ends the start.
    leave_out: they are counted and shown, and the others are used."""

    @model_validator(mode="after")
    def _check(self) -> "DPO":
        if self.loss == "ipo" and self.label_smoothing:
            raise ValueError(
                f"dpo.label_smoothing is {self.label_smoothing:g} but dpo.loss is ipo, which has no "
                f"probability to smooth. Remove it, or set dpo.loss to dpo."
            )
        return self


class Teacher(Section):
    """On-policy distillation, in stage rl: another model scores the tokens that the policy sampled, and each
    gets the advantage coefficient * (ln teacher - ln policy), both at rollout.temperature. The sum is the
    reverse KL to the teacher, from the policy's own tokens (docs/stages.md)."""

    path: Annotated[str | None, PATH_OR_HUB_ID, TASK_ROWS] = None
    """The teacher: any model that SGLang serves, with the tokenizer of `model`. A Hugging Face folder, a hub
    id, or the folder of a run that has ended, as model.path. Setting it turns distillation on."""
    revision: str | None = None
    """Branch, tag or commit of a hub id. Default: its main branch."""
    url: Annotated[str | None, CHANGEABLE] = None
    """A running SGLang 0.5.23 server of the teacher; `path` is then read for its tokenizer and config.json
    alone. It is shown the key of serving.api_key_variable. At a rollout.temperature other than 1 it needs
    asyncrl's plugin: SGLang's own log-probs of a text ignore the temperature.
    Default: the run starts one server of its own, which takes no rollouts."""
    coefficient: NonNegativeFloat = 1.0
    """Weight of the teacher's advantage. 0 with `top_k` alone: the forward KL then teaches by itself."""
    top_k: Positive | None = None
    """The loss gains the forward KL to the teacher over its k likeliest tokens at each sampled position, at
    rollout.temperature: what the teacher would write there too, not only what it thinks of the one token that
    was sampled. Take it where sampled log-ratios are too noisy, as with few or short responses. About 16 of
    its tokens hold nearly all of its probability. Costs 8 k bytes of journal for each sampled token.
    Default: none."""
    top_k_coefficient: PositiveFloat = 1.0
    """Weight of that forward KL in the loss."""
    with_reward: Annotated[bool, TASK_ROWS] = False
    """true: the teacher's advantage is added to that of the reward, after what is done to the batch's.
    false: it is the only one. Rows need no answer, and no verifier is asked of training responses."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights and activations of the run's own server; auto as in model.dtype."""
    tensor_parallel_size: Annotated[Positive, CHANGEABLE] = 1
    """Tensor-parallel ranks (GPUs) of the run's own server."""
    max_total_tokens: Annotated[Positive | None, CHANGEABLE] = None
    """KV cache size of the run's own server, in tokens. Default: as serving.max_total_tokens."""
    extra_arguments: Annotated[list[str], CHANGEABLE] = []
    """Options appended to the command line of the run's own server, as serving.extra_arguments."""

    @field_validator("extra_arguments")
    @classmethod
    def _refuse_options(cls, arguments: list[str]) -> list[str]:
        refuse_options(arguments, "teacher.extra_arguments")
        return arguments

    @model_validator(mode="after")
    def _check(self) -> "Teacher":
        if self.top_k is None:
            if self.top_k_coefficient != 1.0:
                raise ValueError(
                    f"teacher.top_k_coefficient is {self.top_k_coefficient:g} but teacher.top_k is not set: "
                    "there is no forward KL that it could weigh. Set teacher.top_k, such as 16, or leave it "
                    "out."
                )
            if not self.coefficient:
                raise ValueError(
                    "teacher.coefficient is 0 but teacher.top_k is not set: the teacher would teach nothing. "
                    "Set a coefficient above 0, or teacher.top_k, such as 16."
                )
        if self.path is not None:
            return self
        for key in Teacher.model_fields:
            if getattr(self, key) != Teacher.model_fields[key].default:
                raise ValueError(
                    f"teacher.{key} is set but teacher.path is not. Set teacher.path to the teacher's folder "
                    "or hub id; with teacher.url its tokenizer is read there."
                )
        return self

    def is_on(self) -> bool:
        return self.path is not None

    def is_alone(self) -> bool:
        """Whether nothing but the teacher gives advantages."""
        return self.is_on() and not self.with_reward

    def num_started(self) -> int:
        """Servers that the run starts for it."""
        return int(self.is_on() and self.url is None)
