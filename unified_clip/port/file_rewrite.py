"""The edits of one file, and the verdicts on its clips."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..source.edits import Edits
from ..source.module import Module
from ..source.scopes import Assignment
from ..source.tree import Target as NameNode
from ..source.tree import arguments_of, first_name, keywords_of, names_in
from .catalog import same_positions
from .found_clip import FoundClip
from .gradient_flow import Gradients
from .ported_clip import PortedClip, Target, Verdict


class FileRewrite:
    def __init__(self, module: Module, clips: Sequence[FoundClip], target: Target) -> None:
        self.module, self.clips, self.target = module, clips, target
        self.edits = Edits(module)
        self.renames = Renames(module, self.edits)
        self.gradients = Gradients(module)
        self.sites = {
            clip: PortedClip(*module.position(clip.node), clip.name, module.line(clip.node)) for clip in clips
        }

    def with_verdict(self, verdict: Verdict | None) -> list[FoundClip]:
        return [clip for clip in self.clips if self.sites[clip].verdict == verdict]

    def flag(self, clip: FoundClip, reason: str, rule: str = "") -> None:
        self._decide(clip, "flagged", reason, rule)

    def leave(self, clip: FoundClip, reason: str, rule: str = "") -> None:
        self._decide(clip, "left", reason, rule)

    def rename(self, clip: FoundClip, framework: str) -> None:
        module, name = f"unified_clip.{framework}", clip.function.replacement
        assert isinstance(clip.node, ast.Name | ast.Attribute)
        self.renames.add(clip.node, module, name)
        self._rename_arguments(clip)
        self._decide(clip, "rewritten")
        self.sites[clip].becomes = f"{module}.{name}"

    def _rename_arguments(self, clip: FoundClip) -> None:
        """Rename keyword arguments. Pass positional arguments by name if the replacement has another order."""
        if clip.call is None:
            return
        function = clip.function
        for keyword, argument in keywords_of(clip.call).items():
            if keyword in function.renamed:
                self.edits.rename_keyword(argument, function.renamed[keyword])
        pairs = zip(arguments_of(clip.call), function.new_names, strict=False)
        for argument, name in list(pairs)[same_positions(function) :]:
            if not argument.keyword and not argument.star:
                self.edits.pass_by_keyword(argument, name)

    def _decide(self, clip: FoundClip, verdict: Verdict, reason: str = "", rule: str = "") -> None:
        site = self.sites[clip]
        site.verdict, site.reason, site.rule = verdict, reason, rule


class Renames:
    """Replaces imported functions in the import statement, or at each use."""

    def __init__(self, module: Module, edits: Edits) -> None:
        self._module, self._edits = module, edits
        self._replacements: dict[NameNode, tuple[str, str]] = {}
        self._changed: dict[ast.ImportFrom | ast.Import, dict[ast.alias, str]] = {}
        """{import statement: {removed name: its replacement}}"""

        self._modules: dict[ast.ImportFrom | ast.Import, str] = {}

        self._beside: list[tuple[ast.stmt, str]] = []
        """(import statement, module to import below the statement)"""

        self._at_top: set[str] = set()

    def add(self, node: NameNode, module: str, name: str) -> None:
        self._replacements[node] = module, name

    def apply(self) -> None:
        by_import: dict[Assignment, list[NameNode]] = {}
        for node in self._replacements:
            assignment = self._assignment(node)
            if assignment is None:
                self._replace(node)
            else:
                by_import.setdefault(assignment, []).append(node)
        for assignment, nodes in by_import.items():
            self._by_import(assignment, nodes)
        for statement, changed in self._changed.items():
            self._change_import(statement, changed)
        for module in self._at_top:
            self._edits.add_import(module)
        for line, module in self._beside:
            if self._at_top and self._module.enclosing_function(line) is not None:
                self._edits.add_import(module)  # an import in the function would hide the import at the top
            else:
                self._edits.insert_after(line, f"import {module}")

    def _assignment(self, node: NameNode) -> Assignment | None:
        """Return the import of a name, or None if its import statement cannot be edited."""
        assignments = self._assignments(node)
        only = assignments[0] if len(assignments) == 1 else None
        if only is None or only.alias is None or not self._is_own(only):
            return None
        is_guarded = self._module.enclosing(only.node, ast.Try, ast.If) is not None
        return only if not is_guarded and self._module.has_own_line(only.node) else None

    def _assignments(self, node: NameNode) -> Sequence[Assignment]:
        first = first_name(node)
        return self._module.scope(first).find(first.id) if first is not None else []

    def _by_import(self, assignment: Assignment, nodes: Sequence[NameNode]) -> None:
        statement, alias = assignment.node, assignment.alias
        assert isinstance(statement, ast.Import | ast.ImportFrom)
        assert alias is not None
        all_change = {*assignment.reads} == {first_name(node) for node in nodes}
        replacements = {self._replacements[node] for node in nodes}
        if all_change and len(replacements) == 1 and all(isinstance(node, ast.Name) for node in nodes):
            ((module, name),) = replacements
            new = f"{name} as {assignment.name}" if assignment.name != name else name
            self._changed.setdefault(statement, {})[alias] = new
            self._modules[statement] = module
            return
        for node in nodes:
            self._replace(node)

    def _replace(self, node: NameNode) -> None:
        module, name = self._replacements[node]
        self._edits.replace(node, f"{module}.{name}")
        imports = [assignment for assignment in self._assignments(node) if assignment.alias is not None]
        if not imports or any(map(self._is_at_top, imports)):
            self._at_top.add(module)
        else:
            self._beside += [(self._module.statement(assignment.node), module) for assignment in imports]

    def _is_own(self, assignment: Assignment) -> bool:
        """Return whether the import binds a name of its own scope, and not a global or nonlocal name."""
        return assignment.name not in assignment.scope.elsewhere

    def _is_at_top(self, assignment: Assignment) -> bool:
        if not self._is_own(assignment) or not self._module.has_own_line(assignment.node):
            return True
        return self._module.parents[assignment.node] is self._module.tree

    def _change_import(self, statement: ast.Import | ast.ImportFrom, changed: dict[ast.alias, str]) -> None:
        names = ", ".join(sorted(changed.values()))
        new = f"from {self._modules[statement]} import {names}"
        if len(changed) == len(statement.names):
            self._edits.replace(statement, new)
        else:
            self._edits.remove_names(statement, [*changed])
            self._edits.insert_after(statement, new)


def is_name_taken(module: Module) -> bool:
    """Return whether the file uses the name unified_clip for anything else than the package."""
    scopes = [module.scope(node) for node in module.nodes if "unified_clip" in names_in(node)]
    assignments = [assignment for scope in scopes for assignment in scope.find("unified_clip")]
    return not all(map(_is_unified_clip, assignments))


def _is_unified_clip(assignment: Assignment) -> bool:
    alias = assignment.alias
    if alias is None or not isinstance(assignment.node, ast.Import):
        return False
    return alias.name == "unified_clip" or alias.asname is None
