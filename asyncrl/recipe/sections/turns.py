"""The section `turns`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from asyncrl.recipe.markers import CHANGEABLE, OBJECT, TASK_ROWS
from asyncrl.recipe.sections.section import Count, Positive, PositiveFloat, Section


class Named(Section):
    """An environment or a tool: a name, or a mapping with options."""

    name: Annotated[str, OBJECT]
    """Built in, an entry point, "package.module:Name" or "./file.py:Name"."""
    options: Annotated[dict[str, Any], OBJECT] = {}
    """Settings of the environment or tool."""


def _from_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Plugin = Annotated[Named, BeforeValidator(_from_name)]


class Summarize(Section):
    """The model sums up a long context, and continues from its summary."""

    at_tokens: Positive
    """Tokens of the context from which a summary is asked for, once a turn is answered."""
    max_tokens: Positive = 512
    """Sampled tokens of a summary; rollout.max_new_tokens counts them, too."""
    keep_turns: Count = 2
    """Last turns, with their answers, that the next context repeats behind the summary: fewer where prompt,
    summary and turns would fill more than half of at_tokens."""
    request: str = (
        "Your context is nearly full. Sum up what you need to go on: what was asked, what you have found, "
        "what is left to do. Only this summary and the last turns stay."
    )
    """Message of the user that asks the model for a summary."""
    trains: bool = True
    """Whether summaries are trained. false: their advantage is 0, to see what training them is worth; they
    still count in means, and entropy and KL terms act on them."""


class Turns(Section):
    """Environments and tools that answer what the model writes, within one trajectory."""

    environment: Annotated[Plugin | None, OBJECT, TASK_ROWS] = None
    """Answers each turn; rows may name their own in the column "environment". A name, "./file.py:Name" or
    "package.module:Name", or a mapping with name and options. Default: none."""
    tools: Annotated[list[Plugin], OBJECT, TASK_ROWS] = []
    """Tools that the model may call: python, calculator, "./file.py:function", or mappings with name and
    options. A turn without a call ends the trajectory, unless an environment answers it."""
    call_format: Annotated[Literal["auto", "hermes", "llama", "fenced", "tags"], TASK_ROWS] = "auto"
    """How the model writes a call.
    auto: hermes or llama, by the chat template.
    hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Qwen2.5, Qwen3).
    llama: {"name": ..., "parameters": {...}} as the whole turn (Llama 3).
    fenced: the last ```python block of a turn, for the tool python.
    tags: <python>...</python>, a tool's tag around its only argument, in the middle of the text; the result
    follows in the same message as <output>...</output>. Needs no chat template. A tool's options tag and
    result_tag name others, such as code and interpreter (ReTool), search and information (Search-R1)."""
    max_turns: Positive = 8
    """Turns of a trajectory; after the last one it ends."""
    max_turn_tokens: Positive | None = None
    """Sampled tokens of one turn. Default: as many as rollout.max_new_tokens leaves, which counts the sampled
    tokens of the whole trajectory."""
    max_observed_tokens: Positive = 512
    """Tokens of one observation. A longer one keeps its head and tail and says that it was cut."""
    summarize: Summarize | None = None
    """When the model sums up its context. Default: never; a context that is full ends the trajectory."""
    timeout_seconds: Annotated[PositiveFloat, CHANGEABLE] = 10.0
    """Time of an environment or tool for one turn."""
    memory_mib: Annotated[Positive, CHANGEABLE] = 1024
    """Memory of one trajectory's environment and tools."""
    max_tool_seconds: PositiveFloat = 120.0
    """Time of environment and tools for one trajectory."""
    max_processes: Annotated[Positive, CHANGEABLE] = 64
    """Trajectories at once whose environment or tools have a process; others wait for a place."""
    num_fault_retries: Annotated[Count, CHANGEABLE] = 1
    """Retries of a trajectory's environment after a fault, before the trajectory is dropped."""

    max_faults_in_a_row: Annotated[Positive, CHANGEABLE] = 24
    """Faults of an environment or of tools without an answer between them, retries included, after which the
    run ends with their error, if they span at least 20 seconds. Raise it for a server with longer outages."""

    def is_on(self) -> bool:
        """Whether trajectories may have more than one turn."""
        return self.environment is not None or bool(self.tools)
