"""Contents of a model folder and needs of a model of that shape. No torch."""
