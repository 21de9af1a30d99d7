"""Clip in trainers and optimizers: one module for each, which imports it."""
