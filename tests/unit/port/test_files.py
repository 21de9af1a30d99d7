"""Several files: which ones are read, unreadable files beside others, and writing all files or none."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.port import faults as port_faults

from unified_clip import cli
from unified_clip._kit import atomic_files
from unified_clip._kit.coded_error import CodedError
from unified_clip._kit.parse import TOO_DEEP
from unified_clip.port import port_files
from unified_clip.port.port_files import PortError
from unified_clip.port.ported_clip import PortedFile
from unified_clip.source.project import Project

CLIPS = "import torch\n\ntorch.nn.utils.clip_grad_norm_(parameters, 1.0)\n"
PORTED = "import torch\nimport unified_clip.torch\n\nunified_clip.torch.clip_grad_norm_(parameters, 1.0)\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("train.py", "models/net.py", "notes.txt", ".hidden/a.py", "__pycache__/b.py", "env/lib/c.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CLIPS)
    (tmp_path / "env/pyvenv.cfg").touch()
    return tmp_path


@pytest.fixture
def git(project: Path) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        command = ["git", "-C", str(project), "-c", "user.name=n", "-c", "user.email=e", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    run("init", "-q")
    run("add", "train.py", "models")
    run("commit", "-qm", "all")
    return run


def test_all_python_files_of_a_directory_are_read_except_hidden_ones_and_environments(project: Path) -> None:
    paths = [path.relative_to(project).as_posix() for path in port_files.sources(project)]
    assert paths == ["models/net.py", "train.py"]


def test_a_passed_file_without_a_suffix_is_read(project: Path) -> None:
    script = (project / "notes.txt").rename(project / "script")
    assert port_files.sources(script) == [script]


@pytest.mark.parametrize(("name", "message"), [("none", "No such file"), ("empty", "there are no Python files")])
def test_a_missing_path_is_rejected(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CodedError, match=message):
        port_files.sources(tmp_path / name)


def test_an_unreadable_file_is_reported_and_other_files_are_ported(project: Path) -> None:
    (project / "old.py").write_text("# clip_grad_norm_\nprint 'hello'\n")
    (project / "bytes.py").write_bytes(b"clip_grad_norm_ = '\xff'\n")
    (project / "comment.py").write_bytes(CLIPS.encode() + b"# caf\xe9\n")
    (project / "first_line.py").write_bytes(b"# caf\xe9\n" + CLIPS.encode())
    (project / "codec.py").write_bytes(b"# coding: hex\n" + CLIPS.encode())
    (project / "coding.py").write_bytes(b"# coding: absent\nclip_grad_norm_ = 1\n")
    (project / "gone.py").symlink_to(project / "nowhere")
    ported, unread = port_files.port_all(port_files.sources(project))
    assert [each.path.name for each in ported if each.sites] == ["net.py", "train.py"]
    reasons = {each.path.name: each.reason for each in unread}
    assert reasons["old.py"].startswith("Line 2 is not valid in Python 3, and the file seems to be Python 2. C")
    assert "gone.py cannot be read: No such file" in reasons["gone.py"]
    for name in ("bytes.py", "comment.py", "first_line.py", "codec.py", "coding.py"):
        assert "cannot be decoded" in reasons[name]
        assert reasons[name].endswith("remove a comment such as `# coding: latin-1` from its first two lines.")


@pytest.mark.parametrize(
    "code",
    [
        "(" * 30_000 + ")" * 30_000,
        "not " * 30_000 + "1",
        "+".join("1" * 30_000),
        "a" + ".b" * 30_000,
        "a" + ".b" * 900,
    ],
    ids=["parentheses", "not", "sum", "attributes", "fewer attributes"],
)
def test_a_file_that_is_nested_too_deep_is_reported(tmp_path: Path, code: str) -> None:
    path = tmp_path / "deep.py"
    path.write_text(f"import torch\n\ntorch.nn.utils.clip_grad_norm_(parameters, {code})\n")
    _, (unread,) = port_files.port_all([path])
    assert unread.reason == TOO_DEEP


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("print 'x'", "Line 1 is not valid in Python 3, and the file seems to be Python 2."),
        ("x = 0777", "Line 1 is not valid Python: leading zeros in decimal integer literals are not permitted"),
        (
            "x: int y",
            "Line 1 is not valid Python: invalid syntax. Correct the line. If the code needs a newer Python than 3.",
        ),
    ],
    ids=["Python 2", "octal of Python 2", "newer Python"],
)
def test_a_file_that_python_cannot_parse_is_reported_with_its_line(tmp_path: Path, first: str, reason: str) -> None:
    path = tmp_path / "deep.py"
    path.write_text(f"{first}\nx = clip_grad_norm_({'f' + '(1, 2)' * 30_000})\n")
    _, (unread,) = port_files.port_all([path])
    assert unread.reason.startswith(reason)


def test_a_project_and_port_parse_each_file_once(tmp_path: Path) -> None:
    read: list[Path] = []

    def content(path: Path) -> bytes:
        read.append(path)
        return path.read_bytes()

    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text("LIMIT = 1.0\n")
    second.write_text("import torch\nfrom a import LIMIT\ntorch.nn.utils.clip_grad_norm_(parameters, LIMIT)\n")
    project = Project([first, second], content)
    ported, _ = port_files.port_all([first, second], edit=False, project=project)
    assert [len(file.sites) for file in ported] == [0, 1]
    assert project.module(second).path == second
    assert read == [first, second]


def test_a_crash_of_a_process_is_an_error(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number:03}.py" for number in range(port_files.FEW_FILES + 5)]
    paths[3] = tmp_path / "kills.py"
    with pytest.raises(PortError, match="A process crashed or ran out of memory while it read a file"):
        list(port_files._results(port_faults.unless_it_kills, paths))


@pytest.mark.nightly
def test_several_processes_port_files_as_one_process_does(tmp_path: Path) -> None:
    counted: list[int] = []
    for number in range(port_files.FEW_FILES + 5):
        (tmp_path / f"{number:03}.py").write_text(CLIPS)
    paths = port_files.sources(tmp_path)
    results, _ = port_files.port_all(paths, advance=counted.append)
    assert sum(counted) == len(paths)
    assert results == port_files.port_all(paths[:20])[0] + port_files.port_all(paths[20:])[0]
    assert {each.after for each in results} == {PORTED.encode()}


def test_nothing_is_written_if_a_file_has_changed_since_it_was_read(project: Path) -> None:
    paths = port_files.sources(project)
    ported, _ = port_files.port_all(paths)
    paths[-1].write_text("changed = 1\n")
    with pytest.raises(PortError, match=r"train.py: another program changed this file"):
        port_files.write(ported)
    assert paths[0].read_text() == CLIPS
    assert [path.name for path in paths[0].parent.iterdir()] == ["net.py"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_nothing_is_written_if_a_directory_is_not_writable(project: Path) -> None:
    ported, _ = port_files.port_all(port_files.sources(project))
    project.chmod(0o555)
    with pytest.raises(PortError, match=r"(net|train)\.py cannot be written: Permission denied\. .* No file was"):
        port_files.write(ported)
    project.chmod(0o755)
    assert (project / "models/net.py").read_text() == CLIPS


def test_nothing_is_written_if_the_disk_is_full(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ported, _ = port_files.port_all(port_files.sources(project))
    beside = atomic_files.write_beside

    def fail(path: Path, content: bytes) -> Path:
        if path.name == "train.py":
            raise OSError(28, "No space left on device")
        return beside(path, content)

    monkeypatch.setattr(atomic_files, "write_beside", fail)
    with pytest.raises(PortError, match=r"train.py cannot be written: No space left on device. .* No file was changed"):
        port_files.write(ported)
    assert (project / "models/net.py").read_text() == CLIPS
    assert [path.name for path in (project / "models").iterdir()] == ["net.py"]


@pytest.mark.skipif(not hasattr(os, "chown") or os.geteuid() != 0, reason="only root may set the owner of a file")
def test_root_keeps_the_owner_of_a_file(project: Path) -> None:
    os.chown(project / "train.py", 1234, 4321)
    port_files.write(port_files.port_all([project / "train.py"])[0])
    status = (project / "train.py").stat()
    assert (project / "train.py").read_text() == PORTED
    assert (status.st_uid, status.st_gid) == (1234, 4321)


def run_as_author(command: str) -> None:
    identity = "GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e"
    subprocess.run(f"export {identity}; {command}", shell=True, check=True, capture_output=True)


def test_committed_files_may_be_changed(project: Path, git: Callable[..., str]) -> None:
    port_files.check_clean(port_files.sources(project))


@pytest.mark.parametrize("name", ["train.py", "new.py", "staged.py"])
def test_uncommitted_files_are_not_changed(project: Path, git: Callable[..., str], name: str) -> None:
    (project / name).write_text(CLIPS + "# more\n")
    if name == "staged.py":
        git("add", name)
    with pytest.raises(
        PortError,
        match=rf"{name} has code that is not committed, .* Commit your files: `git -C \S+ add {name} && git -C",
    ):
        port_files.check_clean(port_files.sources(project))
    port_files.check_clean([project / "models/net.py"])


def test_one_command_commits_the_files_of_all_directories(project: Path, git: Callable[..., str]) -> None:
    for name in ("train.py", "models/net.py"):
        (project / name).write_text(CLIPS + "# more\n")
    with pytest.raises(PortError, match=r"add models/net.py train.py && ") as caught:
        port_files.check_clean(port_files.sources(project))
    run_as_author(str(caught.value).split("`")[1])
    port_files.check_clean(port_files.sources(project))


def test_ignored_files_are_not_changed(project: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".gitignore").write_text("new.py\n")
    (project / "new.py").write_text(CLIPS)
    (project / "train.py").write_text(CLIPS + "# more\n")
    monkeypatch.chdir(project)
    paths = [Path("train.py"), Path("new.py")]
    with pytest.raises(PortError, match=r"train.py has code that is not committed") as caught:
        port_files.check_clean(paths)
    advice = str(caught.value).split("`")[1]
    assert advice == "git add -f train.py new.py && git commit -m 'Before porting'"
    run_as_author(advice)
    port_files.check_clean(paths)


def test_a_nested_repository_decides_about_its_own_files(project: Path, git: Callable[..., str]) -> None:
    inner = project / "inner"
    inner.mkdir()
    (inner / "a.py").write_text(CLIPS)
    within = ["git", "-C", str(inner), "-c", "user.name=n", "-c", "user.email=e"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*within, *arguments], check=True)
    port_files.check_clean([inner / "a.py"])
    (inner / "a.py").write_text(CLIPS + "# more\n")
    with pytest.raises(PortError, match=r"a.py has code that is not committed"):
        port_files.check_clean([inner / "a.py"])
    (project / "train.py").write_text(CLIPS + "# more\n")
    with pytest.raises(PortError, match=r"inner add a.py && "):  # of the first repository only
        port_files.check_clean([inner / "a.py", project / "train.py"])


def test_without_git_nothing_is_changed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project))
    with pytest.raises(PortError, match="git is not installed"):
        port_files.check_clean(port_files.sources(project))


@pytest.mark.parametrize("error", [OSError(1, "Operation not permitted", "net.py"), KeyboardInterrupt()])
def test_replaced_files_are_restored_if_another_file_cannot_be_replaced(
    project: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = port_files.sources(project)
    ported, _ = port_files.port_all(paths)
    replace, replaced = Path.replace, []

    def fail(made: Path, path: Path) -> Path:
        replaced.append(path.name)
        if replaced == ["net.py", "train.py"]:
            raise error
        return replace(made, path)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(PortError if isinstance(error, OSError) else KeyboardInterrupt):
        port_files.write(ported)
    assert replaced[0] == "net.py"
    assert [path.read_text() for path in paths] == [CLIPS, CLIPS]
    assert not list(project.rglob(".*.py.*"))


def test_an_interrupt_before_the_first_replacement_leaves_no_files(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ported, _ = port_files.port_all(port_files.sources(project))
    beside = atomic_files.write_beside

    def fail(path: Path, content: bytes) -> Path:
        if path.name == "train.py":
            raise KeyboardInterrupt
        return beside(path, content)

    monkeypatch.setattr(atomic_files, "write_beside", fail)
    with pytest.raises(KeyboardInterrupt):
        port_files.write(ported)
    assert not list(project.rglob(".*.py.*"))


def test_a_pipe_is_not_read(project: Path) -> None:
    os.mkfifo(project / "pipe.py")
    assert "pipe.py" not in [path.name for path in port_files.sources(project)]


def test_files_outside_of_a_repository_are_not_changed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PortError, match=r"net.py is not in a git repository, .* the files anyway, add --force\.$"):
        port_files.check_clean(port_files.sources(project))
    monkeypatch.chdir(project)
    with pytest.raises(PortError, match=r"train.py is not in a git repository, .* Run `git init` in the top directory"):
        port_files.check_clean([Path("train.py")])


def test_files_of_a_repository_without_a_commit_are_not_changed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    subprocess.run(["git", "init", "-q"], check=True)
    with pytest.raises(PortError, match=r"train.py has code that is not committed") as caught:
        port_files.check_clean([Path("train.py")])
    advice = str(caught.value).split("`")[1]
    assert advice == "git add train.py && git commit -m 'Before porting'"
    run_as_author(advice)
    port_files.check_clean([Path("train.py")])


def test_a_repository_that_git_does_not_read_is_reported_with_its_reason(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    (project / ".git").write_text("gitdir: absent\n")
    with pytest.raises(
        PortError,
        match=r"^git cannot read the repository of train.py: fatal: .*absent.*\. Repair it\. To change the files",
    ):
        port_files.check_clean([Path("train.py")])


def test_files_without_a_clip_keep_no_content(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    assert port_files.port_all([tmp_path / "a.py"])[0] == [PortedFile(tmp_path / "a.py", b"", b"")]


@pytest.mark.parametrize("command", [["port", "."], ["config", "check", "clip.toml", "."]], ids=lambda words: words[0])
def test_a_directory_that_cannot_be_read_is_reported(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    def scandir(path: str) -> object:
        if Path(path).name == "models":  # the permissions of the file system do not bind the superuser
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    (project / "clip.toml").write_text('rule = "global_norm"\nthreshold = 1.0\n')
    monkeypatch.chdir(project)
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    assert cli.main(command) == 1
    printed = capsys.readouterr().out
    assert re.search(r"models\b.*Permission denied", printed, re.DOTALL)
    assert "1 as in clip.toml" in printed or "train.py" in printed
