"""The hooks on schedules that run further ahead than one step, and that keep lengths on the device alone.

Prints, per line, what the hooks made of them; run inside an engine's environment, without a server.
"""

from types import SimpleNamespace
from typing import Any

from sglang.srt.utils.weight_versions import WeightVersionEvent, compute_weight_version_spans

from asyncrl.serving.engine.hooks import pass_times, version_spans


class Request:
    """As much of SGLang's `Req` as the hooks read; compared by identity, as that is."""

    def __init__(self, num_output: int, num_prompt: int = 3) -> None:
        self.output_ids = list(range(num_output))
        self.seqlen = num_prompt + num_output
        self.inflight_middle_chunks = 0
        # SGLang records one for each request that has tokens.
        self.weight_version_events = [WeightVersionEvent("1", num_output)] if num_output else []

    def finished(self) -> bool:
        return False


def batch_of(*reqs: Request, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(reqs=reqs, forward_mode=SimpleNamespace(is_decode=lambda: True), **fields)


def main() -> None:
    ahead, beside, new = Request(5), Request(2), Request(0)
    steps = [(batch_of(ahead, beside), None), (batch_of(ahead, new), None)]
    version_spans._give_pending_tokens(steps, "1")
    for name, req in (("ahead", ahead), ("beside", beside), ("new", new)):
        spans = compute_weight_version_spans(req.weight_version_events, "2", len(req.output_ids) + 3)
        print(name, *(f"{span.version}:{span.start}-{span.end}" for span in spans))

    scheduler = SimpleNamespace(total_prefill_busy_us=0, decode_moment_totals=[0, 0, 0])

    def record(scheduler: Any, batch: Any, result: Any) -> None:
        scheduler.decode_moment_totals[2] += 2_000_000

    pass_times._add_pass(record, scheduler, batch_of(ahead, beside, seq_lens_cpu=None), None)
    print("held", scheduler.asyncrl_passes.decode.held, "seconds", scheduler.asyncrl_passes.decode.seconds)


if __name__ == "__main__":
    main()
