"""A format with a future: every version that was ever written is read, and gives the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import grown
from forging import GOLDEN, KINDS, LATER, forge, golden
from grown.errors import FileError
from grown.io import container
from grown.io.versions import DELTA, MODEL, Kind
from grown.methods.grown import delta
from grown.methods.verify import verify_content

EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
SPECIFICATION = (GOLDEN.parent.parent / "docs" / "format.md").read_text()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_golden_file_is_read_and_answers_as_it_did(name: str) -> None:
    learner = grown.load(GOLDEN / name)
    assert learner.tasks == list(EXPECTED[name])
    x = torch.linspace(-2, 2, 2 * 64).view(2, 1, 8, 8)
    for task, logits in EXPECTED[name].items():
        assert torch.allclose(learner.network(task)(x), torch.tensor(logits), atol=1e-4)
    found = verify_content(container.read(GOLDEN / name))
    assert found.good, found.differences
    assert len(found.exact) + len(found.close) == len(learner.tasks)


def test_there_are_golden_files_of_every_version_and_kind() -> None:
    for version in range(1, MODEL.version + 1):
        for kind in (*KINDS, *(LATER if version > 1 else ())):
            assert f"v{version}-{kind}.safetensors" in EXPECTED
    assert {f"v2-{kind}.safetensors" for kind in LATER} <= set(EXPECTED)
    assert set(EXPECTED) == {path.name for path in GOLDEN.glob("v*.safetensors")}
    assert all(path.stat().st_size < 50_000 for path in GOLDEN.iterdir() if path.is_file())


def test_every_golden_delta_gives_a_sound_model() -> None:
    for version in range(1, DELTA.version + 1):
        content = container.read_good(GOLDEN / f"delta{version}-grown.safetensors", DELTA)
        data = delta.apply(container.parse(golden()), content)
        found = verify_content(container.parse(data))
        assert found.good
        assert found.tasks == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_file_is_saved_as_the_present_version(kind: str, tmp_path: Path) -> None:
    learner = grown.load(GOLDEN / f"v1-{kind}.safetensors")
    learner.save(tmp_path / "m")
    content = container.read(tmp_path / "m")
    assert content.written == MODEL.version
    assert [entry["arithmetic"] for entry in content.meta["tasks"]] == [None] * len(learner.tasks)
    assert verify_content(content).good


@pytest.mark.parametrize("kind", [*KINDS, *LATER])
def test_a_golden_file_comes_out_as_it_went_in(kind: str, tmp_path: Path) -> None:
    grown.load(GOLDEN / f"v2-{kind}.safetensors").save(tmp_path / "m")
    before, after = container.parse(golden(kind)), container.read(tmp_path / "m")
    old, new = before.meta.pop("config"), after.meta.pop("config")
    for settings in ("recipe", None):  # a later release may have more settings
        one, two = (old.pop(settings), new.pop(settings)) if settings else (old, new)
        assert {name: two.get(name) for name in one} == one
    assert after.meta == before.meta
    assert set(after.tensors) == set(before.tensors)
    for name, tensor in before.tensors.items():
        assert container.digest(after.tensors[name]) == container.digest(tensor)


def test_a_newer_version_is_refused_in_words(tmp_path: Path) -> None:
    def newer(_: dict[str, Tensor], meta: dict[str, Any]) -> None:
        meta["version"] = MODEL.version + 1

    (tmp_path / "m").write_bytes(forge(golden(), newer))
    words = (
        f"version is {MODEL.version + 1}, but this release of grown reads versions up to {MODEL.version}; use a newer"
    )
    with pytest.raises(FileError, match=words):
        grown.load(tmp_path / "m")


def test_every_version_has_its_reader_and_its_line_in_the_specification() -> None:
    for kind in (MODEL, DELTA):
        assert isinstance(kind, Kind)
        assert set(kind.upgrades) == set(range(1, kind.version))
        assert f'`"{kind.name}"`' in SPECIFICATION
    for version in range(1, MODEL.version + 1):
        assert f"\n| {version} |" in SPECIFICATION
    assert f"Version {MODEL.version} is written." in SPECIFICATION


def test_the_specification_names_everything_in_a_file() -> None:
    for kind in (*KINDS, *LATER):
        content = container.parse(golden(kind))
        for key in (*content.meta, *content.meta["tasks"][0], "digests", "digest"):
            assert f"`{key}`" in SPECIFICATION, key
        for name in content.tensors:
            first, *middle, last = name.split("/")
            words = [first, *(["N" if first == "task" else "NAME"] if middle else []), last]
            assert f"`{'/'.join(words)}`" in SPECIFICATION, name
    content = container.read(GOLDEN / "delta1-grown.safetensors", DELTA)
    for key in (*content.meta, "owners", "kernels"):
        assert f"`{key}`" in SPECIFICATION, key
