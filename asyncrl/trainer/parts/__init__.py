"""Features of a step, each one class at the stages of `trainer.step.part`; objectives of the stages."""
