"""Turns an ordinary process into the zygote's: namespaces, a minimal read-only root, no privileges, exec.
Users that root's programs run as: one of its own for each worker.

Owns what a run can see of the machine. `enter_namespaces` runs in a fresh single-threaded child of the
worker; whatever fails there ends that child with a message, and never leaves a half-confined zygote behind.
The kernel counts processes, and much else that it bounds, by user: with one user for all, one worker's
program could use up what the programs of the others need."""

import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from sandbox import kernel
from sandbox.interpreter import Interpreter

INSIDE_ID = 1000
NOBODY = 65534
_FIRST, _LAST = 61184, 65519
"""Kept free for users that exist for a while (systemd.io/UIDS-GIDS)."""
_SYSTEM = """
/usr/bin /usr/sbin /usr/lib /usr/lib32 /usr/lib64 /usr/libx32 /usr/libexec /usr/include /usr/share/zoneinfo
/usr/share/gcc /etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /etc/alternatives
""".split()
"""Read-only in the jail: programs, libraries and headers; no host configuration."""
_ROOT_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_HIDDEN = ("dist-packages", "site-packages")
_FILES = {
    "/etc/passwd": f"sandbox:x:{INSIDE_ID}:{INSIDE_ID}:sandbox:/work:/bin/sh\n",
    "/etc/group": f"sandbox:x:{INSIDE_ID}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_LINKS = {
    "/work": "/run/work",
    "/tmp": "/run/tmp",
    "/dev/shm": "/run/shm",
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}


@dataclass(frozen=True)
class View:
    """Paths that programs may read, host path -> path in the jail."""

    binds: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]
    """Directories of the jail that are shown empty."""


def plan_view(interpreter: Interpreter, extra: tuple[str, ...]) -> View:
    """The read-only view for this interpreter; `extra` paths appear where they are."""
    binds = [(os.path.realpath(path), path) for path in (*_SYSTEM, *extra) if os.path.exists(path)]
    for path in _ROOT_LINKS:
        if os.path.isdir(path) and not os.path.islink(path):
            binds.append((path, path))
    if not interpreter.is_system:
        binds.append((interpreter.prefix, interpreter.jail_prefix))
    binds += [(path, f"/packages/{os.path.basename(path)}") for path in interpreter.packages]
    hidden = ["/usr/lib/python3/dist-packages"]
    major, minor = interpreter.version
    for name in _HIDDEN:
        hidden.append(f"{interpreter.jail_prefix}/lib/python{major}.{minor}/{name}")
    return View(tuple(binds), tuple(hidden))


def _make_place(source: str, target: str) -> None:
    """An empty directory or file at `target` of the kind of `source`, to mount over."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if stat.S_ISDIR(os.stat(source).st_mode):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


def _furnish(root: str, view: View) -> None:
    """Fills the new root; the old one is at /old while this runs."""
    for path, content in _FILES.items():
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        with open(root + path, "w") as file:
            file.write(content)
    for name in ("run", "proc", "dev", "packages", "etc"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    for link, goal in _LINKS.items():
        os.symlink(goal, root + link)
    for link in _ROOT_LINKS:
        if os.path.islink(f"/old{link}"):
            os.symlink(os.readlink(f"/old{link}"), root + link)
    for name in _DEVICES:
        _make_place(f"/old/dev/{name}", f"{root}/dev/{name}")
        # A device can be written on a read-only mount; its times cannot.
        kernel.bind_read_only(f"/old/dev/{name}", f"{root}/dev/{name}", device=True)
    for source, target in view.binds:
        _make_place(f"/old{source}", root + target)
        kernel.bind_read_only(f"/old{source}", root + target)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | kernel.MS_RDONLY
    for path in view.hidden:
        if os.path.isdir(root + path):
            kernel.mount("tmpfs", root + path, "tmpfs", flags, "size=4k")
    # The kernel gives a run its own /proc only where an unmasked one is visible; the run's covers this one.
    kernel.mount("/old/proc", f"{root}/proc", None, kernel.MS_BIND | kernel.MS_REC)


def _change_root(view: View) -> None:
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    base = next(path for path in ("/tmp", "/run", "/mnt", "/var") if os.path.isdir(path))
    kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    os.mkdir(f"{base}/old")
    kernel.pivot_root(base, f"{base}/old")
    os.chdir("/")
    os.mkdir("/new")
    kernel.mount("tmpfs", "/new", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    _furnish("/new", view)
    os.mkdir("/new/.old")
    kernel.pivot_root("/new", "/new/.old")
    os.chdir("/")
    kernel.detach("/.old")
    os.rmdir("/.old")
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", "/", None, flags)


def _enter_user_namespace() -> None:
    uid, gid = os.getuid(), os.getgid()
    others = kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWCGROUP
    kernel.unshare(kernel.NEWUSER | others)
    # One line that maps the caller's own id needs no privilege; groups are given up first.
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{INSIDE_ID} {uid} 1"),
        ("gid_map", f"{INSIDE_ID} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def drop_root(user: int) -> None:
    """A root process becomes this unprivileged user; there is no way back."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # A change of user clears it, and the id maps below /proc/self would belong to root.
    kernel.set_dumpable(True)


def enter_namespaces(view: View, user: int) -> None:
    """Leaves the caller in its own namespaces and root, as an unprivileged user with two capabilities over
    them. `user` is the one that root becomes."""
    if os.getuid() == 0:
        # As root, sources that only root can reach can be shown; the mounts are locked for those
        # that come after.
        kernel.unshare(kernel.NEWNS)
        _change_root(view)
        drop_root(user)
        _enter_user_namespace()
    else:
        _enter_user_namespace()
        _change_root(view)
    kernel.keep_across_exec((kernel.CAP_SYS_ADMIN, kernel.CAP_SETPCAP))


def is_mapped(uid_map: str, user: int) -> bool:
    """Whether a user namespace knows this user, by the text of its uid_map."""
    for line in uid_map.splitlines():
        inside, _, count = map(int, line.split())
        if inside <= user < inside + count:
            return True
    return False


def claim_user() -> tuple[int, socket.socket | None]:
    """(a user that no other worker has, a socket that keeps it while it is open); if the caller is not root,
    the caller and None. Where there is none left, or the namespace has no such users: NOBODY, shared."""
    if os.getuid() != 0:
        return os.getuid(), None
    try:
        uid_map = Path("/proc/self/uid_map").read_text()
    except OSError:
        return NOBODY, None
    # Each from another place: processes of a worker that was killed may still be ending as its user.
    count = _LAST - _FIRST + 1
    for user in (_FIRST + (os.getpid() + at) % count for at in range(count)):
        if not is_mapped(uid_map, user):
            break
        # An abstract name is free again when its owner has ended, however it ended.
        claimed = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claimed.bind(f"\0asyncrl-sandbox-user-{user}")
            return user, claimed
        except OSError as error:
            claimed.close()
            if error.errno != errno.EADDRINUSE:
                break
    return NOBODY, None
