"""One of two ranks that write a tensor of [4, 6] into FOLDER, half each: FOLDER FAULT.

FAULT is "none", or of the second rank in the middle of its file: "full", its disk takes no more, or "killed".
The first rank writes the digests that it is given into FOLDER/digests.json.
"""

import json
import os
import sys
from pathlib import Path

import torch
from fakes.dying_saver import break_in_the_middle, kill_this_process

from asyncrl.errors import DiskError
from asyncrl.trainer.ranks import ranks


def main() -> None:
    folder, fault = Path(sys.argv[1]), sys.argv[2]
    ranks.start(threads=1, seed=0)
    from asyncrl.trainer.checkpoints.checkpoint_files import CheckpointWriter
    from asyncrl.trainer.checkpoints.training_state import Box, SharedTensor

    first = 2 * int(os.environ["RANK"])
    numbers = torch.arange(24.0).view(4, 6)[first : first + 2]
    shared = SharedTensor((4, 6))
    shared.add(Box((first, 0), numbers))
    state: dict[str, object] = {"numbers": shared} | ({"common": "said once"} if ranks.is_first() else {})
    if fault == "killed" and not ranks.is_first():
        break_in_the_middle(kill_this_process, after=2)
    if fault == "full" and not ranks.is_first():
        # A device without room, under the name of the file.
        (folder / "__1_0.distcp").symlink_to("/dev/full")
    writer = CheckpointWriter()
    writer.begin(
        state, folder, finish=lambda digests: (folder / "digests.json").write_text(json.dumps(digests))
    )
    # Training changes it at once.
    numbers.zero_()
    try:
        writer.wait()
    except DiskError as error:
        assert fault == "full" and "rank 1: OSError" in str(error), error
    else:
        assert fault == "none"
    ranks.stop()


if __name__ == "__main__":
    main()
