"""Runs a script as `python FILE ARGUMENTS` does, forked by a `Template`; its stderr goes to a file."""

import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    errors, script = sys.argv[1:3]
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    sys.argv[:] = sys.argv[2:]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
