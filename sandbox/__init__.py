"""An OS-level sandbox for untrusted programs, usable alone: no daemon, no docker, as root or unprivileged.
Part of asyncrl.

Start at `pool.SandboxPool`; at `session.Session` for an interpreter that keeps its variables. What each tier
enforces, and how (K: the kernel bounds or refuses it; S: samples every 50 ms end a run that exceeds it; -:
not enforced):

                                            namespaces      landlock
    host files, processes, network          K               K (reads /usr and the interpreter)
    system calls, privileges                K               K
    wall time, output                       K               K
    CPU time of one process / together      K / S           K / S
    CPU time at the end of a run            exact           exact, but for children whose end is ignored
    memory of one process                   K               K
    memory together, with sockets           K with a memory cgroup, else S
    files on the disk                       K               S
    processes of a run                      K               K as root or with a pids cgroup, else S
    fork bombs against other workers        K               K as root, else -
    session, priority, scores of later runs K               K
    locks, times and leases of host files   K, but for advisory read locks
    shares of processor and caches          -               -

Limits are `command.Limits`. `asyncrl sandbox doctor` tries the layers of a machine and prints what it does
not enforce there."""
