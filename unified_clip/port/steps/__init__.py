"""Training steps in source: where optimizers step, and what they step."""
