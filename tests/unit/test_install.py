"""Installation: messages and pages show a command that works, and one page explains the installation."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from unified_clip._kit import install

ROOT = Path(__file__).parents[2]
PACKAGE = Path(install.__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.yml")]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(install, "PACKAGE_PARENT", tmp_path)
    return tmp_path


def installed_from(url: str | None, monkeypatch: pytest.MonkeyPatch, **details: Any) -> None:
    recorded = None if url is None else json.dumps({"url": url, **details})
    distribution = SimpleNamespace(read_text={"direct_url.json": recorded}.get)
    monkeypatch.setattr(metadata, "distribution", {"unified_clip": distribution}.__getitem__)


def test_a_clone_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(install, "PACKAGE_PARENT", tmp_path)
    assert install.command("cli") == f"pip install '{tmp_path}[cli]'"


def test_a_package_installed_from_a_clone_names_the_clone(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = site / "a clone"
    clone.mkdir()
    installed_from(clone.as_uri(), monkeypatch)
    assert install.command("port") == f"pip install '{clone}[port]'"


def test_a_clone_that_is_gone_is_a_placeholder_with_the_reason(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from("file:///absent/unified_clip", monkeypatch)
    assert install.command("cli") == (
        "pip install 'path/to/unified_clip[cli]' "
        "(replace path/to/unified_clip by the path of your clone: /absent/unified_clip no longer exists)"
    )


@pytest.mark.parametrize(
    ("url", "details", "requirement"),
    [
        (
            "https://example.org/unified_clip.git",
            {"vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "0a1b2c"}},
            "unified_clip[cli] @ git+https://example.org/unified_clip.git@0a1b2c",
        ),
        (
            "ssh://git@example.org/all.git",
            {"vcs_info": {"vcs": "git", "commit_id": "0a1b2c"}, "subdirectory": "clip"},
            "unified_clip[cli] @ git+ssh://git@example.org/all.git@0a1b2c#subdirectory=clip",
        ),
        (
            "https://example.org/unified_clip-0.1.0-py3-none-any.whl",
            {"archive_info": {"hashes": {"sha256": "00"}}},
            "unified_clip[cli] @ https://example.org/unified_clip-0.1.0-py3-none-any.whl",
        ),
    ],
)
def test_a_package_from_a_repository_or_an_archive_names_it(
    url: str, details: dict[str, Any], requirement: str, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_from(url, monkeypatch, **details)
    program, action, argument = shlex.split(install.command("cli"))
    assert (program, action, argument) == ("pip", "install", requirement)
    parsed = Requirement(argument)
    assert (parsed.name, parsed.extras) == ("unified_clip", {"cli"})


def test_a_package_that_is_not_installed_is_a_placeholder(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert install.command("cli") == (
        "pip install 'path/to/unified_clip[cli]' "
        "(replace path/to/unified_clip by the path of your clone: unified_clip was not imported from a clone)"
    )


def test_a_package_from_an_index_is_named_without_a_path(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from(None, monkeypatch)
    assert install.command("cli") == "pip install 'unified_clip[cli]'"


def test_messages_name_pages_and_headings_that_exist() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml", ".html")]
    texts = [path.read_text(encoding="utf-8") for path in files]
    named = set(re.findall(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?", " ".join(texts)))
    assert len(named) > 20
    for page, _, heading in (name.partition("#") for name in named):
        text = (ROOT / page).read_text(encoding="utf-8")
        slugs = {re.sub(r"[^\w -]", "", line).replace(" ", "-") for line in re.findall("^#+ (.+)$", text.lower(), re.M)}
        assert not heading or heading in slugs, f"{page}#{heading}"


def test_no_page_installs_from_the_package_index() -> None:
    """The package is not on the index: `pip install unified_clip` fails."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("`pip install unified_clip` fails", "")
        assert not re.findall(r"pip install[^\n]*(?<![/\w])unified_clip(?!\S*@git)", text), page


def test_pages_name_extras_that_exist() -> None:
    named = {
        extra
        for page in PAGES
        for extras in re.findall(r"(?:unified_clip|'\.)\[([\w,]+)\]", page.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    assert {"cli", "config"} <= named <= EXTRAS


def test_the_page_lists_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").partition("## Extras\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == sorted(EXTRAS)
