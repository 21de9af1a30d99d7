"""The edits of one file, and the verdicts on its clips."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import cast

import libcst as cst

from ..config.formats.python_source import Source
from ..errors import ConfigError
from .found_clip import FoundClip
from .ported_clip import PortedClip, Target, Verdict
from .source import unused_result
from .source.edits import Edits
from .source.gradient_flow import Gradients
from .source.module import Module
from .source.renames import Renames
from .source.syntax_tree import keywords_of
from .to_config import of_family


class FileRewrite:
    def __init__(self, module: Module, clips: Sequence[FoundClip], target: Target, native: bool) -> None:
        self.module, self.clips, self.target, self.native = module, clips, target, native
        self.edits = Edits(module)
        self.renames = Renames(module, self.edits)
        self.gradients = Gradients(module)
        self.sites = {
            clip: PortedClip(*module.position(clip.node), clip.name, module.line(clip.node)) for clip in clips
        }
        self.rule = ""

    def why_unused(self, clip: FoundClip) -> str:
        """Return why no code uses the result of a clip, or ''."""
        assert clip.call is not None
        source, calls = self._parsed
        try:
            unused_result.check(source, calls[self.module.position(clip.call)])
        except ConfigError as error:
            return str(error)
        return ""

    @cached_property
    def _parsed(self) -> tuple[Source, Mapping[tuple[int, int], ast.Call]]:
        source = Source(self.module.tree.code, "")
        return source, unused_result.calls(source, self.module.tree.code)

    def with_verdict(self, verdict: Verdict | None) -> list[FoundClip]:
        return [clip for clip in self.clips if self.sites[clip].verdict == verdict]

    def flag(self, clip: FoundClip, reason: str) -> None:
        self._decide(clip, "flagged", reason)

    def leave(self, clip: FoundClip, reason: str) -> None:
        self._decide(clip, "left", reason)

    def rewrite(self, clip: FoundClip, replacement: str, family: str = "") -> None:
        site = self._decide(clip, "rewritten")
        site.becomes, site.becomes_meaning = replacement, of_family(site.meaning, family)

    def rename(self, clip: FoundClip, framework: str) -> None:
        module, name = f"unified_clip.{framework}", clip.function.replacement
        self.renames.add(clip.node, module, name)
        self.rename_arguments(clip)
        self.rewrite(clip, f"{module}.{name}")

    def rename_arguments(self, clip: FoundClip) -> None:
        """Rename keyword arguments. Pass positional arguments by name if the replacement has another order."""
        if clip.call is None:
            return
        function = clip.function
        for keyword, argument in keywords_of(clip.call).items():
            if keyword in function.renamed:
                self.edits.replace(cast(cst.Name, argument.keyword), function.renamed[keyword])
        for argument, name in list(zip(clip.call.args, function.new_names, strict=False))[function.same_positions :]:
            if argument.keyword is None:
                self.edits.pass_by_keyword(argument, name)

    def check(self, clip: FoundClip, *checks: str) -> None:
        self.sites[clip].checks += checks

    def _decide(self, clip: FoundClip, verdict: Verdict, reason: str = "") -> PortedClip:
        site = self.sites[clip]
        site.verdict, site.reason, site.rule = verdict, reason, self.rule
        return site
