"""One process among the trainer's: torch.distributed, rendezvous, adapters for CPUs."""
