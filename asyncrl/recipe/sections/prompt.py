"""The section `prompt`."""

from asyncrl.recipe.sections.section import Section


class PromptExample(Section):
    """A solved task that is shown in front of the question."""

    question: str
    """As a row would ask it."""
    answer: str
    """Text that the model should write, reasoning included."""


class Prompt(Section):
    """Template that every prompt of the data goes through. `asyncrl prompt` shows the result."""

    template: str
    """A name, or jinja that writes {{ question }} and may use {{ system }} and `examples`.
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
