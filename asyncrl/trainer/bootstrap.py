"""How a trainer rank starts and ends, the same for training a run and for reproducing a step of one.

Owns the order: recipe, model folder, layout and loss terms are checked before the ranks meet; Megatron is
imported after its warnings are silenced and its CPU adapters installed. What differs between the two stays in
`main` and `reproduce`: signals, the format of the log, the exit code of the work. One rank is one process;
its environment variables are `model.layout.rank_environment`.
"""

import contextlib
import gc
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

import torch

from asyncrl.algorithms.own_terms import check_terms
from asyncrl.errors import AsyncrlError, DiskError, Diverged, InputError, RankLost
from asyncrl.model.dtype import find_dtype
from asyncrl.model.folder import check_model_folder
from asyncrl.model.layout import check_layout
from asyncrl.model.source import model_folder
from asyncrl.model.supported import check_packages, check_supported
from asyncrl.model.unsampled import Unsampled
from asyncrl.model.weights import num_parameters
from asyncrl.recipe import Recipe
from asyncrl.system.gpus import VISIBLE
from asyncrl.system.machine import has_gpu
from asyncrl.trainer.ranks import ranks
from asyncrl.wire.messages import ending_line
from sandbox.kernel import die_with_parent

if TYPE_CHECKING:
    from asyncrl.trainer.step.learner import Learner

BAD_INPUT = 2
DETERMINISTIC = {
    # Of the workspaces that cuBLAS may use, those with which a product is always split in one way.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Else NCCL chooses by measured times in which order it sums.
    "NCCL_ALGO": "Ring",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
}
"""Variables by which cuBLAS, NCCL and Transformer Engine compute the same bits again."""
log = logging.getLogger(__name__)


def run_rank(work: Callable[[], int], *, has_launcher: bool = True) -> int:
    """Runs `work` and leaves the process group; the exit code of this process.

    InputError, Diverged, DiskError and a lost rank become one sentence on standard error and an exit code
    each: a traceback would not say what to do. After that of Diverged and DiskError comes the line for the
    launcher (`wire.messages.ending_line`), where a launcher reads. Any other exception is a fault of ours and
    propagates.
    """
    die_with_parent(os.getppid())
    try:
        code = work()
    except InputError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except DiskError as error:
        end_on_full_disk(error, has_launcher=has_launcher)
    except Diverged as error:
        print(_last_words(error, has_launcher=has_launcher), end="", file=sys.stderr, flush=True)
        return Diverged.EXIT_CODE
    except RuntimeError as error:
        if (sentence := ranks.lost_rank(error)) is None:
            raise
        print(f"{RankLost.__name__}: {sentence}", file=sys.stderr, flush=True)
        return RankLost.EXIT_CODE
    ranks.stop()
    # Python collects garbage as it ends: two seconds for the objects that torch and Megatron leave.
    gc.freeze()
    return code


def start_learner(recipe: Recipe, unsampled: Unsampled | None = None, *, remembers: bool = True) -> "Learner":
    """Joins the other ranks in the recipe's layout; a learner without weights (see `Checkpoints.load`).

    `unsampled` and `remembers` are those of `parts.table.build_learner`.

    Raises InputError for a model folder, a layout, a number of processes or a loss term that cannot work.
    """
    _check_world_size(recipe.trainer.num_processes)
    _choose_device(recipe.placement.device)
    shape = check_model_folder(model_folder(recipe.model))
    layout = check_layout(recipe, shape)
    check_supported(recipe, shape)
    check_packages(recipe, shape)
    check_terms(recipe.algorithm)
    # Megatron warns of each CUDA package that is missing, and on a CPU all of them are; torch's checkpoints
    # warn of their own internals.
    warnings.filterwarnings("ignore", module=r"(megatron|torch\.distributed)\..*")
    if recipe.trainer.deterministic:
        make_deterministic()
    ranks.start(
        threads=recipe.trainer.threads_per_process,
        seed=recipe.seed,
        layout=layout,
        timeout=timedelta(seconds=recipe.trainer.rank_timeout_seconds),
    )
    if not ranks.is_first():
        logging.getLogger("asyncrl").setLevel(logging.WARNING)
    from asyncrl.trainer.parts.table import build_learner

    millions = num_parameters(shape) / 1e6
    log.info("%s, %.1f million parameters, %s", shape.architecture, millions, find_dtype(recipe, shape))
    return build_learner(shape, recipe, unsampled, remembers=remembers)


def make_deterministic() -> None:
    """trainer.deterministic, before this process first uses a GPU: torch raises where it has no deterministic
    algorithm. A CPU is deterministic as it is; there this only forbids what a GPU could not repeat."""
    for name, value in DETERMINISTIC.items():
        os.environ.setdefault(name, value)
    torch.use_deterministic_algorithms(True)
    # Fills each new tensor with NaN: a search for defects, at a pass over memory each.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def end_now(error: BaseException) -> NoReturn:
    """Ends this process for an error of one of its threads; the others may be waiting for what it owes."""
    if isinstance(error, DiskError):
        end_on_full_disk(error)
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(1)


def end_on_full_disk(error: DiskError, *, has_launcher: bool = True) -> NoReturn:
    """Prints the error and ends with its exit code, which tells the launcher even if the log is on that disk.

    At once, because Python ends with another code when it cannot flush what was printed.
    """
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), _last_words(error, has_launcher=has_launcher).encode())
    os._exit(DiskError.EXIT_CODE)


def _last_words(error: AsyncrlError, *, has_launcher: bool) -> str:
    """The line for people, then that for the launcher."""
    sentence = f"{type(error).__name__}: {error}\n"
    return sentence + ending_line(error) if has_launcher else sentence


def _choose_device(device: str) -> None:
    """Hides the GPUs where the recipe wants the CPU, whoever started this process. Raises InputError where
    this rank would train on the CPU although there are GPUs, or has none of its own."""
    if device == "cpu":
        os.environ[VISIBLE] = ""
    if device == "cpu" or not has_gpu():
        return
    given = os.environ.get(VISIBLE, "all")
    if not torch.cuda.is_available():
        raise InputError(
            f"torch {torch.__version__} cannot use the GPUs of this machine ({VISIBLE}: {given}). Usually "
            f"the driver is older than CUDA {torch.version.cuda} needs: update it, or set placement.device "
            f"to cpu."
        )
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= count:
        raise InputError(
            f"LOCAL_RANK is {local_rank}, but this process sees {count} GPU(s) ({VISIBLE}: {given}). Start "
            f"no more ranks on a machine than it has GPUs for them."
        )


def _check_world_size(num_processes: int) -> None:
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != num_processes:
        raise InputError(
            f"WORLD_SIZE is {started} but trainer.num_processes is {num_processes}: start one process per "
            f"rank, or set trainer.num_processes to {started}."
        )
