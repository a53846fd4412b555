"""Facts about tokens in each streamed chunk: their spans of weight versions and the experts that they took.

SGLang 0.5.23 says both once, in a request's last chunk: a stream that broke would have brought neither.
"""

from collections import Counter

import pybase64
import torch
from sglang.srt.runtime_context import get_serving
from sglang.srt.utils.weight_versions import WeightVersionEvent, compute_weight_version_spans

from asyncrl.model.column_bytes import FIRST_ROW, expert_bytes

_DTYPES = {1: torch.uint8, 2: torch.uint16}

_NUM_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
"""Names of their number in a layer, in the configurations of families."""

_PLACES = []
"""The scheduler's table of the places in the cache, once there is one."""


def hooks():
    """Hooks of this file, as `plugin.register` takes them."""
    managers = "sglang.srt.managers"
    accumulator = f"{managers}.scheduler_components.output_streamer._GenerationStreamAccumulator"
    processor = f"{managers}.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
    changed = f"{managers}.scheduler.Scheduler.record_weight_version_change"
    joined = f"{managers}.tokenizer_manager.TokenizerManager._coalesce_streaming_chunks"
    return [
        (f"{accumulator}.to_payload", _add_spans_to_unfinished, "before"),
        (changed, _record_what_the_old_version_computed, "around"),
        ("sglang.srt.state_capturer.routed_experts.RoutedExpertsCapturer.create", _create, "around"),
        (f"{processor}.__init__", _note_places, "after"),
        (f"{processor}._maybe_collect_routed_experts", _begin_after_what_was_sent, "before"),
        (f"{accumulator}.accept", _add_new_rows, "after"),
        (joined, _join_rows, "around"),
    ]


# Version spans (`meta_info.weight_versions`), also the right ones while a step is in flight: SGLang gives the
# token that is being computed at the moment of an in-place update to the new version, and forgets that parts
# of a long prompt may have been computed before the update. Both hooks run in the scheduler.
def _add_spans_to_unfinished(accumulator, **_):
    """Spans over all tokens sent so far, for the requests that the accumulator took without."""
    for place, req in enumerate(accumulator.output_reqs):
        if accumulator.weight_versions[place] is None:
            accumulator.weight_versions[place] = compute_weight_version_spans(
                req.weight_version_events,
                current_version=accumulator.current_weight_version,
                num_output_tokens=req.send_token_offset,
            )


def _record_what_the_old_version_computed(original, scheduler, new_version):
    old_version = get_serving().weight_version
    original(scheduler, new_version)
    if new_version is None or new_version == old_version:
        return
    _begin_with_the_old_version(scheduler.chunked_req, old_version)
    if scheduler.enable_overlap:
        _give_pending_tokens(scheduler.result_queue, old_version)


def _begin_with_the_old_version(req, old_version):
    """A prompt of which some chunks are computed begins with a span of no tokens: the keys and values of the
    first tokens that follow are older than the weights."""
    if req is not None and not req.output_ids:
        req.weight_version_events.append(WeightVersionEvent(old_version=old_version, num_output_tokens=0))


def _give_pending_tokens(result_queue, old_version):
    """Under the overlap schedule a step, or several, are sampled but not yet appended when the version
    changes."""
    pending = Counter(req for batch, _ in result_queue for req in batch.reqs if _yields_a_token(batch, req))
    for req, num_pending in pending.items():
        _extend_last_event(req, old_version, num_pending)


def _yields_a_token(batch, req):
    """Decode steps do; a prefill step does not while chunks of the prompt are left."""
    return not req.finished() and (batch.forward_mode.is_decode() or req.inflight_middle_chunks <= 0)


def _extend_last_event(req, old_version, num_pending):
    num_tokens = len(req.output_ids) + num_pending
    event = WeightVersionEvent(old_version=old_version, num_output_tokens=num_tokens)
    # `record_weight_version_change` has just recorded one for requests that have tokens already.
    if req.output_ids:
        req.weight_version_events[-1] = event
    else:
        req.weight_version_events.append(event)


# The experts that each token took (--enable-return-routed-experts), in few bytes: each chunk has the rows of
# the passes that sampled its tokens (model/column_bytes.py), and the first one those of the positions in
# front, from the one on that the request names. Rows of a prefix that was found in the cache are those of the
# pass that filled it. The hooks run in the scheduler and where SGLang listens; on a CPU the buffer of the
# rows is ordinary memory.
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
