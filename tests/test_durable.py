"""Writes that survive: whatever fails, a file is the old one or the new one, whole; a folder has one process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import grown
from forging import golden
from grown.bench import folder
from grown.bench.request import Request
from grown.bench.runner import run
from grown.cli.main import main
from grown.errors import FileError
from grown.io import container, files, lock
from helpers import Faults, make_task

CALLS = ("open", "write", "fsync", "replace", "read", "close", "fchmod")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_each_failing_call_leaves_a_whole_file(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.safetensors"
    old, new = golden("grown"), golden("soft")
    failures = 0
    for number in range(1, 20):
        path.write_bytes(old)
        with monkeypatch.context() as patch:
            faults = Faults(patch, name, number, code)
            said = ""
            try:
                files.write(path, new)
            except FileError as error:
                said = str(error)
        found = path.read_bytes()
        assert found in (old, new)
        grown.load(path)
        assert list(tmp_path.iterdir()) == [path]
        assert "\n" not in said
        if said:
            failures += 1
            assert os.strerror(code) in said
            assert ("untouched" in said) == (found == old)
        else:
            assert found == new
        if faults.count < number:  # it was never called so often: every call has failed once
            break
    else:
        pytest.fail("the calls did not come to an end")
    assert failures >= 1


def test_a_write_that_comes_out_wrong_is_not_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"old")
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, bytes(len(data))))  # zeros, as some disks do
    with pytest.raises(FileError, match="not what is read back; what was there before is untouched"):
        files.write(path, b"new content")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    files.write(tmp_path / "m", golden())
    assert (tmp_path / "m").read_bytes() == golden()


def test_a_file_system_that_cannot_sync_folders_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(file: int) -> None:
        if os.fstat(file).st_mode & 0o040000:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    files.write(tmp_path / "m", b"new")
    assert (tmp_path / "m").read_bytes() == b"new"


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "m").write_bytes(b"old")
    (tmp_path / "a" / "m").chmod(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "m")
    files.write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a" / "m").read_bytes() == b"new"
    assert (tmp_path / "a" / "m").stat().st_mode & 0o777 == 0o600
    mask = os.umask(0o027)
    try:
        files.write(tmp_path / "fresh", b"new")
    finally:
        os.umask(mask)
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o640


def test_an_interrupt_leaves_no_unfinished_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        files.write(tmp_path / "m", b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_or_a_folder_out_of_reach_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def attempt(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    short = ("run", "--tasks", "2", "--epochs", "1")
    with monkeypatch.context() as patch:
        Faults(patch, "write", 2, errno.ENOSPC)  # the lock fits
        assert "No space left on device" in attempt(*short, "--out", str(tmp_path / "full"))

    (tmp_path / "file").write_text("mine")
    assert "cannot be written" in attempt(*short, "--out", str(tmp_path / "file" / "run"))


def test_a_removed_folder_is_one_line(tmp_path: Path) -> None:
    learner = grown.load(Path(__file__).parent / "golden" / "v2-grown.safetensors")
    where = tmp_path / "a"
    where.mkdir()
    learner.save(where / "m")
    (where / "m").unlink()
    where.rmdir()
    with pytest.raises(FileError, match="No such file or directory; what was there before is untouched"):
        learner.save(where / "m")


def test_a_read_only_folder_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the system's answer is played."""
    path = tmp_path / "m"
    path.write_bytes(golden())
    real = os.open

    def refuse(name: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(name, flags, mode)

    learner = grown.load(path)
    learner.learn(make_task("t3"))
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(FileError, match="Read-only file system; what was there before is untouched"):
        learner.save(path)
    assert path.read_bytes() == golden()


def test_sigkill_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    """A process that does nothing but save two models in turn, killed again and again."""
    path = tmp_path / "m.safetensors"
    golden_folder = Path(__file__).parent / "golden"
    code = (
        "import sys, types; from pathlib import Path\n"
        "package = types.ModuleType('grown')  # without PyTorch it is there at once\n"
        f"package.__path__ = [{str(Path(grown.__file__).parent)!r}]\n"
        "sys.modules['grown'] = package\n"
        "from grown.io import files\n"
        "one, two = (Path(name).read_bytes() for name in sys.argv[2:])\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    files.write(Path(sys.argv[1]), one)\n"
        "    files.write(Path(sys.argv[1]), two)\n"
    )
    sources = [str(golden_folder / f"v2-{kind}.safetensors") for kind in ("grown", "soft")]
    whole = {Path(source).read_bytes() for source in sources}
    for number in range(12):
        process = subprocess.Popen([sys.executable, "-c", code, str(path), *sources], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05 + 0.013 * number)
        process.kill()
        process.wait()
        process.stdout.close()
        assert path.read_bytes() in whole
    files.clear_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "run"
    folder.claim(where, "digits", "grown", 0)
    yield where
    lock.release(where)


HOLD = (
    "import sys, time; from pathlib import Path; from grown.io import lock\n"
    "lock.hold(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
)


def test_a_second_process_on_one_run_folder_is_refused(held: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOLD, str(held)], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert f"folder {held} is in use by another process ({os.getpid()})" in line
    with pytest.raises(FileError, match="in use by another process"):  # nor a second time in this one
        lock.hold(held)
    lock.release(held)
    lock.hold(held)


def test_the_lock_of_a_dead_process_does_not_block(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    (tmp_path / f".m.1234{files.PART}").write_bytes(b"half")
    with pytest.raises(FileError, match=rf"in use by another process \({process.pid}\)"):
        lock.hold(tmp_path)
    assert (tmp_path / f".m.1234{files.PART}").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    lock.hold(tmp_path)
    assert not (tmp_path / f".m.1234{files.PART}").exists()
    lock.release(tmp_path)
    assert (tmp_path / lock.LOCK).read_bytes() == b""


def test_a_run_lets_go_of_its_folder_when_it_ends(tmp_path: Path) -> None:
    _, where = run(Request(tasks=1, epochs=1, out=tmp_path / "a"))
    lock.hold(where)
    lock.release(where)
    assert {path.name for path in where.iterdir()} == {
        ".lock", "run.json", "log.jsonl", "result.json", "model.safetensors",
    }  # fmt: skip


def test_what_cannot_be_read_back_is_not_written(tmp_path: Path) -> None:
    content = container.parse(golden())
    content.meta["tasks"][0]["name"] = "x" * 5000
    with pytest.raises(FileError, match=r"5,000 characters.*untouched"):
        container.save(tmp_path / "m", content.tensors, content.meta)
    assert not (tmp_path / "m").exists()
