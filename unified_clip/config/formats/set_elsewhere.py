"""The error for a file whose clip settings are in another place."""

from __future__ import annotations

from ...errors import ConfigError


class SetElsewhereError(ConfigError):
    """The clip settings are in another file or in the training script.

    problem: A sentence about the file.
    advice: Sentences about what to import instead.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem} {advice}")
        self.problem = problem
