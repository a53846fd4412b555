"""Chunks that waited for a slow reader; tests/trainer/test_engine_routes.py has those of a real server."""

from pathlib import Path

import pytest
from serving.engine.servers import said_beside_engine

JOIN = """
import base64
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from asyncrl.serving.engine.hooks.routed_experts import _join_rows

def chunk(tokens, rows):
    rows = {} if rows is None else {"routed_experts": base64.b64encode(rows).decode()}
    return {"output_ids": tokens, "meta_info": rows}

def join(*chunks):
    joined = _join_rows(TokenizerManager._coalesce_streaming_chunks, None, list(chunks), "r")
    return joined["output_ids"], base64.b64decode(joined["meta_info"].get("routed_experts", "")).decode()

print(*join(chunk([5], b"abc"), chunk([6, 7], b"de"), chunk([], None), chunk([8], b"f")))
print(*join(chunk([5], None), chunk([6], None)))
"""


@pytest.mark.exhaustive
def test_joined_chunks_have_the_rows_of_all_of_them_in_order(tmp_path: Path) -> None:
    assert said_beside_engine(JOIN, tmp_path) == ["[5, 6, 7, 8] abcdef", "[5, 6] "]
