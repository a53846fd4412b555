"""Arithmetic that the server and the trainer share bit for bit (model.bitwise_agreement), on a CPU."""
