"""How long passes took, by their size, as sums in /server_info: what `asyncrl.serving.pass_sums` reads.

SGLang 0.5.23 keeps such sums of decode passes for a load report of its own. Of prefills it keeps seconds and
tokens alone, from which nobody can tell the cost of a pass from that of a token: here are their squares too.
Both hooks run in the scheduler.
"""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from asyncrl.serving.pass_sums import LineSums, PassSums


def install() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    HookRegistry.register(f"{scheduler}._record_step_counters", _add_prefill, HookType.AROUND)
    HookRegistry.register(f"{scheduler}.get_internal_state", _add_sums, HookType.AROUND)


def _add_prefill(original, scheduler, batch, result):
    before = scheduler.total_prefill_busy_us
    original(scheduler, batch, result)
    seconds = (scheduler.total_prefill_busy_us - before) / 1e6
    if seconds > 0.0:
        one = LineSums.of_pass(float(batch.extend_num_tokens), seconds)
        scheduler.asyncrl_prefills = _prefills(scheduler) + one


def _prefills(scheduler):
    return getattr(scheduler, "asyncrl_prefills", LineSums())


def _add_sums(original, scheduler, request):
    answer = original(scheduler, request)
    count, size, us, size_squared, size_us, _ = scheduler.decode_moment_totals
    decode = LineSums(count, size, us / 1e6, size_squared, size_us / 1e6)
    answer.internal_state |= PassSums(decode, _prefills(scheduler)).state()
    return answer
