"""Run two training steps on the same weights and batches, and compare them: `unified-clip verify`."""


class InvalidStepError(Exception):
    """A training step does not have the form that `docs/verify.md` describes, or --resync cannot set the weights."""
