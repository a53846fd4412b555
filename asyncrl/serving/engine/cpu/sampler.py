"""Plain sampling on a CPU in one pass over the vocabulary (inverse_transform.py).

SGLang 0.5.23 draws an exponential number for each word of the vocabulary, and takes the logarithm of each
probability to report one of them: at 49,000 words as much time as the products of a decoding step. Greedy
decoding is sampling that takes the likeliest word; top-k, top-p, min-p, seeds and lists of log-probs stay
SGLang's. The hook runs in the scheduler.
"""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.sampling.sampling_params import TOP_K_ALL

from asyncrl.model.supported import is_bitwise
from asyncrl.serving.engine.cpu.inverse_transform import sample
from asyncrl.serving.kernels.rows import token_logprobs


def install() -> None:
    """Registers the hook; SGLang applies it when all plugins are loaded."""
    HookRegistry.register("sglang.srt.layers.sampler.Sampler.forward", _sample_shortly, HookType.AROUND)


def _sample_shortly(
    original,
    sampler,
    logits_output,
    sampling_info,
    return_logprob,
    top_logprobs_nums,
    token_ids_logprobs,
    positions,
    *,
    logprob_logits=None,
):
    needs_more = (
        sampler.enable_deterministic
        or logprob_logits is not None
        or _cuts_words(sampling_info)
        or sampling_info.sampling_seed is not None
        or sampling_info.sampling_mask_batch_indices is not None
        # Both lists are None in a batch that reports no log-probs.
        or (return_logprob and any(top_logprobs_nums))
        or (return_logprob and any(ids is not None for ids in token_ids_logprobs))
    )
    temperatures = sampling_info.temperatures
    if needs_more:
        kept = logits_output.next_token_logits.clone() if return_logprob and is_bitwise() else None
        tokens = original(
            sampler,
            logits_output,
            sampling_info,
            return_logprob,
            top_logprobs_nums,
            token_ids_logprobs,
            positions,
            logprob_logits=logprob_logits,
        )
        if kept is not None:
            # Requests that cut words share a step with others, whose log-probs are trained.
            kept = sampler._preprocess_logits(kept, sampling_info)
            logits_output.next_token_logprobs = token_logprobs(kept, temperatures, tokens)
        return tokens
    logits = sampler._preprocess_logits(logits_output.next_token_logits, sampling_info)
    is_greedy = _is_greedy(sampling_info)
    kept = logits.clone() if return_logprob and is_bitwise() else None
    tokens, logprobs = sample(logits, temperatures, is_greedy)
    if kept is not None:
        logprobs = token_logprobs(kept, temperatures, tokens)
    if return_logprob:
        logits_output.next_token_logprobs = logprobs
    sampler._sync_token_ids_across_tp(tokens, sampling_info)
    return tokens


def _cuts_words(sampling_info) -> bool:
    """Whether a request samples from some of its words only.

    SGLang's flags alone do not tell: a request that joins a batch sets them for all. They stay set when it
    has ended. After one greedy request they would say so for the rest of a run.
    """
    return bool(
        (sampling_info.need_top_p_sampling and (sampling_info.top_ps != 1).any())
        or (sampling_info.need_min_p_sampling and (sampling_info.min_ps > 0).any())
        or (
            sampling_info.need_top_k_sampling
            and ((sampling_info.top_ks > 1) & (sampling_info.top_ks != TOP_K_ALL)).any()
        )
    )


def _is_greedy(sampling_info):
    """[N] which requests take the likeliest word; None where none does."""
    return sampling_info.top_ks == 1 if sampling_info.need_top_k_sampling else None
