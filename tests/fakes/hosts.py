"""Hosts on one machine, as namespaces of the kernel: each has its own network, its own processes and a folder
that no other host sees. They hang on one switch, whose ports can be pulled and plugged in again.

A host is made by a process, which dies with the test, however that ends, and takes what belongs to the host
along: processes, links, mounts. Needs root, or skips with what the kernel said.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

TOOLS = ("ip", "ss", "unshare", "nsenter", "setpriv")
"""Of Debian's iproute2 and util-linux."""
NETWORK = "10.77.0"
TEMPORARY = "/run/tmp"
"""Of each host its own; short, for the names of sockets."""


class Keeper:
    """The first process of namespaces: with it all of their processes die, and it dies with the test."""

    def __init__(self, *namespaces: str) -> None:
        """A network, processes and `namespaces`. Raises CalledProcessError where they are refused."""
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--pid", *namespaces]
        # The shell reaps processes that others leave behind, as the first process of a machine does.
        words += ["--fork", "--kill-child", "sh", "-c", "echo up; sleep infinity & wait"]
        self._outer = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._outer.stdout is not None and self._outer.stderr is not None
        if self._outer.stdout.readline() != "up\n":
            _, said = self._outer.communicate()
            raise subprocess.CalledProcessError(self._outer.returncode, words, stderr=said)
        self._outer.stdout.close()
        self._outer.stderr.close()
        (self._inner,) = psutil.Process(self._outer.pid).children()
        self.pid = self._inner.pid

    def end(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._inner.kill()
        self._outer.wait(timeout=300)

    def network(self, command: str) -> None:
        """Runs `command` in its network, with this machine's folders."""
        words = ["nsenter", f"--target={self.pid}", "--net", "--", *command.split()]
        subprocess.run(words, check=True, capture_output=True, text=True)


class Host:
    """A machine of its own, as far as its processes can tell; the software of this one is installed."""

    def __init__(self, index: int, folder: Path, hidden: Sequence[Path]) -> None:
        """`folder` has the same path outside; `hidden` are folders that it finds empty."""
        self.folder = folder
        self.address = f"{NETWORK}.{index}"
        self.port = f"port{index}"
        """Of the switch."""
        self._keeper = Keeper("--mount", "--mount-proc")
        self._started: list[subprocess.Popen[str]] = []
        covers = [f"mount -t tmpfs none '{path}'" for path in (*hidden, "/dev/shm", "/run")]
        try:
            self.run("sh", "-ec", "\n".join([*covers, f"mkdir {TEMPORARY}", "ip link set lo up"]))
        except BaseException:
            self.power_off()
            raise

    def command(self, *words: str) -> list[str]:
        """The command line that runs `words` on this host."""
        return ["nsenter", f"--target={self._keeper.pid}", "--net", "--mount", "--pid", "--", *words]

    def environment(self) -> dict[str, str]:
        """That of this process with the host's own folders."""
        return {**os.environ, **self.own_environment()}

    def own_environment(self) -> dict[str, str]:
        cache = str(self.folder / ".cache")
        return {"HOME": str(self.folder), "TMPDIR": TEMPORARY, "XDG_CACHE_HOME": cache}

    def run(self, *words: str) -> str:
        """What a command on this host prints. Raises CalledProcessError."""
        return subprocess.run(
            self.command(*words), check=True, capture_output=True, text=True, env=self.environment()
        ).stdout

    def start(self, *words: str, log: Path, **environment: str) -> subprocess.Popen[str]:
        with log.open("a") as output:
            process = subprocess.Popen(
                self.command(*words),
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env={**self.environment(), **environment},
            )
        self._started.append(process)
        return process

    def power_off(self) -> None:
        """Every process of the host is killed at once."""
        self._keeper.end()
        for process in self._started:
            process.wait(timeout=300)

    def plug_into(self, switch: Keeper) -> None:
        """An address on the switch's network, and a way to all others, as behind a gateway."""
        switch.network(f"ip link add {self.port} type veth peer name eth0 netns {self._keeper.pid}")
        switch.network(f"ip link set {self.port} master switch up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", f"{NETWORK}.254")


class Hosts:
    """Made by `make_hosts`."""

    def __init__(self, switch: Keeper, hosts: Sequence[Host]) -> None:
        self._switch = switch
        self.all = hosts

    def pull(self, host: Host) -> None:
        """Its cable: no packet comes or goes, and no connection is told."""
        self._switch.network(f"ip link set {host.port} down")

    def plug_in(self, host: Host) -> None:
        self._switch.network(f"ip link set {host.port} up")


@contextlib.contextmanager
def make_hosts(count: int, folder: Path) -> Iterator[Hosts]:
    """`count` hosts with folders in `folder`, each of which finds those of the others empty."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"hosts need {', '.join(missing)} (iproute2, util-linux)")
    folders = [folder / f"host{index}" for index in range(1, count + 1)]
    with contextlib.ExitStack() as stack:
        try:
            switch = Keeper()
            stack.callback(switch.end)
            switch.network("ip link add switch type bridge")
            switch.network("ip link set switch up")
            hosts = []
            for path in folders:
                path.mkdir()
            for index, path in enumerate(folders, 1):
                host = Host(index, path, [other for other in folders if other != path])
                stack.callback(host.power_off)
                host.plug_into(switch)
                hosts.append(host)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this kernel or user makes no hosts: {error.stderr.strip()}")
        yield Hosts(switch, hosts)
