"""The site: every page is in the navigation, every link leads somewhere, and every public name has its description.

`make docs` builds it strictly, in the nightly tier.
"""

from __future__ import annotations

import importlib
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import unified_clip.numpy
from unified_clip import cli
from unified_clip._command import subcommands
from unified_clip.config.formats import FORMATS
from unified_clip.facts import clips

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    """Return a module of tools/site, which is no installed package."""
    if "site_tools" not in sys.modules:
        folder = ROOT / "tools" / "site"
        spec = spec_from_file_location("site_tools", folder / "__init__.py", submodule_search_locations=[str(folder)])
        assert spec
        sys.modules["site_tools"] = module_from_spec(spec)
    return importlib.import_module(f"site_tools.{name}")


addresses, build, links, tabs, api, functions, llms, rendered = map(
    tool, ("addresses", "build", "links", "tabs", "api", "functions", "llms", "rendered")
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the site. A link or an anchor that leads nowhere is an error."""
    folder: Path = tmp_path_factory.mktemp("site")
    build.main(["--out", str(folder)])
    return folder


def test_every_page_is_in_the_navigation_once(site: Path) -> None:
    configuration = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), llms._Loader)
    listed = list(llms.pages(configuration["nav"]))
    assert sorted(listed) == sorted(path.relative_to(site).as_posix() for path in site.rglob("*.md"))


def test_llms_txt_describes_every_page(site: Path) -> None:
    lines = (site / "llms.txt").read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line.startswith("- [")]
    assert len(entries) == len(list(site.rglob("*.md")))
    assert [line for line in entries if not line.rpartition("/): ")[2].strip() or line.endswith("/)")] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](b.md#one-heading)", "[a](b.md#one-heading)"),
        ("[b.md](b.md)", "[The title](b.md)"),
        ("[rules](../LICENSE)", "[rules](https://example.org/x/blob/main/LICENSE)"),
        ("    [a](absent.md)\n", "    [a](absent.md)\n"),
        ("![plot](../plot.svg)", "![plot](plot.svg)"),
    ],
)
def test_links_are_rewritten_for_the_site(
    tmp_path: Path, text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "REPOSITORY", "https://example.org/x")
    assert repository(tmp_path).mend("a.md", text) == expected


def test_without_an_address_of_the_repository_the_site_does_not_link_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "REPOSITORY", "")
    assert repository(tmp_path).mend("a.md", "[rules](../LICENSE)") == "rules"


def test_a_package_index_gets_absolute_links_to_the_release() -> None:
    others = " [f](https://g.org), [h](#i)\n```\n[a](b.md)\n```\n"
    assert addresses.absolute("[a](b.md#c), ![d](e.png)," + others, "https://example.org/x", "1.2") == (
        "[a](https://example.org/x/blob/v1.2/b.md#c), ![d](https://example.org/x/raw/v1.2/e.png)," + others
    )


@pytest.mark.parametrize("text", ["[a](absent.md)", "[a](b.md#absent)", "[a](#absent)"])
def test_a_broken_link_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(links.BrokenLinkError, match="absent"):
        repository(tmp_path).mend("a.md", text)


def repository(folder: Path) -> Any:
    (folder / "docs").mkdir()
    for name, text in {
        "docs/a.md": "# A",
        "docs/b.md": "# The title\n\n## One `heading`",
        "LICENSE": "",
        "plot.svg": "",
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    return links.Links(folder, {name: folder / "docs" / name for name in ("a.md", "b.md")}, {})


def test_marked_sections_are_tabs() -> None:
    text = "A\n<!-- tabs -->\n## One\n\nx\n\n## Two\n\ny\n<!-- end of tabs -->\nB"
    assert tabs.with_tabs(text) == 'A\n=== "One"\n\n    x\n\n=== "Two"\n\n    y\n\nB'


def test_the_quickstart_has_a_tab_for_each_framework(site: Path) -> None:
    text = (site / "quickstart.md").read_text(encoding="utf-8")
    assert text.count('\n=== "') == len(api.NAMESPACES)


def test_every_public_name_has_a_description(site: Path) -> None:
    described = "\n".join(path.read_text(encoding="utf-8") for path in (site / "api").glob("*.md"))
    names = [*unified_clip.__all__, *unified_clip._LATER]  # tests/contract/test_names.py: all frameworks have them
    names = [name for name in names if getattr(unified_clip, name).__name__ == name]  # without aliases
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"::: unified_clip\S*\.{name}\n", described)] == []


def test_every_public_module_has_a_page(site: Path) -> None:
    section = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8").partition("## Public modules")[2]
    described = {module for _, modules in api.PAGES.values() for module in modules}
    of_frameworks = re.findall(
        r"^\| `(unified_clip\.\w+)` \|", (site / "api/unified_clip.md").read_text(), re.MULTILINE
    )
    described |= set(of_frameworks)
    assert set(re.findall(r"`(unified_clip[\w.]*)`", section)) - described == set()


def test_every_command_has_a_section_with_its_options(site: Path) -> None:
    text = (site / "commands.md").read_text(encoding="utf-8")
    runnable = [(name, parser) for name, parser in subcommands(cli._parser()) if parser.get_default("run")]
    assert len(runnable) > 10
    for name, parser in runnable:
        section = text.partition(f"\n## unified-clip {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for option in ("--format", "--ported"):
            assert (f"`{option} " in section) == any(option in action.option_strings for action in parser._shown())


def test_every_function_with_a_replacement_has_a_page() -> None:
    """These are the functions that `port` rewrites, by the names of current releases."""
    current = re.compile(r"(torch\.nn\.utils|paddle\.nn|tf\.(?!contrib|keras)|optax)\.?[\w.]*(?<!clip_grad_norm)")
    catalog = clips.clip_functions().values()
    names = {function.name for function in catalog if function.replacement and current.fullmatch(function.name)}
    assert len(names) > 12
    assert names - {function["name"] for function in functions.FUNCTIONS} == set()


def test_a_page_of_a_function_has_its_deviations_and_the_lines_that_replace_it(site: Path) -> None:
    text = (site / "functions" / "tf.clip_by_norm.md").read_text(encoding="utf-8")
    assert text.startswith("# `tf.clip_by_norm` in PyTorch, Paddle and JAX\n")
    assert text.count("uc.clip_by_norm(") == 1
    assert "| repeated rows of an embedding's gradient are not summed | 78 % |" in text
    assert "`paddle.nn.ClipGradByNorm`" in text
    assert "`*`" not in text
    assert "| `tf.clip_by_global_norm`, `tf.clip_by_norm`, " in text


def test_every_library_has_a_row(site: Path) -> None:
    text = (site / "libraries.md").read_text(encoding="utf-8")
    assert all(
        f"({path.relative_to(ROOT / 'docs').as_posix()}" in text for path in (ROOT / "docs/integrations").glob("*.md")
    )
    assert re.findall(r"^\| Keras \|.*$", text, re.MULTILINE) == [
        "| Keras | [yes](integrations/keras.md) | `keras` | yes | yes |"
    ]
    assert "| DeepSpeed |  | `deepspeed` | yes |  |" in text
    assert "| Transformers | [yes](integrations/transformers.md) | `hf` | yes | yes |" in text
    assert all(f"`{name}`" in text for name in FORMATS)


@pytest.mark.nightly
def test_the_gallery_has_its_reports(tmp_path: Path) -> None:
    gallery = tool("gallery")
    gallery.write(tmp_path)
    assert {path.name for path in (tmp_path / "reports").iterdir()} == set(gallery.REPORTS)
    assert "Per tensor for global" in (tmp_path / "reports" / "comparison.html").read_text(encoding="utf-8")


def test_a_known_difference_without_a_page_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = tmp_path / "known.toml"
    known.write_text('[[known]]\nframework = "torch"\nfunction = "torch.nn.other"\n', encoding="utf-8")
    monkeypatch.setattr(functions, "KNOWN", known)
    with pytest.raises(ValueError, match=r"functions\.toml lacks a function: torch\.nn\.other"):
        functions.pages()
