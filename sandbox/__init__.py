"""An OS-level sandbox for untrusted programs: no daemon, no docker, as root or unprivileged; usable on its
own.

Start at `pool.SandboxPool`; the layers that this machine can enforce are printed by `asyncrl sandbox
doctor`."""
