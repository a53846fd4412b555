"""The policy as a Megatron-core model, its weights' names and files."""
