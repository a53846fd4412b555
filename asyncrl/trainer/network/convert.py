"""Names and layouts: Hugging Face <-> Megatron-core chunks of any layout, both directions bit-equal.

Megatron interleaves q, k, v by key-value group in one matrix and stacks gate over up; everything else only
changes its name. What a layer's tensors are called is in asyncrl/model/families. Tensors pass one at a time:
no rank ever holds more of the whole model than one of Megatron's parameters or of a folder's tensors.
Adapters are exported within the matrices that they change, or alone, under the names of peft.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from asyncrl.model.families import FAMILIES
from asyncrl.model.families.family import FUSED
from asyncrl.trainer.network.adapted_layers import OWNER, is_of_adapter, published
from asyncrl.trainer.network.delta_net import group_channels, part_channels
from asyncrl.trainer.network.experts import UPDATED, fetch_part, is_of_expert, router_biases, stack_parts
from asyncrl.trainer.network.model import Policy, PolicyModel

OUTER = {
    "embedding.word_embeddings.weight": ("model.embed_tokens.weight",),
    "decoder.final_layernorm.weight": ("model.norm.weight",),
    "output_layer.weight": ("lm_head.weight",),
}
VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
CONVOLUTION = ".conv1d.weight"
ADAPTER = r".*\.adapters\.(?P<target>\w+)\.(?P<matrix>[ab])"
PEFT = "base_model.model."
# The local spec numbers the networks, Transformer Engine's grouped one the weights.
EXPERT_NAMES = (
    r"mlp\.experts\.local_experts\.(?P<expert>\d+)\.linear_fc(?P<part>[12])\.(?P<kind>weight|bias)",
    r"mlp\.experts\.linear_fc(?P<part>[12])\.(?P<kind>weight|bias)(?P<expert>\d+)",
)


@dataclass(frozen=True, slots=True)
class ParameterEntry:
    """A parameter that some rank owns, as every rank knows it."""

    names: tuple[str, ...]
    """Hugging Face's, of its parts."""
    shape: tuple[int, ...]
    """Shape of the whole parameter, over all tensor ranks."""
    owner: int
    """First of the ranks that together hold one copy of it."""
    stage: int
    """Pipeline stage."""
    dtype: torch.dtype
    is_fixed: bool
    """Whether no step changes it: what is frozen, and under adapters what has none."""


@dataclass(frozen=True, slots=True)
class ExportedTensor:
    """One of the tensors that an export will give."""

    name: str
    """Hugging Face's."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    stage: int
    """Pipeline stage."""
    sender: int
    """The first data-parallel rank of that stage."""
    is_fixed: bool
    """Whether no step changes it."""


@torch.no_grad()
def load_weights(model: Policy | PolicyModel, fetch: Callable[[str], Tensor]) -> None:
    """Fills this rank's chunks in place, all but adapters; `fetch` gives one tensor by its Hugging Face
    name."""
    for chunk in _chunks(model):
        for name, parameter in (*chunk.named_parameters(), *router_biases(chunk)):
            if is_of_adapter(name):
                continue
            names = huggingface_names(chunk, name)
            # With tied embeddings the last of several stages has a copy of the first one's.
            if names == OUTER["output_layer.weight"] and chunk.share_embeddings_and_output_weights:
                names = OUTER["embedding.word_embeddings.weight"]
            tensors = [
                fetch_part(fetch, part).to(device=parameter.device, dtype=parameter.dtype) for part in names
            ]
            parts = _separate(chunk.config, tensors[0], num_parts(names)) if len(tensors) == 1 else tensors
            merged = merge_parts(chunk.config, parts)
            if names[0].endswith(CONVOLUTION):
                merged = group_channels(chunk.shape.delta_net, merged)
            parameter.copy_(_own_part(parameter, merged, names))


@torch.no_grad()
def load_adapters(model: Policy | PolicyModel, make: Callable[[str, tuple[int, int]], Tensor]) -> None:
    """Fills this rank's adapters in place; `make` gives a whole matrix by its name for peft and its shape."""
    for chunk in _chunks(model):
        for (name,), parameter in _exported_parameters(chunk, of_adapters=True):
            rows, columns = _whole_shape(parameter, (name,))
            parameter.copy_(_own_part(parameter, make(name, (rows, columns)).to(parameter.device), (name,)))


