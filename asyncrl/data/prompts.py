"""From a row's question to what the model is asked: prompt templates by name, or the user's own jinja.

A text template sees `question`, `system` and `examples`, and makes the whole prompt, special tokens written
out; "chat" makes messages, which the model's own chat template renders. What stands behind the last marker of
the assistant is prefilled: the model continues it, and its response begins after it.

| name | what the model is asked | source |
|---|---|---|
| plain | the question, nothing else | |
| chat | `system`, `examples` as earlier turns, the question, by the model's chat template | |
| few_shot | `examples` as question and answer, then the question | |
| r1 | a conversation in text, "<think>" prefilled, the answer in <answer> | DeepSeek-R1, arxiv.org/abs/2501.12948, table 1 |
| r1_boxed | the same, with the answer in \\boxed{} inside <answer> | Open-Reasoner-Zero, arxiv.org/abs/2503.24290 |
| qwen_boxed | ChatML, "reason step by step" behind the question | SimpleRL-Zoo, arxiv.org/abs/2503.18892 |
| qwen_math | ChatML, "reason step by step" as the system prompt | Dr. GRPO, arxiv.org/abs/2503.20783 |
| answer_line | the question between DAPO's instructions, the answer on an "Answer:" line | DAPO, arxiv.org/abs/2503.14476 |
"""
# The table reads best unbroken.
# ruff: noqa: E501

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import StrictUndefined
from jinja2.exceptions import TemplateError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from asyncrl.errors import InputError

Message = Mapping[str, Any]
Prompt = str | list[dict[str, Any]]
CHAT = "chat"

_R1 = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The "
    "Assistant first thinks about the reasoning process in the mind and then provides the User with the "
    "answer. The reasoning process is enclosed within <think> </think> and answer is enclosed within <answer> "
    "</answer> tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here "
    "</answer>.%s\nUser: {{ question }}\nAssistant: <think>"
)
_BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
TEMPLATES = {
    "plain": "{{ question }}",
    "few_shot": (
        "{% for example in examples %}Question: {{ example.question }}\nAnswer: {{ example.answer }}\n\n"
        "{% endfor %}Question: {{ question }}\nAnswer:"
    ),
    "r1": _R1 % "",
    "r1_boxed": _R1
    % (
        " The final answer must be enclosed in \\boxed{} inside of the answer tags, i.e., <answer> "
        "\\boxed{answer here} </answer>."
    ),
    "qwen_boxed": (
        "<|im_start|>system\n{{ system or 'You are a helpful assistant.' }}<|im_end|>\n<|im_start|>user\n"
        f"{{{{ question }}}}\n{_BOXED}<|im_end|>\n<|im_start|>assistant\n"
    ),
    "qwen_math": (
        f"<|im_start|>system\n{_BOXED}<|im_end|>\n<|im_start|>user\n{{{{ question }}}}<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    "answer_line": (
        "Solve the following math problem step by step. The last line of your response should be of the form "
        "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{{ question }}\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    ),
}
"""Text templates by name."""


def template_title(template: str | None) -> str:
    """Name of prompt.template in a report: its own, or the digest of the user's jinja."""
    if template is None:
        return "none, as the rows are"
    if "{" not in template:
        return template
    return f"own jinja {hashlib.sha256(template.encode()).hexdigest()[:8]}"


def told_title(title: str, arguments: Mapping[str, Any]) -> str:
    """A template's title with the variables that the chat template is told."""
    return ", ".join([title, *(f"{name}={json.dumps(value)}" for name, value in arguments.items())])


class PromptTemplate:
    """`template` is a name or jinja; an `examples` entry has "question" and "answer". Raises InputError."""

    def __init__(
        self,
        template: str,
        *,
        system: str | None = None,
        suffix: str | None = None,
        examples: Sequence[Mapping[str, str]] = (),
    ) -> None:
        if template != CHAT and template not in TEMPLATES and "{" not in template:
            raise InputError(
                f'prompt.template is "{template}", expected {CHAT}, {", ".join(TEMPLATES)}, or jinja that '
                f"holds {{{{ question }}}}."
            )
        self._system, self._examples, self._is_chat = system, list(examples), template == CHAT
        self._suffix = suffix or ""
        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        source = TEMPLATES.get(template, template)
        try:
            used = find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise InputError(f"prompt.template cannot be read as jinja: {error}") from error
        # jinja keeps them as a ChainMap, of which every rendering makes a dict: far slower than copying one.
        self._template.globals = dict(self._template.globals)
        for name, given in (("system", system is not None), ("examples", bool(examples))):
            if given and name not in used and not self._is_chat:
                raise InputError(
                    f"prompt.{name} is set, but prompt.template {template[:80]!r} does not use it. Leave it out, "
                    f"or use a template that does, such as {CHAT}."
                )
        if not self._is_chat and "question-of-a-row" not in self._render("question-of-a-row"):
            raise InputError("prompt.template never writes {{ question }}: every row would ask the same.")

    def __call__(self, prompt: Prompt) -> Prompt:
        """The prompt that a row's `prompt` becomes. Raises InputError for messages that ask no one question."""
        if not self._is_chat:
            return self._render(_question(prompt) + self._suffix)
        messages: list[dict[str, Any]]
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if self._suffix:
            messages[-1] = self._with_suffix(messages[-1])
        opening = [] if self._system is None else [{"role": "system", "content": self._system}]
        if opening and messages[0].get("role") == "system":
            raise InputError("prompt.system is set, but the row has its own system message. Keep one.")
        for example in self._examples:
            opening.append({"role": "user", "content": example["question"]})
            opening.append({"role": "assistant", "content": example["answer"]})
        return [*opening, *messages]

    def _with_suffix(self, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("role") != "user" or not isinstance(message.get("content"), str):
            raise InputError(
                f"prompt.suffix goes behind the question, but the row's last message is one of "
                f"{message.get('role')}. Leave prompt.suffix out."
            )
        return {**message, "content": message["content"] + self._suffix}

    def _render(self, question: str) -> str:
        try:
            return self._template.render(question=question, system=self._system, examples=self._examples)
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise InputError(f"prompt.template cannot be rendered: {error}") from error


def _question(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and prompt[0].get("role") == "user" and isinstance(prompt[0].get("content"), str):
        return str(prompt[0]["content"])
    roles = ", ".join(str(message.get("role")) for message in prompt)
    raise InputError(
        f"prompt.template makes a text of one question, but the row has messages of {roles}. Use template "
        f"{CHAT}, or leave prompt.template out."
    )
