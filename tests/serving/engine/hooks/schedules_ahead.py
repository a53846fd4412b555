"""The hook of version spans on schedules that run further ahead than one step.

Prints, per line, what the hook made of them; run inside an engine's environment, without a server.
"""

from types import SimpleNamespace

from sglang.srt.utils.weight_versions import WeightVersionEvent, compute_weight_version_spans

from asyncrl.serving.engine.hooks import streamed_tokens


class Request:
    """As much of SGLang's `Req` as the hook reads; compared by identity, as that is."""

    def __init__(self, num_output: int) -> None:
        self.output_ids = list(range(num_output))
        self.inflight_middle_chunks = 0
        # SGLang records one for each request that has tokens.
        self.weight_version_events = [WeightVersionEvent("1", num_output)] if num_output else []

    def finished(self) -> bool:
        return False


def batch_of(*reqs: Request) -> SimpleNamespace:
    return SimpleNamespace(reqs=reqs, forward_mode=SimpleNamespace(is_decode=lambda: True))


def main() -> None:
    ahead, beside, new = Request(5), Request(2), Request(0)
    steps = [(batch_of(ahead, beside), None), (batch_of(ahead, new), None)]
    streamed_tokens._give_pending_tokens(steps, "1")
    for name, req in (("ahead", ahead), ("beside", beside), ("new", new)):
        spans = compute_weight_version_spans(req.weight_version_events, "2", len(req.output_ids) + 3)
        print(name, *(f"{span.version}:{span.start}-{span.end}" for span in spans))


if __name__ == "__main__":
    main()
