"""How long passes took, by their size, as sums in /server_info: what `asyncrl.serving.pass_sums` reads.

SGLang 0.5.23 times them for a load report of its own. It keeps no squares of prefills, and of decode passes
nothing of what their requests hold: the costs could not be told apart. Both hooks run in the scheduler.
"""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.serving.pass_sums import DecodeSums, LineSums, PassSums


def install() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    HookRegistry.register(f"{scheduler}._record_step_counters", _add_pass, HookType.AROUND)
    HookRegistry.register(f"{scheduler}.get_internal_state", _add_sums, HookType.AROUND)


def _add_pass(original, scheduler, batch, result):
    prefilled, decoded = scheduler.total_prefill_busy_us, scheduler.decode_moment_totals[2]
    original(scheduler, batch, result)
    prefill = (scheduler.total_prefill_busy_us - prefilled) / 1e6
    decode = (scheduler.decode_moment_totals[2] - decoded) / 1e6
    if prefill > 0.0:
        one = PassSums(prefill=LineSums.of_pass(float(batch.extend_num_tokens), prefill))
    elif decode > 0.0:
        # Some schedules keep the lengths on the device alone.
        lengths = batch.seq_lens_cpu
        held = float(sum(req.seqlen for req in batch.reqs) if lengths is None else lengths.sum())
        one = PassSums(DecodeSums.of_decode(float(len(batch.reqs)), held, decode))
    else:
        return
    scheduler.asyncrl_passes = _passes(scheduler) + one


def _passes(scheduler):
    return getattr(scheduler, "asyncrl_passes", PassSums())


def _add_sums(original, scheduler, request):
    answer = original(scheduler, request)
    answer.internal_state |= _passes(scheduler).state()
    return answer
