"""The error of a training step that `unified-clip verify` cannot run or compare."""


class InvalidStepError(Exception):
    """The error for a function or an output that does not have the form that `docs/verify.md` describes, or whose
    weights --resync cannot set.
    """
