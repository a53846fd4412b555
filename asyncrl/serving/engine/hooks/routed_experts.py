"""The experts that each token took, with the token: in every streamed chunk, and in few bytes.

SGLang 0.5.23 captures them (--enable-return-routed-experts), and says them once, when a request ends: what a
stream that broke had brought would have none. Here each chunk has the rows of the passes that sampled its
tokens (model/column_bytes.py), and the first one those of the positions in front, from the one on that
the request names. Rows of a prefix that was found in the cache are those of the pass that filled it. The
hooks run in the scheduler and where SGLang listens; on a CPU the buffer of the rows is ordinary memory.
"""

import pybase64
import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.model.column_bytes import FIRST_ROW, expert_bytes

_DTYPES = {1: torch.uint8, 2: torch.uint16}
_NUM_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
"""Names of their number in a layer, in the configurations of families."""
_PLACES = []
"""The scheduler's table of the places in the cache, once there is one."""


def install() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    HookRegistry.register(
        "sglang.srt.state_capturer.routed_experts.RoutedExpertsCapturer.create", _create, HookType.AROUND
    )
    processor = (
        "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
    )
    HookRegistry.register(f"{processor}.__init__", _note_places, HookType.AFTER)
    HookRegistry.register(
        f"{processor}._maybe_collect_routed_experts", _begin_after_what_was_sent, HookType.BEFORE
    )
    HookRegistry.register(
        "sglang.srt.managers.scheduler_components.output_streamer._GenerationStreamAccumulator.accept",
        _add_new_rows,
        HookType.AFTER,
    )
    HookRegistry.register(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._coalesce_streaming_chunks",
        _join_rows,
        HookType.AROUND,
    )


def _create(original, *, model, model_config, device, **keywords):
    if device == "cpu":
        from sglang.srt.mem_cache.pool_host import common

        # The default registers the memory with CUDA.
        common.ALLOC_MEMORY_FUNCS[device] = _allocate
    capturer = original(model=model, model_config=model_config, device=device, **keywords)
    if capturer is not None:
        config = model_config.hf_text_config
        counts = [getattr(config, name) for name in _NUM_EXPERTS if getattr(config, name, None)]
        capturer.asyncrl_dtype = _DTYPES[expert_bytes(counts[0])]
    return capturer


def _note_places(_, processor, *__, **___):
    """The streamer does not know where in the cache the tokens of a request are."""
    _PLACES[:] = [processor.req_to_token_pool]


def _allocate(dims, dtype, **_):
    return torch.empty(dims, dtype=dtype)


def _begin_after_what_was_sent(_, req):
    """SGLang reads `routed_experts_start_len` when the request has ended, before its places in the cache are
    freed; until then it is the first row that was not sent yet."""
    req.routed_experts_start_len = _first_row(req)


def _first_row(req):
    asked = (req.sampling_params.custom_params or {}).get(FIRST_ROW, 0)
    return max(req.routed_experts_start_len, asked)


def _add_new_rows(_, accumulator, *, req):
    """SGLang has just added what a request sends now, with the rows of one that has ended."""
    is_added = accumulator.output_reqs and accumulator.output_reqs[-1] is req
    if not is_added or not accumulator.return_routed_experts or not req.return_routed_experts:
        return
    from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

    capturer, rows = get_global_experts_capturer(), req.routed_experts
    if rows is None and not req.finished():
        first, end = _first_row(req), len(req.origin_input_ids) + req.send_token_offset - 1
        if first < end:
            (places,) = _PLACES
            rows = capturer.get_topk(req.kv.req_pool_idx, end + 1, places, first)
            req.routed_experts_start_len = end
    accumulator.routed_experts[-1] = None if rows is None else rows.to(capturer.asyncrl_dtype)


def _join_rows(original, manager, out_list, *arguments, **keywords):
    """Chunks that wait for a slow reader become one, for which SGLang takes the rows of the last."""
    joined = original(manager, out_list, *arguments, **keywords)
    rows = [chunk["meta_info"].get("routed_experts") for chunk in out_list]
    if any(rows):
        whole = b"".join(pybase64.b64decode(each) for each in rows if each)
        joined["meta_info"]["routed_experts"] = pybase64.b64encode(whole).decode()
    return joined
