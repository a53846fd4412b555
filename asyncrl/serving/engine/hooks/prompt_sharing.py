"""One prefill per group: its samples share the keys and values of their prompt; the cache keeps little else.

SGLang 0.5.23 looks a request up in its prefix cache when it is scheduled, so the samples of a group, which
arrive together, compute their prompt once each. Here the first goes alone and the others follow one round
later, when its prompt is in the cache. The cache is then not told what it holds already, nor of responses
that ended: those are never continued. All hooks run in the scheduler.
"""

from sglang.srt.managers.schedule_batch import FINISH_MATCHED_TOKEN


def hooks():
    """Hooks of this file, as `plugin.register` takes them."""
    cache = "sglang.srt.mem_cache.common"
    return [
        ("sglang.srt.managers.scheduler.Scheduler._get_new_batch_prefill_raw", HeldMates(), "around"),
        (f"{cache}.checkpoint_kv_cache", _keep_what_is_new, "around"),
        (f"{cache}.release_kv_cache", _keep_what_goes_on, "around"),
    ]


class HeldMates:
    """Keeps requests out of a prefill while another one with their prompt and salt is about to compute it."""

    def __init__(self):
        self._leaders = {}
        """(salt, other key of the cache, prompt) -> the request that computes it."""

    def __call__(self, original, scheduler, *arguments, **keywords):
        held = self._choose(scheduler) if scheduler.waiting_queue else []
        if not held:
            return original(scheduler, *arguments, **keywords)
        ids = {id(req) for req in held}
        scheduler.waiting_queue = [req for req in scheduler.waiting_queue if id(req) not in ids]
        try:
            return original(scheduler, *arguments, **keywords)
        finally:
            scheduler.waiting_queue = [*scheduler.waiting_queue, *held]

    def _choose(self, scheduler):
        """The waiting requests whose leader is not done; leaders that no request waits for are forgotten."""
        in_work = {id(req) for req in _in_work(scheduler)}
        leaders, held = {}, []
        for req in scheduler.waiting_queue:
            if req.output_ids:
                continue
            # An array: a tuple of a thousand waiting prompts would cost tens of milliseconds in every round.
            key = (req.cache_salt, req.extra_key, req.origin_input_ids.tobytes())
            leader = leaders.get(key) or self._leaders.get(key, req)
            # One that is aborted while it waits is in no list any more and never finishes.
            if not leader.output_ids and id(leader) not in in_work:
                leader = req
            leaders[key] = leader
            if leader is not req and not leader.output_ids:
                held.append(req)
        self._leaders = leaders
        return held


def _in_work(scheduler):
    """The requests whose prompts may not be in the cache yet: they wait, are computed in chunks, or (overlap
    schedule) are in the step whose result is not processed."""
    yield from scheduler.waiting_queue
    if scheduler.chunked_req is not None:
        yield scheduler.chunked_req
    if scheduler.last_batch is not None:
        yield from scheduler.last_batch.reqs


def _keep_what_is_new(original, req, tree_cache):
    """The last token of a prompt is always computed; when that is all, the cache has nothing to learn."""
    if req.extend_end - req.kv.cache_protected_len > 1:
        return original(req, tree_cache)
    req.prefix_len = req.extend_end


def _keep_what_goes_on(original, req, tree_cache, *, checkpoint):
    """A response at its limit or aborted may be resumed from its prefix, one that stopped is over."""
    is_over = isinstance(req.finished_reason, FINISH_MATCHED_TOKEN)
    return original(req, tree_cache, checkpoint=checkpoint and not is_over)
