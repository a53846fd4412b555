"""Groups for weights, as the plugin makes SGLang receive in them, with a trainer that sends, or never does.

Prints one line per fact. Runs in the server's environment; the server's side alone imports sglang, which is
most of what the trainer's would wait for.
"""

import os
import subprocess
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist

from asyncrl.serving import weight_group
from asyncrl.trainer.ranks.update_group import Address, UpdateGroup, choose_address

NAMES, DTYPES, SHAPES = ["a", "b"], [torch.float32, torch.bfloat16], [(2, 3), (4,)]
FLAT = torch.cat([torch.arange(6.0).view(torch.uint8), torch.ones(4, dtype=torch.bfloat16).view(torch.uint8)])


def send(address, has_weights):
    """The trainer's side, in a process of its own, until it is killed."""
    group = UpdateGroup(address, 1, "gloo")
    if has_weights:
        group.send(FLAT).wait()
    sys.stdin.read()


def join(address):
    from sglang.srt.utils.common import init_custom_process_group

    from asyncrl.serving.engine.hooks import weight_updates

    seen = []

    def make(updater, *_, **__):
        seen.append(os.environ.get(weight_group.BLOCKING_WAIT))
        url = f"tcp://{address.host}:{address.port}"
        updater._model_update_group["weights"] = init_custom_process_group(
            backend="gloo", init_method=url, world_size=2, rank=1, group_name=address.name
        )

    updater = SimpleNamespace(device="cpu", _model_update_group={})
    weight_updates.join(make, updater)
    print("set-while-joining", *seen, "set-afterwards", weight_group.BLOCKING_WAIT in os.environ)
    return updater


def receive(updater):
    from asyncrl.serving.engine.hooks import weight_updates

    weight_updates.RECEIVE_SECONDS = 1.0
    try:
        tensors = weight_updates.receive(
            updater, names=NAMES, dtypes=DTYPES, shapes=SHAPES, group_name="weights"
        )
        print("received", *(f"{name}:{float(tensor.sum())}" for name, tensor in tensors))
    except RuntimeError:
        # Without RECEIVE_SECONDS it would wait for longer than the test does.
        print("given-up")


def main():
    from asyncrl.serving.engine.hooks import weight_updates

    for has_weights in (True, False):
        address = choose_address(f"weights-{has_weights}", [])
        arguments = [address.name, address.host, str(address.port), str(int(has_weights))]
        trainer = subprocess.Popen([sys.executable, __file__, *arguments], stdin=subprocess.PIPE)
        updater = join(address)
        receive(updater)
        print("left", *(weight_updates.leave(updater, "weights")[0] for _ in range(2)))
        trainer.kill()
        trainer.wait()


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if len(sys.argv) > 1:
        name, host, port, has_weights = sys.argv[1:]
        send(Address(name, host, int(port)), bool(int(has_weights)))
    else:
        main()
