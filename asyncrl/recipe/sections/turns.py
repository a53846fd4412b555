"""The sections `turns` and `agent`."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from asyncrl.recipe.sections.section import (
    CHANGEABLE,
    OBJECT,
    PATH_OR_HUB_ID,
    TASK_ROWS,
    Count,
    Positive,
    PositiveFloat,
    Section,
)
from asyncrl.recipe.terms import Group


class Named(Group):
    """An environment or a tool: a name, or a mapping with options."""

    name: Annotated[str, OBJECT]
    """Built in, an entry point, "package.module:Name" or "./file.py:Name"."""
    options: Annotated[dict[str, Any], OBJECT] = {}
    """Settings of the environment or tool."""


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

    environment: Annotated[Named | None, OBJECT, TASK_ROWS] = None
    """Answers each turn; rows may name their own in the column "environment". A name, "./file.py:Name" or
    "package.module:Name", or a mapping with name and options. Default: none."""
    tools: Annotated[list[Named], OBJECT, TASK_ROWS] = []
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


RoleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class Agent(Section):
    """Any program as the agent of a trajectory: it talks to the model by an endpoint that speaks OpenAI's
    and Anthropic's protocols, and what the model says is recorded and trained. Its last reply is what the
    row's verifier judges."""

    command: Annotated[Annotated[list[str], Field(min_length=1)] | None, TASK_ROWS] = None
    """Program and arguments, such as [python, agent.py]; started once per trajectory, in a scratch folder.
    Arguments that are files in the recipe's folder are found there. Exit code 0 ends the trajectory well. It
    finds OPENAI_BASE_URL, OPENAI_API_KEY (of its trajectory alone), the same for ANTHROPIC, and ASYNCRL_TASK,
    a file with the task as JSON."""
    function: Annotated[str | None, OBJECT, TASK_ROWS] = None
    """An async function in place of a command, "./agent.py:run" or "package.module:run": it is awaited with
    an AgentTask, in a process of its own unless functions_per_process says more."""
    functions_per_process: Positive = 1
    """Trajectories of a function that share a process; with 1 each has its own. In a shared one, thousands
    wait for the model at little memory; they share the folder, globals, memory_mib and a CPU. Where one
    blocks the event loop, crashes the process or uses up its memory, all of it are started again, each in a
    process of its own, and their calls are answered from the record."""
    starts_warm: bool = True
    """Whether a Python program (a script, -m with a module, a function of its own process) is forked from a
    process that has imported its libraries, in place of a new interpreter: each trajectory costs milliseconds
    instead of the time of its imports. Code of the program's own files runs in its own process as before.
    false where a library does not bear a fork. Variables that libraries read as they are imported belong into
    environment."""
    columns: list[str] = []
    """Columns of the row that the task's file holds besides the prompt. That of the answer is not for an
    agent that gives the model a shell or files to read."""
    environment: dict[str, str] = {}
    """Variables for the program, besides PATH, HOME, LANG and the like. It sees no others of the run's."""
    timeout_seconds: PositiveFloat = 300.0
    """Time of the program itself, without the time when it waits for the model. Over it, the trajectory is
    wrong."""
    memory_mib: Positive = 2048
    """Memory of each process of the program (RLIMIT_DATA)."""
    max_agents: Positive = 64
    """Programs at once; other trajectories wait. Evaluations have as many places of their own."""
    max_calls: Positive = 64
    """Calls of one trajectory; further ones are refused, and the trajectory ends as cut off."""
    roles: list[RoleName] = []
    """Roles that the model plays in one trajectory, such as [proposer, checker]: several agents in one
    episode. Each call names the role that speaks in its field `model`, and a conversation is one role's.
    Needs may_give_verdict: the verdict is a score in [0, 1] for each role that spoke, such as {"proposer": 1,
    "checker": 0}. A role's tokens get its own advantage, within its own group: the trajectories of the group
    in which it spoke."""
    opponents: Annotated[dict[RoleName, str], PATH_OR_HUB_ID] = {}
    """Frozen models that the policy plays with or against, by the name that calls give in `model`, such as
    {rival: runs/roles@40}: a Hugging Face folder, a hub id, or an ended run as model.path names one, with the
    policy's tokenizer. Each has a server of its own and samples as the policy does. What it says is context
    and never trained."""
    may_give_verdict: bool = False
    """Whether the agent gives the score in place of the row's verifier: a number in [0, 1] in the file that
    ASYNCRL_VERDICT names, or the function's result; with roles, a JSON object of them."""
    verdict: Literal["trajectory", "branch"] = "trajectory"
    """Verdicts of a trajectory that has several branches (conversations).
    trajectory: the last call's reply, for all of its tokens.
    branch: the last reply of each branch, for that branch's tokens. A trajectory's reward in its group is the
    mean of those of its branches; one that is a fault makes the trajectory one."""
    num_fault_retries: Count = 1
    """Further starts of a program that crashed, before its trajectory is a fault. What it asked before is
    answered from the record."""
    max_faults_in_a_row: Annotated[Positive, CHANGEABLE] = 24
    """Starts of the program that ended badly without one that ended well between them, after which the run
    ends with what it printed last, if they span at least 20 seconds."""

    def is_on(self) -> bool:
        """Whether agents make the trajectories."""
        return self.command is not None or self.function is not None

    @model_validator(mode="after")
    def _check(self) -> "Agent":
        if self.command is not None and self.function is not None:
            raise ValueError(
                f"agent.command is {self.command} and agent.function is {self.function}: expected one of the "
                f"two. Remove the other."
            )
        if self.roles and not self.is_on():
            raise ValueError(
                f"agent.roles is {self.roles}, but neither agent.command nor agent.function is set. Set one "
                f"of the two, or remove agent.roles."
            )
        if self.opponents and not self.is_on():
            raise ValueError(
                f"agent.opponents has {', '.join(self.opponents)}, but neither agent.command nor "
                f"agent.function is set: nothing would call them. Set one of the two, or remove "
                f"agent.opponents."
            )
        if both := sorted(set(self.roles) & set(self.opponents)):
            raise ValueError(
                f"{both[0]} is in agent.roles and in agent.opponents: a call that names it could be the "
                f"policy's or the frozen model's. Rename one of the two."
            )
        if len(set(self.roles)) < len(self.roles):
            raise ValueError(f"agent.roles is {self.roles}, which has a role twice. Expected each once.")
        if self.roles and not self.may_give_verdict:
            raise ValueError(
                f"agent.roles is {self.roles} but agent.may_give_verdict is false: a verifier reads one "
                f"reply, and knows no roles. Set agent.may_give_verdict to true, and let the agent give the "
                f"score of each role."
            )
        if self.verdict == "branch" and not self.is_on():
            raise ValueError(
                "agent.verdict is branch, but neither agent.command nor agent.function is set. Set one of "
                "the two, or remove agent.verdict."
            )
        if self.verdict == "branch" and self.may_give_verdict:
            raise ValueError(
                "agent.verdict is branch, but agent.may_give_verdict is true: an agent gives one score, for "
                "the whole trajectory. Set agent.verdict to trajectory, or agent.may_give_verdict to false."
            )
        if self.functions_per_process > 1 and self.function is None:
            raise ValueError(
                f"agent.functions_per_process is {self.functions_per_process}, but there is no "
                f"agent.function: a command has a process of its own. Expected 1."
            )
        return self
