"""A server waits for weights for a bounded time, leaves a group whatever the others do, and finishes its step
before weights are written."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from serving.engine.servers import said_beside_engine

from asyncrl.serving import weight_group

SCRIPT = Path(__file__).with_name("leave_groups.py")


def test_weights_arrive_and_a_trainer_that_sends_none_is_given_up(tmp_path: Path) -> None:
    assert said_beside_engine(SCRIPT, tmp_path) == [
        "set-while-joining 1 set-afterwards False",
        "received a:15.0 b:4.0",
        "left True False",
        "set-while-joining 1 set-afterwards False",
        "given-up",
        "left True False",
    ]


@pytest.mark.parametrize(("backend", "ended"), [("nccl", "abort"), ("gloo", "destroy")])
def test_nccl_is_aborted_because_its_orderly_end_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch, backend: str, ended: str
) -> None:
    calls: list[tuple[str, object]] = []
    group = SimpleNamespace()
    monkeypatch.setattr(dist, "get_backend", lambda _: backend)
    monkeypatch.setattr(dist, "destroy_process_group", lambda it: calls.append(("destroy", it)))
    monkeypatch.setattr(weight_group.c10d, "_abort_process_group", lambda it: calls.append(("abort", it)))
    weight_group.end(group)
    assert calls == [(ended, group)]


def test_the_variable_of_a_users_shell_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(weight_group.BLOCKING_WAIT, "0")
    with weight_group.errors_raised_where_they_are_waited_for():
        assert os.environ[weight_group.BLOCKING_WAIT] == "1"
    assert os.environ[weight_group.BLOCKING_WAIT] == "0"


ORDER = """
from sglang.srt.platforms import current_platform
from sglang.srt.plugins.hook_registry import HookType, _wrap_fn
from asyncrl.serving.engine.hooks import weight_updates

order = []
type(current_platform).synchronize = lambda _: order.append("finish")
update = _wrap_fn(lambda manager, request: order.append("write"), weight_updates._finish, HookType.BEFORE)
update(None, "request")
print(*order)
"""


@pytest.mark.exhaustive
def test_the_device_finishes_its_step_before_the_weights_are_written(tmp_path: Path) -> None:
    assert said_beside_engine(ORDER, tmp_path) == ["finish write"]
