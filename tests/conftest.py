"""How the tests run: one thread, no slow ones unless asked for, no silent skips in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grown.data import cifar100
from helpers import DATA

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton: its kernels then run on a CPU

try:
    from hypothesis import settings
except ImportError:  # a machine with a GPU may have no more than PyTorch and pytest
    pass
else:
    settings.register_profile("default", deadline=None, max_examples=40, derandomize=True)
    settings.load_profile("default")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny networks lose badly with several threads on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def exact() -> Iterator[None]:
    """Kernels that compute the same each time, without TF32: those that cuDNN times differ from run to run."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@pytest.fixture(scope="session")
def real_cifar100(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where CIFAR-100 lies, unpacked if need be; without it the test is skipped."""
    given = cifar100.find_cifar100(None) if "GROWN_DATA" in os.environ else None
    if given is None and (DATA / "cifar100" / "meta.json").is_file():
        root = tmp_path_factory.mktemp("cifar100")
        unpack = DATA.parent / "tools" / "unpack_cifar100.py"
        subprocess.run([sys.executable, str(unpack), str(DATA / "cifar100"), str(root)], check=True)
        given = cifar100.find_cifar100(root)
    if given is None:
        pytest.skip("CIFAR-100's data is absent: set GROWN_DATA to its folder")
    return given


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out (rather than skip them) unless asked for; and those for a GPU or a browser without one."""
    out = set() if "slow" in (config.option.markexpr or "") else {"slow"}
    out |= set() if torch.cuda.is_available() else {"gpu"}
    out |= set() if shutil.which("chromedriver") and importlib.util.find_spec("selenium") else {"browser"}
    left = [item for item in items if out & set(item.keywords)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


SKIPS: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember skipped tests."""
    if report.skipped and not hasattr(report, "wasxfail"):
        SKIPS.append(f"{report.nodeid}: {report.longrepr}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test is a failure, unless it needs data that the project does not ship."""
    unexplained = [skip for skip in SKIPS if "data is absent" not in skip]
    if os.environ.get("CI") and unexplained:
        print("\nskipped without a reason that CI accepts:\n" + "\n".join(unexplained))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
