"""The error of a training step that `unified-clip verify` cannot run or compare."""


class InvalidStepError(Exception):
    """A training step does not have the form that `docs/verify.md` describes, or --resync cannot set its weights."""
