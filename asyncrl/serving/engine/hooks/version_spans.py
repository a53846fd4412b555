"""Confirmed version spans in every streamed chunk, and the right ones while a step is in flight.

SGLang 0.5.23 says which weight version sampled which token (`meta_info.weight_versions`), but only in a
request's last chunk. It gives the token that is being computed at the moment of an in-place update to the new
version, and forgets that parts of a long prompt may have been computed before the update. Both hooks run in
the scheduler, with and without a GPU.
"""

from collections import Counter

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_serving
from sglang.srt.utils.weight_versions import WeightVersionEvent, compute_weight_version_spans


def install() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    HookRegistry.register(
        "sglang.srt.managers.scheduler_components.output_streamer._GenerationStreamAccumulator.to_payload",
        _add_spans_to_unfinished,
        HookType.BEFORE,
    )
    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.record_weight_version_change",
        _record_what_the_old_version_computed,
        HookType.AROUND,
    )


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
