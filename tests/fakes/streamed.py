"""Events as a server streams them."""

import json
from typing import Any


def event(**meta: Any) -> bytes:
    """The data of an event with two tokens, or with `tokens`."""
    tokens = meta.pop("tokens", [5, 6])
    info = {
        "id": "r1",
        "finish_reason": None,
        "output_token_logprobs": [[-0.5, t, None] for t in tokens],
        "weight_version": "3",
        **meta,
    }
    return json.dumps({"output_ids": tokens, "meta_info": info}).encode()
