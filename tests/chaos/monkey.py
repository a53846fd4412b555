"""Breaks one part of a run at a time: servers, trainer, controller, files, and what plays turns."""

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterable

import psutil
from fakes.processes import descendants, wait_for_end
from fakes.small_disk import SmallDisk
from fakes.whole_run import WholeRun

FULL_DISK_SECONDS = 120.0
VICTIM_SECONDS = 2.0
"""For a process in the state that is asked for, before any other will do."""
Fault = Callable[[], str | None]
"""Breaks something and says what; None where it is not there."""


class Monkey:
    """Each method returns what it did, or None when the part is not there."""

    def __init__(self, run: WholeRun, chance: random.Random, disks: dict[str, SmallDisk]) -> None:
        self.run, self.chance, self.disks = run, chance, disks

    def faults(self) -> list[tuple[Fault, int]]:
        """Its faults, and how often each comes relative to the others."""
        kinds: list[tuple[Fault, int]] = [
            (self.kill_a_server, 3),
            (self.kill_the_trainer, 3),
            (self.kill_the_controller, 2),
            (self.kill_a_verifier_worker, 1),
            (self.stop_a_server, 1),
            (self.stop_the_trainer, 1),
            (self.flip_a_bit_of_a_publication, 2),
        ]
        if self.disks:
            kinds += [(self.fill_the_disk_of_the_journal, 1), (self.fill_the_disk_of_the_run, 1)]
        return kinds

    def kill_a_server(self) -> str | None:
        return self._signal("sglang.launch_server", signal.SIGKILL)

    def kill_the_trainer(self) -> str | None:
        return self._signal("asyncrl.trainer.main", signal.SIGKILL)

    def kill_a_verifier_worker(self) -> str | None:
        return self._signal("verifiers", signal.SIGKILL)

    def stop_a_server(self) -> str | None:
        return self._signal("sglang.launch_server", signal.SIGSTOP)

    def stop_the_trainer(self) -> str | None:
        return self._signal("asyncrl.trainer.main", signal.SIGSTOP)

    def kill_the_controller(self) -> str | None:
        family = self.run.family()
        self.run.kill(signal.SIGKILL)
        self.run.finish()
        left = wait_for_end(family, seconds=10.0)
        self.run.start()
        return f"killed the controller; {len(left)} processes outlived it"

    def fill_the_disk_of_the_journal(self) -> str:
        return self._fill("journal", said=["JournalError: The journal"])

    def fill_the_disk_of_the_run(self) -> str:
        # The other one where the run has not begun again since the last fault.
        return self._fill("run", said=["Free up disk space", "Free some"])

    def _fill(self, name: str, *, said: list[str]) -> str:
        disk, num_characters = self.disks[name], len(self.run.output())
        family, deadline = self.run.family(), time.monotonic() + FULL_DISK_SECONDS
        assert self.run.process is not None
        while self.run.process.poll() is None:
            if time.monotonic() > deadline:
                raise SystemExit(f"the run continues with a full disk:\n{self.run.output()[-4000:]}")
            # Again and again: publications that are deleted make room.
            disk.fill()
            time.sleep(0.05)
        output = self.run.output()[num_characters:]
        is_said = any(words in output for words in said) and "Traceback" not in output
        if self.run.process.returncode not in (1, 2) or not is_said:
            raise SystemExit(f"the disk of the {name} was full: {self.run.process.returncode}\n{output}")
        left = wait_for_end(family, seconds=10.0)
        disk.clear()
        self.run.start()
        return f"filled the disk of the {name}; {len(left)} processes outlived the run"

    def flip_a_bit_of_a_publication(self) -> str | None:
        files = list((self.run.run_folder / "publications").glob("*/*.safetensors"))
        if not files:
            return None
        path = max(files, key=lambda file: file.stat().st_mtime)
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            place = self.chance.randrange(path.stat().st_size // 2, path.stat().st_size)
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1 << self.chance.randrange(8)]))
            return f"flipped a bit of {path.parent.name}/{path.name}"
        return None

    def _signal(self, word: str, number: signal.Signals) -> str | None:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found = self.run.children(word)
            if found:
                victim = self.chance.choice(found)
                victim.send_signal(number)
                return f"{number.name} to {word} ({victim.pid})"
        return None


class PlayersMonkey(Monkey):
    """For runs whose trajectories have turns: what answers them dies too, at work or while the model writes.

    Environments and agents mark when they are at work by a file; see `game.py` and `agent.py`."""

    def faults(self) -> list[tuple[Fault, int]]:
        # A verifier's worker may not exist: these verifiers are asked by agents alone.
        shared: list[tuple[Fault, int]] = [
            (self.kill_a_server, 2),
            (self.kill_the_trainer, 2),
            (self.kill_the_controller, 2),
            (self.stop_a_server, 1),
            (self.flip_a_bit_of_a_publication, 1),
        ]
        return shared + self.own_faults()

    def own_faults(self) -> list[tuple[Fault, int]]:
        raise NotImplementedError

    def _kill(
        self,
        what: str,
        find: Callable[[], Iterable[psutil.Process]],
        is_at_work: Callable[[psutil.Process], bool],
    ) -> str | None:
        """Half of the time one that is at work, half of the time another one, as far as there are such."""
        wanted = self.chance.random() < 0.5
        deadline = time.monotonic() + VICTIM_SECONDS
        while True:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                found = list(find())
                fitting = [process for process in found if is_at_work(process) is wanted]
                if fitting or (found and time.monotonic() > deadline):
                    victim = self.chance.choice(fitting or found)
                    state = "at work" if is_at_work(victim) else "while the model writes"
                    victim.kill()
                    return f"killed {what} ({victim.pid}) {state}"
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)


class TurnsMonkey(PlayersMonkey):
    def own_faults(self) -> list[tuple[Fault, int]]:
        return [(self.kill_an_environment, 3), (self.kill_the_template, 2), (self.kill_a_session, 3)]

    def kill_an_environment(self) -> str | None:
        return self._kill("an environment", self._environments, self._is_answering)

    def kill_the_template(self) -> str | None:
        answering = sum(map(self._is_answering, self._environments()))
        if self._signal("asyncrl.turns.host", signal.SIGKILL) is None:
            return None
        return f"killed the template of environments, {answering} of them at work"

    def kill_a_session(self) -> str | None:
        """The tool python's: all processes below an environment's."""
        found = [process for each in self._environments() for process in descendants(each.pid)]
        if not found:
            return None
        victim = self.chance.choice(sorted(found, key=lambda process: process.pid))
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
            return f"killed a process of a sandbox session ({victim.pid})"
        return None

    def _environments(self) -> list[psutil.Process]:
        templates = self.run.children("asyncrl.turns.host")
        return sorted((each for t in templates for each in t.children()), key=lambda process: process.pid)

    def _is_answering(self, environment: psutil.Process) -> bool:
        return (self.run.folder / "at_work" / str(environment.pid)).exists()


class AgentMonkey(PlayersMonkey):
    def own_faults(self) -> list[tuple[Fault, int]]:
        return [(self.kill_an_agent, 5)]

    def kill_an_agent(self) -> str | None:
        return self._kill("an agent", lambda: self.run.children("chaos_agent.py"), self._is_at_work)

    def _is_at_work(self, agent: psutil.Process) -> bool:
        return (self.run.folder / "at_work" / str(agent.pid)).exists()
