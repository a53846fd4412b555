"""Part `engine`: one SGLang server as a run starts it, and the trainer beside it.

Log-probs of the same tokens on both sides, with a cold and a warm prefix cache, and publishes while the
server streams, where each token shows the version that made it.
"""

import asyncio
import contextlib
import random
import statistics
import time
from pathlib import Path

import torch
from fakes.learners import make_learner
from serving.engine.servers import new_session, post, running_server

from asyncrl.records import Batch, ScoredSequence
from asyncrl.system.gpus import VISIBLE, find_gpus
from asyncrl.trainer.network.convert import load_weights
from asyncrl.trainer.network.export import open_weights
from asyncrl.trainer.packing.batch import rank_micro_batches
from asyncrl.trainer.publishing.publish import Publisher
from asyncrl.trainer.publishing.transports import publisher_of
from asyncrl.trainer.ranks import ranks
from asyncrl.trainer.step.learner import Learner
from tests.benchmarks.acceptance.checks import Check, Checks, Setting, end
from tests.benchmarks.acceptance.load import NO_STOP, loading
from tests.benchmarks.acceptance.models import VOCABULARY, write_small, write_version
from tests.benchmarks.acceptance.server_log import graphs_in

VERSIONS = range(1, 7)
TOKENS_PER_VERSION = 600
WAIT_SECONDS = 60.0


def sample(url: str, prompts: list[list[int]], *, salt: str) -> tuple[list[ScoredSequence], int]:
    """Responses with their log-probs, and how many prompt tokens came from the cache."""
    body = {
        "input_ids": prompts,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 48, "stop_token_ids": list(NO_STOP)},
        "return_logprob": True,
        "cache_salt": salt,
    }

    async def send() -> list[dict]:
        async with new_session() as session:
            return await post(session, f"{url}/generate", body)

    found, num_cached = [], 0
    for i, (prompt, reply) in enumerate(zip(prompts, asyncio.run(send()), strict=True)):
        tokens, meta = reply["output_ids"], reply["meta_info"]
        logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
        size, num_cached = len(tokens), num_cached + meta["cached_tokens"]
        found.append(
            ScoredSequence(f"{salt}-{i}", prompt, tokens, logprobs, [0] * size, [False] * size, 1.0, 1.0)
        )
    return found, num_cached


def compare(learner: Learner, sequences: list[ScoredSequence], setting: Setting, check: Check) -> None:
    """KL(server || trainer) per token, as a run's mismatch_kl; raises ValueError where it is too large."""
    batch = Batch(0, 1.0, sequences)
    micros = rank_micro_batches(batch, budget_tokens=8192, rank=0, num_ranks=1)
    device = torch.device("cuda" if setting.on_gpu else "cpu")
    micros = [micro.to(device) for micro in micros]
    logprobs = learner.passes.logprobs(learner.parallel_chunks, micros, 1.0)
    found = torch.cat([each.float().cpu() for each in logprobs])
    behavior = torch.cat([micro.behavior.float().cpu() for micro in micros])
    ratios = found - behavior
    kl, worst = (torch.expm1(ratios.double()) - ratios).mean().item(), ratios.abs().max().item()
    check.figure = f"KL {kl:.1e} nats per token over {len(ratios)} tokens, largest difference {worst:.1e}"
    check.require(behavior.std().item() > 0.5, "the model's distribution is too flat to show anything")
    check.require(kl < setting.mismatch_limit, f"the KL is above {setting.mismatch_limit:g}")


def prompts_of(seed: int) -> list[list[int]]:
    """They share a beginning in groups of four, as responses to one task do."""
    source = random.Random(seed)
    stems = [source.choices(range(2, VOCABULARY), k=64) for _ in range(4)]
    return [stem + source.choices(range(2, VOCABULARY), k=1 + i) for stem in stems for i in range(4)]


