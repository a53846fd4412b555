"""Code inside SGLang processes: version spans on every chunk and, without a GPU, the CPU adapters."""
