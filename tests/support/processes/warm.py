"""Start the tools' workers as copies of one process that has imported their modules. A start takes 30 instead of 400
milliseconds."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any
from unittest import mock

WORKERS = (
    "unified_clip.verify.launch.worker",
    "unified_clip.parity.workers.worker",
    "unified_clip.tensors.files.convert_worker",
)
"""The modules whose processes are copies. A copy may also run code (`python -c`). These modules must not import modules
that start threads.
"""

PYTHON = sys.executable
SAFE_PATH = ["-P"] if sys.version_info >= (3, 11) else []
FAULTHANDLER = ["-X", "faulthandler"]

Start = Callable[..., Any]

LONGEST = 1 << 20
"""The maximum length of a request in bytes."""


class WarmProcess:
    """A copy, with the members of `subprocess.Popen` that the tools use."""

    def __init__(self, end: socket.socket, stdout: IO[bytes] | None) -> None:
        self._end, self.stdout = end, stdout
        self.pid = int.from_bytes(end.recv(8), "little")
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._end.settimeout(timeout)
            try:
                status = self._end.recv(8)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("a copy", timeout or 0.0) from None
            assert status, "the process that is copied has ended"
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, "little"))
            self._end.close()
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


@contextmanager
def origin_of_copies(*modules: str) -> Iterator[Start]:
    """Start a process that imports the workers. Return a function that starts workers as copies of this process.

    If settings or files can change what a worker imports, the worker starts as a new process, as it does for users.

    modules: What the process imports in addition to NumPy. These modules must not start threads.
    """
    from unified_clip._kit import workers

    own_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(own_end):
        search = os.pathsep.join([str(workers.PACKAGE.parent), str(Path(__file__).parents[2])])
        with closing(server_end):  # so that a request to a server that has ended fails, and does not wait
            server = subprocess.Popen(
                [sys.executable, *SAFE_PATH, "-m", __name__, str(server_end.fileno()), *modules],
                env={**os.environ, **workers.CPU_ONLY, "PYTHONPATH": search},
                pass_fds=[server_end.fileno()],
            )
        settings, package = _settings(os.environ), workers.PACKAGE

        def start(arguments: Sequence[str], env: Mapping[str, str], **options: Any) -> Any:
            is_same = _settings(env) == settings and package == workers.PACKAGE
            if not _may_be_copied(arguments) or not is_same or _customized(env["PYTHONPATH"]):
                return subprocess.Popen(arguments, env=env, **options)
            return _start(own_end, list(arguments[1:]), env, **options)

        try:
            yield start
        finally:
            server.kill()  # it may still import, on a slow machine for longer than the tests ran
            server.wait()


@contextmanager
def started_by(start: Start) -> Iterator[None]:
    """Let the tools start their workers by a function that takes the arguments of `subprocess.Popen`."""
    from unified_clip._kit import workers

    with mock.patch.object(workers, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start})):
        yield


def _may_be_copied(arguments: Sequence[str]) -> bool:
    interpreter, *rest = arguments
    kind, what, *_ = rest[len(FAULTHANDLER) :] if rest[: len(FAULTHANDLER)] == FAULTHANDLER else rest
    return interpreter == PYTHON and (kind == "-c" or (kind == "-m" and what in WORKERS))


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(("UNIFIED_CLIP_", "PYTHON"))
            and name != "PYTHONPATH" and name != "PYTHONSAFEPATH"}  # fmt: skip


def _customized(search: str) -> bool:
    names = ("sitecustomize.py", "usercustomize.py", "numpy.py", "numpy")
    _, *added = search.split(os.pathsep)  # the first has this package, and all others if it is installed
    return any((Path(folder) / name).exists() for folder in added for name in names)


def _start(
    server: socket.socket,
    arguments: Sequence[str],
    env: Mapping[str, str],
    stdin: int,
    stdout: int | IO[bytes],
    stderr: IO[bytes],
    start_new_session: bool,
    pass_fds: Sequence[int],
) -> WarmProcess:
    assert stdin == subprocess.DEVNULL
    assert start_new_session
    own_end, copy_end = socket.socketpair()
    reads = None
    if stdout == subprocess.PIPE:
        read, write = os.pipe()
        reads = os.fdopen(read, "rb")
    else:
        write = os.open(os.devnull, os.O_WRONLY) if isinstance(stdout, int) else os.dup(stdout.fileno())
    request = json.dumps([arguments, dict(env), str(Path.cwd())]).encode()
    assert len(request) < LONGEST
    socket.send_fds(server, [request], [copy_end.fileno(), write, stderr.fileno(), *pass_fds])
    copy_end.close()
    os.close(write)
    return WarmProcess(own_end, reads)


def serve(control: socket.socket, *modules: str) -> None:
    """Start a copy for each request, until the tests end. Copies return from here."""
    import encodings.cp437  # noqa: F401

    import numpy.ma  # noqa: F401

    import unified_clip._backends.numpy
    import unified_clip.numpy
    import unified_clip.parity.adapters.numpy
    import unified_clip.parity.workers.worker
    import unified_clip.tensors.files.convert_worker
    import unified_clip.verify.launch.worker  # noqa: F401

    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # a collection in a copy would write to, and so copy, the memory of all objects
    search = os.environ["PYTHONPATH"].split(os.pathsep)
    base = [folder for folder in sys.path if folder not in search]
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write)
    ends: dict[int, socket.socket] = {}
    while True:
        ready = select.select([control, read], [], [])[0]
        if read in ready:
            os.read(read, 1 << 10)
            _report(ends)
        if control in ready:
            request, fds, _, _ = socket.recv_fds(control, LONGEST, 16)
            if not request:
                os._exit(0)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for connection in (control, *ends.values()):
                    connection.close()
                os.close(read)
                os.close(write)
                return _run_worker(*json.loads(request), fds, base)
            end = ends[pid] = socket.socket(fileno=fds[0])
            end.send(pid.to_bytes(8, "little"))
            for fd in fds[1:]:
                os.close(fd)


def _report(ends: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            with closing(ends.pop(ended[0])) as end, suppress(BrokenPipeError):
                end.send(ended[1].to_bytes(8, "little"))


def _run_worker(
    arguments: list[str], environment: dict[str, str], directory: str, fds: list[int], base: list[str]
) -> None:
    """Run a worker in this copy, as `python -m` does. Passed file descriptors stay open until the worker ends."""
    os.setsid()
    os.chdir(directory)
    os.close(fds[0])
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, standard in ((null, 0), (fds[1], 1), (fds[2], 2)):
        os.dup2(fd, standard)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [*environment["PYTHONPATH"].split(os.pathsep), *base]
    if arguments[: len(FAULTHANDLER)] == FAULTHANDLER:
        faulthandler.enable()
        arguments = arguments[len(FAULTHANDLER) :]
    kind, what, *rest = arguments
    if kind == "-c":
        sys.argv = [kind, *rest]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(main))
        return
    sys.argv[1:] = rest
    del sys.modules[what]
    runpy.run_module(what, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:])
