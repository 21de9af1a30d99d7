from pathlib import Path

import pytest

from unified_clip._atomic_write import atomic_write


def test_the_path_has_the_old_content_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with atomic_write(path) as new:
        new.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_file_is_unchanged_and_no_other_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with atomic_write(path) as new:
            new.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_remains_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with atomic_write(link) as new:
        new.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_the_name_of_the_file_can_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    with atomic_write(path) as new:
        new.write_text("new")
    assert path.read_text() == "new"


def test_several_files_are_written_at_the_same_time(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a") as a, atomic_write(tmp_path / "b") as b:
        a.write_text("text of a")
        b.write_text("text of b")
    assert [(tmp_path / name).read_text() for name in "ab"] == ["text of a", "text of b"]
