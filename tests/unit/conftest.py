"""Fixtures of the unit tests: files of gradients that each framework has saved in its own process, and a browser."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kits import in_a_new_process
from support.parity.gradient_files import PROGRAMS, START, Found
from support.processes.warm import origin_of_copies, started_by
from support.tiers import copies_workers

from unified_clip.tensors import files


def saved_by(framework: str) -> Any:
    @pytest.fixture(scope="session", name=f"{framework}_files")
    def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp(framework)
        in_a_new_process(START.format(framework=framework, directory=str(path)) + PROGRAMS[framework])
        return path

    return directory


torch_files, paddle_files, tensorflow_files = map(saved_by, ("torch", "paddle", "tensorflow"))


@pytest.fixture(scope="session", autouse=True)
def _quick_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    if not copies_workers(request.config):
        yield
        return
    with origin_of_copies() as start, started_by(start):
        yield


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Found]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return lambda path, **options: files.read(path, scratch, **options)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium or chromedriver is not installed; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "window-size=1280,900",
        f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Commands inherit whether SIGINT is ignored. A shell makes its background jobs ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
