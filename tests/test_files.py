"""One file: equal content gives equal bytes; sizes are the file's; damage is named; a user's code is not needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grown
from grown.errors import ConfigError, FileError, TaskError
from grown.io import container, header
from grown.methods.base import probe
from helpers import Branchy, make_task, quick, shake


def two_tasks(**settings: object) -> grown.Learner:
    torch.manual_seed(0)
    learner = grown.Learner(Branchy(), quick(growth="open", **settings))
    for number in range(2):
        stage = learner.open(make_task(f"t{number}"))
        shake(stage, seed=number)
        stage.commit(target=50.0)
    return learner


@pytest.mark.parametrize("soft", [False, True])
def test_save_and_load_give_everything_back(tmp_path: Path, soft: bool) -> None:
    learner = two_tasks(soft_select=soft)
    written = learner.save(tmp_path / "a.safetensors")
    loaded = grown.load(tmp_path / "a.safetensors")
    assert loaded.save(tmp_path / "b.safetensors") == written
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    x = torch.randn(4, 1, 8, 8)
    for task in learner.tasks:
        assert torch.equal(loaded.extract(task)(x), learner.extract(task)(x))
        assert torch.equal(loaded.records[task].probe, probe(learner.extract(task), (1, 8, 8)))
        assert loaded.normalisation(task) == learner.normalisation(task)
        assert loaded.classes(task) == learner.classes(task)
    assert loaded.config == learner.config
    if soft:
        assert loaded.size().bytes["picked_bits"] > two_tasks().size().bytes["picked_bits"]


def test_a_loaded_learner_goes_on_as_the_one_that_was_saved(tmp_path: Path) -> None:
    learner = two_tasks()
    learner.save(tmp_path / "m.safetensors")
    loaded = grown.load(tmp_path / "m.safetensors")
    for each in (learner, loaded):
        each.learn(make_task("t2"))
    one, other = learner.state(), loaded.state()
    assert one.meta == other.meta
    assert all(torch.equal(one.tensors[name], tensor) for name, tensor in other.tensors.items())


def test_sizes_are_the_files(tmp_path: Path) -> None:
    learner = two_tasks()
    path = tmp_path / "m.safetensors"
    learner.save(path)
    size = learner.size()
    assert size.bytes["total"] == path.stat().st_size
    assert sum(count for part, count in size.bytes.items() if part != "total") == size.bytes["total"]
    assert set(size.bytes) == {"kernels", "picked_bits", "norms_and_biases", "heads", "other", "total"}
    owned = sum(bank.owned() * bank.kernel_size for bank in learner.banks.values())
    assert size.parameters["kernels"] == owned
    assert size.bytes["kernels"] == 4 * owned
    assert size.size_x == owned / learner.base_parameters
    assert size.bytes_x == path.stat().st_size / (4 * learner.base_parameters)
    second = learner.records["t1"]
    pickable = sum(int((bank.owner == 1).sum()) for bank in learner.banks.values())
    assert second.number == 2
    assert size.bytes["picked_bits"] == (pickable + 7) // 8


def test_the_metadata_is_one_json_key_and_names_every_tensor(tmp_path: Path) -> None:
    two_tasks().save(tmp_path / "m.safetensors")
    with safetensors.safe_open(str(tmp_path / "m.safetensors"), framework="pt") as handle:
        assert list(handle.metadata()) == ["grown"]
        meta = json.loads(handle.metadata()["grown"])
        assert set(meta["digests"]) == set(handle.keys())
    assert meta["version"] == container.VERSION
    assert [task["name"] for task in meta["tasks"]] == ["t0", "t1"]
    assert meta["graph"][0]["op"] == "input"


def test_a_users_network_loads_without_the_users_code(tmp_path: Path) -> None:
    learner = two_tasks()
    path = tmp_path / "m.safetensors"
    learner.save(path)
    x = np.random.default_rng(0).standard_normal((3, 1, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy as np, torch, grown; torch.set_num_threads(1)\n"
        "network = grown.load(sys.argv[1]).extract('t1')\n"
        "assert 'helpers' not in sys.modules\n"
        "np.save(sys.argv[3], network(torch.from_numpy(np.load(sys.argv[2]))).numpy())"
    )
    paths = [str(path), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True, cwd=tmp_path)
    assert np.array_equal(np.load(paths[2]), learner.extract("t1")(torch.from_numpy(x)).numpy())


def test_the_core_imports_without_the_command_line_packages() -> None:
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('rich', 'typer', 'click', 'sklearn', 'matplotlib'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import grown\n"
        "assert len(grown.data.stream('digits')) >= 5\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text", "foreign", "version", "digest"])
def test_damage_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    learner = two_tasks()
    path = tmp_path / "m.safetensors"
    learner.save(path)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-100] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("hello")
    elif damage == "foreign":
        safetensors.torch.save_file({"a": torch.zeros(2)}, path)
    else:
        state = learner.state()
        meta = {**state.meta, "version": 99} if damage == "version" else {**state.meta, "tasks": [{}]}
        container.save(path, state.tensors, meta)
    with pytest.raises(FileError) as caught:
        grown.load(path)
    assert "\n" not in str(caught.value)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = two_tasks()
    path = tmp_path / "m.safetensors"
    learner.save(path)
    before = path.read_bytes()
    learner.learn(make_task("t2"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FileError, match="No space left"):
        learner.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileError, match="cannot write"):
        learner.save(tmp_path / "absent" / "m.safetensors")


def test_misuse_is_said_in_one_line(tmp_path: Path) -> None:
    learner = two_tasks()
    with pytest.raises(ConfigError, match="Did you mean 't1'"):
        learner.extract("t11")
    with pytest.raises(TaskError, match=r"\[9, 9, 1\].*\[8, 8, 1\]"):
        learner.predict("t0", np.zeros((2, 9, 9, 1), dtype=np.uint8))
    with pytest.raises(TaskError, match="NaN"):
        learner.predict("t0", np.full((2, 8, 8, 1), np.nan, dtype=np.float32))
    with pytest.raises(TaskError, match="unique"):
        learner.learn(make_task("t0"))
    with pytest.raises(TaskError, match=r"\[1, 9, 9\]"):
        learner.learn(make_task("t9", shape=(9, 9, 1)))
    with pytest.raises(ConfigError, match="nothing was learned"):
        grown.Learner(Branchy(), quick(), input_shape=(1, 8, 8)).save(tmp_path / "m.safetensors")
    with pytest.raises(FileError, match="no such file"):
        grown.load(tmp_path / "absent")


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8),
        st.tuples(st.sampled_from(sorted(header.TYPES)), st.lists(st.integers(0, 3), max_size=3)),
        max_size=6,
    ),
    st.text(max_size=20),
)
@settings(max_examples=200, deadline=None)
def test_a_header_is_what_the_safetensors_library_writes(about: dict[str, tuple[str, list[int]]], text: str) -> None:
    about.pop(header.METADATA, None)
    text = text.encode("utf-8", "ignore").decode()
    tensors = {name: torch.zeros(shape, dtype=header.TYPES[kind]) for name, (kind, shape) in about.items()}
    whole = safetensors.torch.save(tensors, metadata={"key": text})
    start, names = header.make(tensors, {"key": text})
    assert whole[: len(start)] == start
    assert sorted(names) == sorted(tensors)
    assert len(whole) == len(start) + sum(tensor.nbytes for tensor in tensors.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_not_finite_is_found_and_what_is_large_is_not(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for values in ([largest, largest, 1.0], [-largest, -largest], [0.0], []):
        assert container._not_finite({"a": torch.tensor(values, dtype=dtype)}) == ()
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert container._not_finite({"a": torch.tensor([1.0, bad, largest], dtype=dtype)}) == ("a",)
    mixed = torch.tensor([float("inf"), -float("inf")], dtype=dtype)
    assert container._not_finite({"a": torch.ones(2, dtype=dtype), "b": mixed}) == ("b",)
