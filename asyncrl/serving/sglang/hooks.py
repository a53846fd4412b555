"""The hooks of asyncrl's plugin in a server, by its own word: versions and digests come from them."""

from dataclasses import dataclass

import aiohttp

from asyncrl.errors import ServerError
from asyncrl.model.supported import BITWISE_VARIABLE
from asyncrl.model.unsampled import UNSAMPLED_VARIABLE, Unsampled
from asyncrl.recipe.server_options import FLOAT32_HEAD, ROUTED_EXPERTS, reason_against
from asyncrl.serving.sglang import http

SGLANG_VERSION = "0.5.23"
"""The one that the plugin's hooks are written for."""
HOOKS_PATH = "/asyncrl/hooks"
"""Not SGLang's: asyncrl's plugin answers it, see engine/hooks/access.py."""
INPUT_LOGPROBS = "sglang.srt.layers.logprob_processor.InputLogprobProcessor.forward"
"""Target of the hook that gives input tokens log-probs at the request's temperature."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The process that serves at a URL now."""

    process: str
    """Another one after a restart."""
    num_ranks: int
    """Ranks that hold weights."""


async def check_hooks(
    session: aiohttp.ClientSession,
    url: str,
    *,
    unsampled: Unsampled | None = None,
    float32_head: bool | None = None,
    is_bitwise: bool | None = None,
    top_k: int | None = None,
    returns_routes: bool = False,
) -> Engine:
    """Raises ServerError when a hook of asyncrl's plugin does not apply there, or where the server differs
    from what is given (`FleetSettings`): versions of tokens and digests of weights would be missing or wrong,
    or log-probs of another distribution than the trainer's."""
    found = await http.get_json(session, f"{url}{HOOKS_PATH}")
    if found is None:
        raise ServerError(
            f"{url} has no asyncrl plugin: the hook sglang.srt.entrypoints.http_server."
            f"_setup_and_run_http_server did not apply, so {HOOKS_PATH} is unknown. Install asyncrl where "
            f"that server runs, and name its entry point in SGLANG_PLUGINS if that is set."
        )
    try:
        version, engine = str(found["sglang"]), Engine(str(found["process"]), int(found["num_ranks"]))
        missing = [target for target, is_applied in found["hooks"].items() if not is_applied]
        options = [str(option) for option in found["options"]]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ServerError(f"{url}{HOOKS_PATH} answered {found!r:.200}, expected hooks") from None
    if missing:
        raise ServerError(
            f"{url} runs SGLang {version}, to which {len(missing)} hook(s) of asyncrl did not apply: "
            f"{', '.join(missing)}. They are written for SGLang {SGLANG_VERSION}."
        )
    if version != SGLANG_VERSION:
        raise ServerError(
            f"{url} runs SGLang {version}; asyncrl's hooks, such as {next(iter(found['hooks']), 'none')}, "
            f"are written for SGLang {SGLANG_VERSION}."
        )
    for option in options:
        if (why := reason_against(option)) is not None:
            raise ServerError(f"{url} was started with {option}: {why}. Start it without.")
    for flag, is_there, is_wanted, key, how in (
        (FLOAT32_HEAD, FLOAT32_HEAD in options, float32_head, "model.float32_logits", ""),
        (
            f"{BITWISE_VARIABLE}=1",
            found.get("bitwise") is True,
            is_bitwise,
            "model.bitwise_agreement",
            ", on a CPU and with the run's version of asyncrl",
        ),
    ):
        if is_wanted is not None and is_there != is_wanted:
            here, wanted = ("with", "without") if is_there else ("without", "with")
            raise ServerError(
                f"{url} was started {here} {flag}, but {key} asks for a server {wanted} it: its log-probs "
                f"are not computed as the trainer computes them. Start it {wanted}{how}, or change {key}."
            )
    there = str(found.get("unsampled", ""))
    if unsampled is not None and there != str(unsampled):
        raise ServerError(
            f"{url} never samples the tokens {there or 'none'!r}, the run never samples "
            f"{str(unsampled) or 'none'!r}: its log-probs are not those that are trained. Start it on the "
            f"run's model folder, with the run's version of asyncrl and "
            f'{UNSAMPLED_VARIABLE}="{unsampled}".'
        )
    most_kept = found.get("most_kept")
    if top_k is not None and (not isinstance(most_kept, int) or most_kept < top_k):
        raise ServerError(
            f"{url} says which tokens it kept up to {most_kept or 'none'}, but rollout.top_k is {top_k}: the "
            f"trainer could not know their distribution. Start it with the run's version of asyncrl and "
            f"--sampling-mask-max-tokens {top_k}, or lower rollout.top_k."
        )
    if returns_routes and ROUTED_EXPERTS not in options:
        raise ServerError(
            f"{url} was started without {ROUTED_EXPERTS}, but algorithm.routing_replay is rollout: the "
            f"trainer could not take the experts that its tokens took. Start it with {ROUTED_EXPERTS}, or "
            f"set algorithm.routing_replay to proximal or none."
        )
    return engine
