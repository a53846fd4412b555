"""Asynchronous reinforcement learning with verifiable rewards, on SGLang and Megatron-core."""
