"""The PATH on which programs of a run are found."""

import os
import sys
from pathlib import Path


def search_path() -> str:
    """PATH with this interpreter's folder in front: its programs are found where it is not activated, too."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
