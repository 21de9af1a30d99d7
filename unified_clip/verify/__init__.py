"""Run two training steps on the same weights and batches, and compare them: `unified-clip verify`."""


class InvalidStepError(Exception):
    """A training step cannot be compared. The message contains the reason."""
