"""Clip in trainers and optimizers. Each module imports only its own trainer or framework."""
