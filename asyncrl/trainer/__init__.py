"""Megatron-core training: batches, model, step, publish, checkpoints. Imports torch."""
