"""A judgement of a pool on one response: the verdict, the attempts that failed before it, and the limit that
it met.

The rule, for every verifier: a response may cost its limit. Time, memory and recursion that it uses up make
it WRONG, since no response may cause a FAULT. Whatever else keeps a worker from its verdict is the verifier's
and a FAULT with its cause: it raises, it exits, it crashes, it does not load. Evidence decides, not a guess:

    what happened                                        verdict
    late, after half of the limit or more on the CPU     WRONG, the pool killed it for its time
    late, without the CPU                                FAULT: it slept, or the machine is overloaded
    MemoryError in cache_key or verify                   WRONG, at the limit on the address space
    RecursionError in verify                             WRONG; in cache_key or verify_fast, verify decides
    died of a signal with half of the memory limit       WRONG: the kernel, or C code without memory, ended it
      or more resident
    died of any other signal: a stack overflow past      FAULT, with the signal and the frames that the
      Python's limit, a bug in C code, a kill from       process had
      outside
    ended with an exit code, 0 included                  FAULT, with the code
    raised anything else                                 FAULT, with the traceback
    late or failed while it loads or reads the gold      FAULT: no response is to blame for that

A fault, and a limit on memory that an older worker met, is tried once more in a fresh worker. The built-in
verifiers obey the rule too: they bound recursion, sizes and memory beforehand, so that one that crashes all
the same has a defect of ours, which leaves the group and alarms."""

from dataclasses import dataclass
from enum import StrEnum

from verifiers.verdict import Verdict


class Limit(StrEnum):
    """Resources that a response may use up."""

    TIME = "time"
    MEMORY = "memory"
    RECURSION = "recursion"


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    faults: tuple[Verdict, ...] = ()
    """Faults of the attempts before the one that gave the verdict, in order."""
    limit: Limit | None = None
    """The one that the response met, where that is why it is WRONG."""
    group: bytes = b""
    """Verdicts on all responses of a group, packed by `groups.as_json`. `verdict` is then a fault where all
    of them are, and says nothing otherwise."""
