"""Kernels and processes of SGLang servers without a GPU."""
