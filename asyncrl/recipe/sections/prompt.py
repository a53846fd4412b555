"""The section `prompt`."""

from typing import Any, Literal

from pydantic import model_validator

from asyncrl.recipe.sections.section import Section


class PromptExample(Section):
    """A solved task that is shown in front of the question."""

    question: str
    """As a row would ask it."""
    answer: str
    """Text that the model should write, reasoning included."""


class Prompt(Section):
    """Template that every prompt of the data goes through, and the contexts of later turns. `asyncrl prompt`
    shows the result."""

    template: str | None = None
    """A name, or jinja that writes {{ question }} and may use {{ system }} and `examples`. Default: the rows'
    prompts as they are.
    plain: the question, nothing else.
    chat: system, examples as earlier turns and the question, by the model's chat template.
    few_shot: examples as "Question: ... Answer: ...", then the question.
    r1: a conversation in text, "<think>" prefilled, the answer in <answer> (DeepSeek-R1).
    r1_boxed: the same with the answer in a box inside <answer> (Open-Reasoner-Zero).
    qwen_boxed: ChatML, "reason step by step" behind the question (SimpleRL-Zoo).
    qwen_math: ChatML, "reason step by step" as the system prompt (Dr. GRPO).
    answer_line: DAPO's instructions, the answer on a line "Answer: ...".
    """
    system: str | None = None
    """System prompt, for chat, qwen_boxed and jinja that uses it. Default: none."""
    suffix: str | None = None
    """Text behind the question, with any template, such as "\\n\\nThink step by step." (in double quotes).
    Default: none."""
    examples: list[PromptExample] = []
    """Solved tasks {question, answer}, for few_shot, chat and jinja that uses them."""
    chat_template_kwargs: dict[str, Any] = {}
    """Variables that the model's chat template reads, such as {enable_thinking: false} (Qwen3), in training,
    evaluation, chat and later turns alike. One that the template does not read is refused."""
    history: Literal["as_sampled", "as_rendered"] = "as_sampled"
    """The context of later turns, where environments or tools answer.
    as_sampled: what the model wrote stays as it wrote it, and answers follow.
    as_rendered: what the chat template makes of the conversation so far, as at inference. Where it writes
    earlier turns otherwise (Qwen3: without their thinking), the turn starts a branch of its trajectory."""

    @model_validator(mode="after")
    def _check(self) -> "Prompt":
        unused = [key for key in ("system", "suffix", "examples") if getattr(self, key)]
        if unused and self.template is None:
            raise ValueError(
                f"prompt.{unused[0]} is set but prompt.template is not, which writes it. Set "
                f"prompt.template, such as chat, or remove prompt.{unused[0]}."
            )
        return self

    def writes_text(self) -> bool:
        """Whether prompts become text, whatever rows have."""
        return self.template not in (None, "chat")
