"""What a model folder holds and what a model of that shape needs. No torch."""
