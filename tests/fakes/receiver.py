"""Light rollout servers: processes that take weights as SGLang does, over HTTP and torch.distributed, into a
real state dict, and generate nothing.

    python -m fakes.receiver PORT ...     (one process for each port)

POST /fault sets what goes wrong next: {"dies_at": n} kills the process when it is asked for bucket n (0: the
first), {"flips_at": n} changes one bit of what arrived, {"refuses_at": n} answers 400 instead of receiving.
"""

import asyncio
import functools
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from aiohttp import web
from torch.distributed import distributed_c10d as c10d

from asyncrl.serving.sglang.hooks import HOOKS_PATH, SGLANG_VERSION
from asyncrl.serving.tensor_digest import tensor_digest
from asyncrl.system.files import overall_digest


class Receiver:
    def __init__(self) -> None:
        self.version = "default"
        self.is_paused = False
        self.calls: list[str] = []
        self.faults: dict[str, int] = {}
        self.weights: dict[str, torch.Tensor] = {}
        self.digests: dict[str, str] = {}
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._num_received = 0
        self._is_in_session = False

    def routes(self) -> list[web.RouteDef]:
        answers = {
            "/pause_generation": self.pause,
            "/continue_generation": self.go_on,
            "/init_weights_update_group": self.join,
            "/destroy_weights_update_group": self.leave,
            "/begin_weight_update": self.begin,
            "/update_weights_from_distributed": self.receive,
            "/end_weight_update": self.end,
            "/weights_checker": self.check,
            "/fault": self.set_fault,
        }
        gets = {"/ready": self.ready, "/server_info": dict, HOOKS_PATH: self.hooks, "/state": self.state}
        return [
            *(web.post(path, functools.partial(_answer, answer)) for path, answer in answers.items()),
            *(web.get(path, functools.partial(_answer, answer)) for path, answer in gets.items()),
        ]

    def ready(self, body: dict[str, Any]) -> None:
        assert not self.is_paused, "a paused server is not ready"

    def hooks(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "sglang": SGLANG_VERSION,
            "process": str(os.getpid()),
            "num_ranks": 1,
            "options": [],
            "hooks": {},
        }

    def state(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": self.version,
            "is_paused": self.is_paused,
            "num_groups": len(self._groups),
            "num_tensors": len(self.weights),
            "num_received": self._num_received,
            "pid": os.getpid(),
            "cpu_seconds": sum(os.times()[:2]),
        }

    def set_fault(self, body: dict[str, Any]) -> None:
        self.faults = body

    def pause(self, body: dict[str, Any]) -> None:
        self.is_paused = True

    def go_on(self, body: dict[str, Any]) -> None:
        self.is_paused = False

    def join(self, body: dict[str, Any]) -> None:
        """As SGLang's init_custom_process_group does it."""
        rank, size, name = body["rank_offset"], body["world_size"], body["group_name"]
        method = f"tcp://{body['master_address']}:{body['master_port']}"
        wait = c10d.default_pg_timeout
        store, _, _ = next(c10d.rendezvous(method, rank, size, timeout=wait))
        store = c10d.PrefixStore(name, store)
        backend = c10d.Backend(body["backend"])
        group, _ = c10d._new_process_group_helper(
            size, rank, [], backend, store, group_name=name, backend_options=None, timeout=wait
        )
        c10d._world.pg_group_ranks[group] = {i: i for i in range(size)}
        self._groups[name] = group

    def leave(self, body: dict[str, Any]) -> None:
        dist.destroy_process_group(self._groups.pop(body["group_name"]))

    def begin(self, body: dict[str, Any]) -> None:
        assert not self._is_in_session, "a session is open already"
        self._is_in_session, self._num_received = True, 0

    def end(self, body: dict[str, Any]) -> None:
        self._is_in_session = False

    def receive(self, body: dict[str, Any]) -> None:
        if self.faults.get("dies_at") == self._num_received:
            os.kill(os.getpid(), signal.SIGKILL)
        assert self.faults.get("refuses_at") != self._num_received, "this bucket is refused"
        assert self._is_in_session and body["load_format"] == "flattened_bucket"
        dtypes = [getattr(torch, dtype) for dtype in body["dtypes"]]
        sizes = [torch.Size(s).numel() * d.itemsize for s, d in zip(body["shapes"], dtypes, strict=True)]
        flat = torch.empty(sum(sizes), dtype=torch.uint8)
        dist.broadcast(flat, group_src=0, group=self._groups[body["group_name"]])
        if self.faults.get("flips_at") == self._num_received:
            flat[len(flat) // 2] ^= 1
        for name, dtype, shape, part in zip(
            body["names"], dtypes, body["shapes"], flat.split(sizes), strict=True
        ):
            tensor = part.view(dtype).view(shape)
            self.digests[name] = tensor_digest(tensor)
            if name not in self.weights:
                self.weights[name] = torch.empty_like(tensor)
            self.weights[name].copy_(tensor)
        self._num_received += 1
        self.version = body.get("weight_version", self.version)

    def check(self, body: dict[str, Any]) -> dict[str, Any]:
        given = {} if body["skip_tensor_list"] else self.digests
        return {"ranks": [{"checksums": given, "per_gpu_checksum": overall_digest(self.digests)}]}


async def _answer(answer: Any, request: web.Request) -> web.Response:
    body = await request.json() if request.can_read_body else {}
    try:
        reply = await asyncio.to_thread(answer, body)
    except (RuntimeError, AssertionError, KeyError) as error:
        return web.json_response({"success": False, "message": repr(error)}, status=400)
    return web.json_response(reply or {"success": True})


def serve(port: int) -> None:
    torch.set_num_threads(1)
    app = web.Application(client_max_size=2**30)
    app.add_routes(Receiver().routes())
    web.run_app(app, host="127.0.0.1", port=port, print=None, handle_signals=True, shutdown_timeout=0.1)


def main() -> None:
    # One import of torch for all of them; an end of this process ends them.
    ports = [int(port) for port in sys.argv[1:]]
    children = []
    for port in ports:
        if (child := os.fork()) == 0:
            serve(port)
            os._exit(0)
        children.append(child)
    signal.signal(signal.SIGTERM, lambda *_: [_end(child) for child in children])
    for child in children:
        os.waitpid(child, 0)


def _end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main()
