"""The error for a file whose trainer takes the clip settings from another place."""

from __future__ import annotations

from ...errors import ConfigError


class SetElsewhereError(ConfigError):
    """The clip settings are in another file or in the training script.

    problem: A sentence about the file.
    advice: Sentences that name the file or the code to import instead.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem} {advice}")
        self.problem = problem
