"""Mounted file systems of this machine, as Linux lists them for this process."""

from dataclasses import dataclass
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Mount:
    point: Path
    kind: str
    """Such as ext4, nfs4 or fuse.sshfs."""
    source: str


def mount_of(folder: Path, mountinfo: Path = MOUNTINFO) -> Mount | None:
    """The mount that holds `folder`; None where the list cannot be read."""
    path = folder.resolve()
    try:
        lines = mountinfo.read_text().splitlines()
    except OSError:
        return None
    holding = [mount for line in lines if (mount := _read(line)) and path.is_relative_to(mount.point)]
    # Of two at one point the later one hides the other.
    return max(reversed(holding), key=lambda mount: len(mount.point.parts), default=None)


def _read(line: str) -> Mount | None:
    """A line of proc_pid_mountinfo(5): fields, optional ones, "-", then kind, source and options."""
    fields, _, rest = line.partition(" - ")
    words, behind = fields.split(), rest.split()
    if len(words) < 5 or len(behind) < 2:
        return None
    return Mount(Path(_unescaped(words[4])), behind[0], _unescaped(behind[1]))


def _unescaped(text: str) -> str:
    """Blanks and backslashes are octal there: \\040."""
    for code in (0o40, 0o11, 0o12, 0o134):
        text = text.replace(f"\\{code:03o}", chr(code))
    return text
