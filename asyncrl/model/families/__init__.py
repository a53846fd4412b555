"""The families of models that are trained, one in each file (docs/models.md#adding-a-family)."""
