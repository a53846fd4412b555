"""The section `verifying`."""

from pathlib import Path
from typing import Annotated, Any

from asyncrl.recipe.markers import CHANGEABLE, OBJECT, PATH, TASK_ROWS
from asyncrl.recipe.sections.section import Positive, PositiveFloat, Section


class Verifying(Section):
    """How responses are graded."""

    default: Annotated[str, OBJECT, TASK_ROWS] = "math"
    """Verifier for rows that name none: a built-in, "package.module:Name" or "./file.py:Name"."""
    options: Annotated[dict[str, Any], OBJECT, TASK_ROWS] = {}
    """Options of the default verifier."""
    folder: Annotated[str | None, PATH, CHANGEABLE, TASK_ROWS] = None
    """Folder that "./file.py:Name" in a data row is relative to. Default: the recipe's folder."""
    num_workers: Annotated[Positive, CHANGEABLE] = 1
    """Worker processes for symbolic checks and for verifiers of your own. Built-in ones grade plain answers
    without them."""
    timeout_seconds: PositiveFloat = 2.0
    """Wall-clock limit of one verification. Past it the worker is killed. The answer is wrong if it had the
    CPU for half of that time; else the verifier waited, which is a fault."""
    max_faults_in_a_row: Annotated[Positive, CHANGEABLE] = 24
    """Faults without a verdict between them, retries included, after which the run ends with the verifier's
    error, if they span at least 20 seconds. Raise it for a remote verifier with longer outages."""

    def own_files(self) -> Path:
        """Folder that "./file.py:Name" is relative to."""
        return Path(self.folder or ".")
