from pathlib import Path

import pytest
from serving.engine.servers import said_beside_engine

ORDER = """
from sglang.srt.platforms import current_platform
from sglang.srt.plugins.hook_registry import HookType, _wrap_fn
from asyncrl.serving.engine.hooks import step_in_flight

order = []
type(current_platform).synchronize = lambda _: order.append("finish")
update = _wrap_fn(lambda manager, request: order.append("write"), step_in_flight._finish, HookType.BEFORE)
update(None, "request")
print(*order)
"""


@pytest.mark.exhaustive
def test_the_device_finishes_its_step_before_the_weights_are_written(tmp_path: Path) -> None:
    assert said_beside_engine(ORDER, tmp_path) == ["finish write"]
