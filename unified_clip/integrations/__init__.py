"""Clip in trainers and optimizers: one module per trainer or framework, which imports it."""
