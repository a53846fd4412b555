"""One optimizer step: log-probs to loss, gradients, weights."""
