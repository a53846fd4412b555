"""The machine under a run: disk, memory, GPUs, ports, hub, digests. Knows nothing of training."""