def check_logprobs(checks: Checks, setting: Setting, learner: Learner, url: str, log: Path) -> None:
    advice = (
        "Set model.float32_logits, or in serving.extra_arguments --disable-cuda-graph or another "
        "--attention-backend, and repeat: --parts engine."
    )
    prompts = prompts_of(0)
    for name, salt, is_warm in (("cold", "a", False), ("warm", "a", True), ("again cold", "b", False)):
        with checks.row(f"log-probs against the trainer, {name} prefix cache", advice) as check:
            sequences, num_cached = sample(url, prompts, salt=salt)
            compare(learner, sequences, setting, check)
            check.figure += f", {num_cached} prompt tokens cached"
            if is_warm:
                # All but the last token of each stem is there since the first time.
                check.require(num_cached >= 60 * len(prompts), "the radix cache found too few prompt tokens")
    if setting.on_gpu:
        advice = "Read the server's log: without graphs decoding is several times slower."
        with checks.row("CUDA graphs", advice) as check:
            kinds = graphs_in(log.read_text(errors="replace"))
            check.figure = f"captured for {', '.join(kinds) or 'nothing'}"
            check.require("decode" in kinds, "the server's log tells of none for decoding")


def check_publishing(
    checks: Checks, setting: Setting, learner: Learner, url: str, base: Path, transport: str
) -> None:
    advice = "Do not train asynchronously here, tokens would carry wrong versions: read engine.log."
    with checks.row(f"publishes under load ({transport}): each token's version", advice) as check:
        publisher = publisher_of(
            transport, setting.folder / f"publications-{transport}", base=base, failed=fail_loudly
        )
        seconds = []
        first = write_version(base, setting.folder / f"{transport}-v0", 0)
        load_weights(learner.model, open_weights(first))
        publish(publisher, learner, url, 0)
        with loading(url) as load:
            load.wait_for_tokens(0, TOKENS_PER_VERSION, seconds=WAIT_SECONDS)
            for version in VERSIONS:
                folder = write_version(base, setting.folder / f"{transport}-v{version}", version)
                load_weights(learner.model, open_weights(folder))
                begin = time.perf_counter()
                publish(publisher, learner, url, version)
                seconds.append(time.perf_counter() - begin)
                load.wait_for_tokens(version, TOKENS_PER_VERSION, seconds=WAIT_SECONDS)
        publisher.close()
        proof = load.proof
        check.figure = (
            f"{sum(proof.tokens.values()):,} tokens of {len(proof.tokens)} versions, each made by "
            f"the one that it carries; {proof.num_mixed} responses have several; a publish takes "
            f"{statistics.median(seconds):.2f} s"
        )
        if proof.wrong:
            raise ValueError(f"{len(proof.wrong)} segments carry a wrong version: {proof.wrong[0]}")
        check.require(proof.num_mixed > 0, "no response outlived a publish")


def publish(publisher: Publisher, learner: Learner, url: str, version: int) -> None:
    (outcome,) = publisher.install(publisher.prepare(version, learner.model), learner.model, [url]).values()
    if not outcome.is_installed:
        raise ValueError(f"version {version} was not installed: {outcome.detail}")


def fail_loudly(error: BaseException) -> None:
    raise error


def work(checks: Checks, setting: Setting) -> None:
    model, log = write_small(setting.folder / "model", seed=0), setting.folder / "server.log"
    # The trainer has the first one, and shares it where there is no other.
    of_server = {VISIBLE: find_gpus()[1].device} if setting.num_gpus > 1 else {}
    began = time.perf_counter()
    sizes = {"max_total_tokens": 65536, "max_running_requests": 32}
    server = running_server(
        model, log, dtype=setting.dtype, has_gpu=setting.on_gpu, variables=of_server, **sizes
    )
    with contextlib.ExitStack() as stack:
        url = None
        with checks.row("SGLang starts with asyncrl's plugin", f"Read {log}.") as check:
            url, _ = stack.enter_context(server)
            check.figure = f"ready after {time.perf_counter() - began:.0f} s"
        if url is None:
            return
        ranks.start(threads=1, seed=0)
        learner = make_learner(model, model={"dtype": setting.dtype}, placement={"device": setting.device})
        check_logprobs(checks, setting, learner, url, log)
        check_publishing(checks, setting, learner, url, model, "disk")
        if not setting.name_without_second_gpu(checks, "publishes under load (distributed), by NCCL"):
            check_publishing(checks, setting, learner, url, model, "distributed")
    ranks.stop()


if __name__ == "__main__":
    end(work)