@torch.no_grad()
def export_weights(
    model: Policy | PolicyModel,
    read: Callable[[torch.nn.Parameter], Tensor] = published,
    *,
    of_adapters: bool = False,
    with_fixed: bool = True,
) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, contiguous tensor) of the whole model on the first rank, nothing on the others.

    All ranks call and exhaust it; the order is the same for every layout. `read` may pick gradients instead.
    Matrices with adapters are what they are with them. `of_adapters`: the adapters' matrices alone, under
    peft's names. Not `with_fixed`: without the tensors that no step changes. Where `read` picks something
    else than weights, tensors without a gradient are left out.
    """
    own, entries = _survey(model, read, of_adapters=of_adapters)
    wanted = (entry for entry in entries if with_fixed or not entry.is_fixed)
    parts = (part for entry in wanted for part in _export(model, read, entry, own, receiver=0))
    yield from stack_parts(parts, _chunks(model)[0].shape.num_experts)


@torch.no_grad()
def export_stages(model: Policy | PolicyModel, *, with_fixed: bool = True) -> Iterator[tuple[str, Tensor]]:
    """As `export_weights`, but each stage's tensors on the first data-parallel rank of that stage, in the
    order of `exported_tensors`; without those that no step changes, if they are not wanted."""
    own, entries = _survey(model, published)
    senders = _senders(entries)
    wanted = (entry for entry in sorted(entries, key=_sending_order) if with_fixed or not entry.is_fixed)
    parts = (
        part
        for entry in wanted
        for part in _export(model, published, entry, own, receiver=senders[entry.stage])
    )
    yield from stack_parts(parts, _chunks(model)[0].shape.num_experts)


@torch.no_grad()
def exported_tensors(model: Policy | PolicyModel) -> list[ExportedTensor]:
    """Tensors that `export_stages` gives on all ranks together, stage by stage. A call of every rank."""
    _, entries = _survey(model, published)
    senders = _senders(entries)
    return [
        ExportedTensor(
            name, tuple(part.shape), entry.dtype, entry.stage, senders[entry.stage], entry.is_fixed
        )
        for entry in sorted(entries, key=_sending_order)
        for name, part in _whole(model, entry)
    ]


def _survey(
    model: Policy | PolicyModel, read: Callable[[torch.nn.Parameter], Tensor], *, of_adapters: bool = False
) -> tuple[dict[tuple[str, ...], torch.nn.Parameter], list[ParameterEntry]]:
    """This rank's parameters by their names, and the entries of all ranks in the order of an export."""
    own = {
        names: parameter
        for chunk in _chunks(model)
        for names, parameter in _exported_parameters(chunk, of_adapters=of_adapters)
        if read is published or parameter.requires_grad
    }
    entries = {entry.names: entry for entry in _gather([_entry(*item, read) for item in own.items()])}
    return own, [entries[names] for names in sorted(entries, key=_natural)]


def _sending_order(entry: ParameterEntry) -> tuple[int, bool]:
    return entry.stage, entry.is_fixed


def _senders(entries: list[ParameterEntry]) -> dict[int, int]:
    """Stage -> its first rank. Ranks are numbered stage by stage."""
    return {entry.stage: min(e.owner for e in entries if e.stage == entry.stage) for entry in entries}


def _export(
    model: Policy | PolicyModel,
    read: Callable[[torch.nn.Parameter], Tensor],
    entry: ParameterEntry,
    own: dict[tuple[str, ...], torch.nn.Parameter],
    *,
    receiver: int,
) -> Iterator[tuple[str, Tensor]]:
    """The parts of one parameter on rank `receiver`, nothing on the others."""
    parameter = own.get(entry.names)
    tensor = None
    if parameter is not None and _group_owner(entry.names) == entry.owner:
        tensor = _gather_parts(parameter, read(parameter), entry.names)
    if (tensor := _bring(tensor, entry, own, receiver=receiver)) is not None:
        yield from _parts(model, entry, tensor)


