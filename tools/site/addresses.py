"""Write the address of the repository, $REPOSITORY_URL, where PyPI shows it: in the links of README.md, and as links of
the project. The workflow that builds wheels calls this in its own checkout."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from .links import LINK, outside_code

ROOT = Path(__file__).parents[2]


def absolute(text: str, repository: str, version: str) -> str:
    """Return a page whose relative links lead to the files of a release in the repository."""

    def address(link: re.Match[str]) -> str:
        name, target, anchor = link["text"], link["target"], link["anchor"] or ""
        if "://" in target or not target:
            return link[0]
        kind = "raw" if link["image"] else "blob"
        return f"{link['image']}[{name}]({repository}/{kind}/v{version}/{target}{anchor})"

    return outside_code(text, lambda prose: LINK.sub(address, prose))


def main() -> None:
    repository, site = os.environ.get("REPOSITORY_URL", "").rstrip("/"), os.environ.get("SITE_URL", "")
    if not re.match(r"https://\S+", repository):
        sys.exit("REPOSITORY_URL is not an address. Set it as in REPOSITORY_URL=https://example.org/unified_clip")
    settings = ROOT / "pyproject.toml"
    if "[project.urls]" in settings.read_text(encoding="utf-8"):
        sys.exit("pyproject.toml has the addresses already. Run this command once, in a fresh checkout.")
    package = (ROOT / "unified_clip" / "__init__.py").read_text(encoding="utf-8")
    version = re.findall(r'^__version__ = "(.+)"$', package, re.MULTILINE)[0]
    readme = ROOT / "README.md"
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), repository, version), encoding="utf-8")
    links = {"Repository": repository, "Documentation": site, "Changelog": f"{repository}/blob/v{version}/CHANGELOG.md"}
    with settings.open("a", encoding="utf-8") as file:
        file.write("\n[project.urls]\n" + "".join(f'{name} = "{link}"\n' for name, link in links.items() if link))


if __name__ == "__main__":
    main()
