"""Run both training steps, each in its own process."""