def _parts(
    model: Policy | PolicyModel, entry: ParameterEntry, tensor: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """The Hugging Face tensors of a whole parameter."""
    chunk = _chunks(model)[0]
    whole = tensor[: chunk.shape.vocab_size] if entry.names[0] in VOCABULARY else tensor
    if entry.names[0].endswith(CONVOLUTION):
        whole = part_channels(chunk.shape.delta_net, whole)
    parts = split_parts(chunk.config, whole, num_parts(entry.names))
    yield from zip(entry.names, parts if len(parts) == len(entry.names) else [torch.cat(parts)], strict=True)


def _whole(model: Policy | PolicyModel, entry: ParameterEntry) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a folder that end with this parameter, without values."""
    num_experts = _chunks(model)[0].shape.num_experts
    # Of stacked experts the last one stands for all.
    return stack_parts(_parts(model, entry, torch.empty(entry.shape, device="meta")), num_experts)


def huggingface_names(chunk: PolicyModel, name: str) -> tuple[str, ...]:
    """The Hugging Face tensors, or slices of stacked experts, that make up `chunk`'s parameter `name`."""
    if name in OUTER:
        return OUTER[name]
    match = re.fullmatch(r"decoder\.layers\.(\d+)\.(.*)", name)
    assert match is not None, f"no Hugging Face name for {name}"
    prefix = f"model.layers.{chunk.decoder.layers[int(match[1])].layer_number - 1}."
    if adapter := re.fullmatch(ADAPTER, name):
        return (_peft_name(chunk, name, adapter),)
    names = FAMILIES[chunk.shape.architecture].layer_names
    for pattern in EXPERT_NAMES:
        if expert := re.fullmatch(pattern, match[2]):
            per_rank = chunk.config.num_moe_experts // parallel_state.get_expert_model_parallel_world_size()
            number = int(expert["expert"]) + parallel_state.get_expert_model_parallel_rank() * per_rank
            parts = names[f"mlp.experts.linear_fc{expert['part']}.{expert['kind']}"]
            return tuple(prefix + part.format(number) for part in parts)
    return tuple(prefix + part for part in names[match[2]])


def num_parts(names: tuple[str, ...]) -> int:
    """Matrices that a parameter of these names is made of."""
    return FUSED.get(names[0].split(".")[-2], len(names))


def _peft_name(chunk: PolicyModel, name: str, adapter: re.Match[str]) -> str:
    """peft's name of a matrix of an adapter: that of the weight, with the matrix in its place."""
    weight = name.partition(".adapters.")[0] + ".weight"
    target = next(x for x in huggingface_names(chunk, weight) if x.endswith(f".{adapter['target']}.weight"))
    return f"{PEFT}{target.removesuffix('.weight')}.lora_{adapter['matrix'].upper()}.weight"


def _chunks(model: Policy | PolicyModel) -> list[PolicyModel]:
    return list(model) if isinstance(model, Policy) else [model]


def _exported_parameters(
    chunk: PolicyModel, *, of_adapters: bool = False
) -> Iterator[tuple[tuple[str, ...], torch.nn.Parameter]]:
    for name, parameter in (*chunk.named_parameters(), *router_biases(chunk)):
        if is_of_adapter(name) is not of_adapters:
            continue
        names = huggingface_names(chunk, name)
        if not (names == OUTER["output_layer.weight"] and chunk.share_embeddings_and_output_weights):
            yield names, parameter


def _entry(
    names: tuple[str, ...], parameter: torch.nn.Parameter, read: Callable[[torch.nn.Parameter], Tensor]
) -> ParameterEntry:
    stage: int = parallel_state.get_pipeline_model_parallel_rank()
    # Merging an adapter does not change the type of a matrix.
    dtype = parameter.dtype if read is published else read(parameter).dtype
    is_changed = parameter.requires_grad or getattr(parameter, UPDATED, False)
    is_fixed = not is_changed and getattr(parameter, OWNER, None) is None
    return ParameterEntry(names, _whole_shape(parameter, names), _group_owner(names), stage, dtype, is_fixed)


def _whole_shape(parameter: torch.nn.Parameter, names: tuple[str, ...]) -> tuple[int, ...]:
    """Over all tensor ranks."""
    shape = list(parameter.shape)
    if _is_shared(parameter, names):
        shape[_partition_dim(parameter)] *= parallel_state.get_tensor_model_parallel_world_size()
    return tuple(shape)


def _gather(entries: list[ParameterEntry]) -> list[ParameterEntry]:
    """Entries of all ranks; where several groups of ranks hold copies, the first rank's stays."""
    if dist.get_world_size() == 1:
        return entries
    box: list[list[ParameterEntry]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(box, entries)
    return [entry for each in reversed(box) for entry in each]


def _is_shared(parameter: torch.nn.Parameter, names: tuple[str, ...]) -> bool:
    """Whether tensor ranks hold a part each. Experts are dealt whole."""
    if parallel_state.get_tensor_model_parallel_world_size() == 1 or is_of_expert(names[0]):
        return False
    return getattr(parameter, "tensor_model_parallel", False)


def _partition_dim(parameter: torch.nn.Parameter) -> int:
    """The dimension along which Megatron cut a parameter for the tensor ranks."""
    dimension: int = parameter.partition_dim  # type: ignore[attr-defined]
    return dimension


def _group_owner(names: tuple[str, ...]) -> int:
    """The first of the ranks that hold a copy of an own parameter together with this one."""
    if is_of_expert(names[0]):
        return dist.get_rank()
    return dist.get_global_rank(parallel_state.get_tensor_model_parallel_group(), 0)


def _own_part(parameter: torch.nn.Parameter, whole: Tensor, names: tuple[str, ...]) -> Tensor:
    """This tensor rank's part of a whole parameter, with rows of zeros after the vocabulary."""
    size: int = parallel_state.get_tensor_model_parallel_world_size()
    rank: int = parallel_state.get_tensor_model_parallel_rank()
    if not _is_shared(parameter, names):
        return whole
    if names[0] in VOCABULARY:
        whole = torch.nn.functional.pad(whole, (0, 0, 0, size * len(parameter) - len(whole)))
    if num_parts(names) == 2:
        return torch.cat([half.chunk(size)[rank] for half in whole.chunk(2)])
    return whole.chunk(size, _partition_dim(parameter))[rank]


def _gather_parts(parameter: torch.nn.Parameter, part: Tensor, names: tuple[str, ...]) -> Tensor:
    """The whole of a parameter from all tensor ranks."""
    if not _is_shared(parameter, names):
        return part
    group = parallel_state.get_tensor_model_parallel_group()
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part.contiguous(), group=group)
    if num_parts(names) == 2:
        return torch.cat([torch.cat(halves) for halves in zip(*(p.chunk(2) for p in parts), strict=True)])
    return torch.cat(parts, _partition_dim(parameter))


def _bring(
    tensor: Tensor | None,
    entry: ParameterEntry,
    own: dict[tuple[str, ...], torch.nn.Parameter],
    *,
    receiver: int,
) -> Tensor | None:
    """The owner's tensor on rank `receiver`, None elsewhere."""
    rank = dist.get_rank()
    if entry.owner == receiver:
        return tensor if rank == receiver else None
    if rank == entry.owner:
        assert tensor is not None, f"rank {rank} owns {entry.names}"
        dist.send(tensor.contiguous(), dst=receiver)
    if rank != receiver:
        return None
    # Every rank holds some parameter on the device that all are on.
    device = next(iter(own.values())).device
    received = torch.empty(entry.shape, dtype=entry.dtype, device=device)
    dist.recv(received, src=entry.owner)
    return received


def _natural(names: Iterable[str]) -> list[tuple[bool, int, str]]:
    """Sorts layer 10 after layer 9."""
    return [
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in next(iter(names)).split(".")
    ]


def _separate(config: TransformerConfig, tensor: Tensor, number: int) -> list[Tensor]:
    """The parts of a tensor that Hugging Face keeps in one, as others keep them."""
    if number == 3:
        of_keys = config.num_query_groups * config.kv_channels
        return list(tensor.split([len(tensor) - 2 * of_keys, of_keys, of_keys]))
    return list(tensor.chunk(number))


def merge_parts(config: TransformerConfig, parts: list[Tensor]) -> Tensor:
    if len(parts) == 3:
        groups = (part.unflatten(0, (config.num_query_groups, -1)) for part in parts)
        return torch.cat(list(groups), dim=1).flatten(0, 1)
    return torch.cat(parts)


def split_parts(config: TransformerConfig, tensor: Tensor, num_parts: int) -> list[Tensor]:
    if num_parts == 3:
        size = config.kv_channels
        groups = tensor.unflatten(0, (config.num_query_groups, -1))
        # Queries are what keys and values leave: with output gates twice as many.
        groups = groups.split([groups.shape[1] - 2 * size, size, size], dim=1)
        return [part.flatten(0, 1).contiguous() for part in groups]
    return [part.contiguous() for part in tensor.chunk(num_parts)]
