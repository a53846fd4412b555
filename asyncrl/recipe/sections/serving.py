"""The sections `serving`, `placement` and `cluster`."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from asyncrl.recipe.sections.section import Count, Positive, PositiveFloat, Section
from asyncrl.recipe.server_options import refuse_options
from asyncrl.system.machine import outward_address

CPU_CACHE_TOKENS = 32768
"""Default cache of a server on a CPU."""


class Serving(Section):
    """The rollout servers (SGLang)."""

    num_servers: Count = 1
    """Local servers to start; ignored if `servers` is set. 0 in stages that learn from rows and generate
    nothing."""
    servers: list[str] = []
    """URLs of running SGLang 0.5.23 servers, e.g. on other machines. SGLANG_RETURN_ORIGINAL_LOGPROB must not
    be set there: log-probs would ignore the temperature, and only the mismatch metrics would show it."""
    api_key_variable: str | None = None
    """Environment variable that holds the key (SGLang's --api-key) of the servers that are not processes of
    the run. Local servers get the run's own token."""
    threads_per_server: Positive = 1
    """CPU threads per local server. With more threads than cores, servers run 10-20 times slower."""
    tensor_parallel_size: Positive = 1
    """Tensor-parallel ranks (GPUs) per local server. Each compares whole tensors with the trainer's,
    before it cuts its part."""
    attention_data_parallel_size: Positive = 1
    """Groups that the tensor-parallel ranks of a server form for attention, each for requests of its own; the
    layers behind attention stay divided over all ranks. For models with fewer KV heads than ranks, whose
    ranks would otherwise keep the same keys and values. Divides tensor_parallel_size; max_total_tokens is
    then per group."""
    expert_parallel_size: Positive = 1
    """Ranks that the experts of a mixture are dealt to, each whole: 1, where each rank has a slice of all, or
    tensor_parallel_size. Use it where slices would be too narrow for fast products."""
    quantization: Literal["fp8"] | None = None
    """Type that local servers on GPUs compute their layers in; the trainer keeps model.dtype, so the
    log-probs of the two differ more (column mismatch_kl), which an importance weight corrects.
    fp8: weights in FP8 (E4M3) with a scale per row, quantised again from each version that arrives;
    activations with a scale per token. Halves their memory. Qwen2 and Qwen3 without experts, GPUs of
    compute capability 8.9 or newer."""
    kv_cache_dtype: Literal["fp8_e4m3", "fp8_e5m2"] | None = None
    """Type of the keys and values that local servers on GPUs keep. Default: model.dtype.
    fp8_e4m3, fp8_e5m2: one byte, so that a server keeps twice as many tokens; without scales, and
    log-probs differ more from the trainer's. E4M3 has the finer steps, E5M2 the wider range."""
    max_total_tokens: Positive | None = None
    """KV cache size per server, in tokens. Default: on a GPU what the engine finds free; on a CPU 32768,
    because the engine would take most of the machine's memory."""
    max_running_requests: Positive = 128
    """Requests decoded at once per server."""
    first_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the first local server; the others count up. 0: free ports."""
    start_timeout_seconds: PositiveFloat = 600.0
    """Time limit for a server to start. On a GPU its first start compiles kernels, for minutes."""
    request_timeout_seconds: PositiveFloat = 300.0
    """Longest silence of a server before it is restarted: no token on any of its streams and no answer of
    its scheduler. A request that waits for others in its server is not silent."""
    hedge_seconds: PositiveFloat | None = None
    """A group with a trajectory that got no token for this long is aborted, and resumes from its prefixes on
    another server with room. Set it well above the time of a weight update.
    Default: only request_timeout_seconds applies."""
    weight_transport: Literal["disk", "distributed"] = "disk"
    """How new weights reach running servers. Servers that join later always read the folder.
    disk: a folder that trainer and servers see at the same path; with placement.colocated it is in the
    trainer's memory until it is on the disk.
    distributed: a torch.distributed broadcast (NCCL on GPUs, gloo on CPUs) from the model's memory to all
    servers at once; the folder is written in the background."""
    weight_encoding: Literal["auto", "full", "delta"] = "auto"
    """Weights that servers with the version before read, with the transport `disk`.
    auto: without cluster.shared_disk, where servers fetch weights over a network, the words that changed, if
    at most a quarter did and the model is not float32; all weights else, in every 20th version and after a
    restart of the trainer. With a shared disk all weights: what is read from there is too fast for the time
    that deltas take. A server that does not hold the version before reads all weights.
    full: all weights.
    delta: the words that changed, however many; choose it for a shared disk that is slow. Trainer and servers
    keep a copy of the weights each, the trainer in the CPU's memory, servers under TMPDIR on their host."""
    weight_bucket_bytes: Positive | None = None
    """Weights that one broadcast of `distributed` carries; a larger tensor goes alone. The next bucket is
    gathered meanwhile, so that the trainer's GPUs hold two. Servers hold one next to their weights.
    Default: 1 GiB on GPUs, 64 MiB on CPUs, where a buffer that stays in use costs less than a fresh one."""
    extra_arguments: list[str] = []
    """Options appended to the command line of local servers: those of SGLang that decide about memory,
    scheduling, kernels, CUDA graphs and logs. Others, which could change tokens, log-probs, versions or
    weights, are refused with the reason; asyncrl/recipe/server_options.yaml lists both."""

    @field_validator("extra_arguments")
    @classmethod
    def _refuse_options(cls, arguments: list[str]) -> list[str]:
        refuse_options(arguments)
        return arguments

    @model_validator(mode="after")
    def _check(self) -> "Serving":
        if self.weight_encoding == "delta" and self.weight_transport != "disk":
            raise ValueError(
                f"serving.weight_encoding is delta but serving.weight_transport is {self.weight_transport}, "
                f"which sends whole tensors. Set serving.weight_transport to disk, or weight_encoding "
                f"to auto."
            )
        return self

    def cache_tokens(self, *, has_gpu: bool) -> int | None:
        """Cache tokens of each local server; None where the engine decides."""
        return self.max_total_tokens or (None if has_gpu else CPU_CACHE_TOKENS)

    def sends_deltas(self, dtype: str, *, shared_disk: bool) -> bool:
        """Whether versions of a model of this type may go as deltas. `shared_disk` is cluster.shared_disk."""
        is_worth_it = self.weight_encoding == "auto" and dtype != "float32" and not shared_disk
        return (self.weight_encoding == "delta" or is_worth_it) and self.weight_transport == "disk"

    def fleet_size(self) -> int:
        """Rollout servers of the run, wherever they run."""
        return len(self.servers) or self.num_servers

    def num_started(self) -> int:
        """Rollout servers that the run starts itself."""
        return 0 if self.servers else self.num_servers


ANYWHERE = "0.0.0.0"
LOOPBACK = "127.0.0.1"


class Cluster(Section):
    """Where the processes of a run are, and how they reach each other."""

    backend: Literal["local", "ray"] = "local"
    """local: all processes on this machine, except for serving.servers.
    ray: on the nodes of a Ray cluster. A server's GPUs are on one node, trainer ranks as close together as
    they can be; what a lost node had starts on another one. Needs `make setup RAY=1`."""
    address: str = "auto"
    """Address of the Ray cluster. auto: the one that RAY_ADDRESS names, or that runs here. local: a new one
    on this machine, for this run. Or host:port of its head."""
    bind_address: str = LOOPBACK
    """Address that the controller's queue and the local servers listen on; with Ray the default is the node's
    address. 0.0.0.0: every network of the machine. Requests need the run's token, but nothing is encrypted:
    use a network that you trust."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the controller, so that `asyncrl serve` finds it from elsewhere. 0: any that is free."""
    advertised_address: str | None = None
    """Name or address under which the other processes reach this machine.
    Default: bind_address, or for 0.0.0.0 the machine's address on the way to other networks."""
    shared_disk: bool = True
    """Whether every process sees the run folder and the base model under the same paths. false: servers fetch
    what they need of both over HTTP; a server that was started elsewhere needs asyncrl next to SGLang. With
    Ray all trainer ranks are on one node, and the controller copies each checkpoint from there."""

    open_metrics: bool = False
    """Whether GET /metrics of the controller, for Prometheus, answers without the run's token. It says how
    the run does and the addresses of its servers; nothing of prompts or responses."""

    def host(self) -> str:
        """Name or address under which others reach what listens on this machine."""
        if self.advertised_address is not None:
            return self.advertised_address
        return outward_address() if self.bind_address == ANYWHERE else self.bind_address


class Placement(Section):
    """Which process gets which GPUs of this machine. Numbers count from 0 in the list of nvidia-smi, or of
    CUDA_VISIBLE_DEVICES if that is set. By default trainer ranks get the first GPUs, servers the next, then
    evaluation servers, the teacher and opponents; each GPU belongs to one process, unless colocated. `asyncrl
    check` prints the map."""

    device: Literal["auto", "gpu", "cpu"] = "auto"
    """Device that servers and trainer compute on.
    auto: GPUs if this machine has any, else the CPU.
    gpu: GPUs; a machine without one is refused.
    cpu: the CPU, even if there are GPUs; they are hidden from every process."""
    colocated: bool = False
    """Trainer ranks and local rollout servers share GPUs, for machines with one or two. Servers sleep while
    the trainer steps: they release weights and KV cache, and wake with the new weights. In-flight
    trajectories then resume from their prefixes, or end before the step with rollout.interrupt drain.
    Evaluation servers, the teacher and opponents keep their own GPUs. Works on a CPU too."""
    trainer: list[Count] = []
    """One GPU per trainer rank, in the order of ranks."""
    servers: list[Count] = []
    """GPUs of the local rollout servers, serving.tensor_parallel_size each; with `colocated` some of the
    trainer's, by default the first."""
    evaluation: list[Count] = []
    """GPUs of the evaluation servers (evaluation.num_servers), serving.tensor_parallel_size each."""
    teacher: list[Count] = []
    """GPUs of the run's own teacher, teacher.tensor_parallel_size."""
    opponents: list[Count] = []
    """GPUs of agent.opponents in their order, serving.tensor_parallel_size each."""

    @model_validator(mode="after")
    def _check(self) -> "Placement":
        owners: dict[int, str] = {}
        for key in ("trainer", "servers", "evaluation", "teacher", "opponents"):
            numbers: list[int] = getattr(self, key)
            if numbers and self.device == "cpu":
                raise ValueError(
                    f"placement.{key} is {numbers} but placement.device is cpu. Remove one of the two."
                )
            for number in numbers:
                if owners.get(number) == key:
                    raise ValueError(f"placement.{key} names GPU {number} twice. Name each GPU once.")
                if number in owners and not (self.colocated and key == "servers"):
                    raise ValueError(
                        f"placement.{owners[number]} and placement.{key} both name GPU {number}. Name "
                        f"another GPU in one of the two, or let trainer and rollout servers share with "
                        f"placement.colocated."
                    )
                owners[number] = key
        if self.colocated and self.trainer and not set(self.servers) <= set(self.trainer):
            raise ValueError(
                f"placement.colocated is true, but placement.servers {self.servers} are not all among "
                f"placement.trainer {self.trainer}: a server that shares no GPU would sleep for nothing. "
                f"Name GPUs of the trainer, or set placement.colocated to false."
            )
        return self
