"""One task's network as a file for other runtimes: ONNX, or a program of torch.export."""

from __future__ import annotations

import importlib
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from grown.errors import ConfigError, FileError, unknown
from grown.io import files
from grown.io.fields import first_line
from grown.io.state import State

KEY = "grown"  # under which both kinds of file say what they are, as JSON
TOLERANCE = 1e-4  # times (1 + the largest logit): what folded norms and other kernels may differ by
BATCHES = (1, 2, 33)  # on which the file is compared with the network
INPUT, OUTPUT, BATCH = "images", "logits", "batch"

Run = Callable[[Tensor], Tensor]


class Learned(Protocol):
    """As much of a method as an export asks for."""

    def network(self, task: str) -> nn.Module: ...

    def state(self) -> State: ...


@dataclass(frozen=True)
class Exported:
    """What was written, and how close it came."""

    size: int
    worst: float  # largest difference of a logit over all batches
    allowed: float
    about: dict[str, Any]


class _WithNormalisation(nn.Module):
    """A task's network from images in their own units."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, network: nn.Module, mean: list[float], deviation: list[float], axes: int) -> None:
        super().__init__()
        shape = (1, -1) + (1,) * (axes - 1)
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).view(shape))
        self.register_buffer("deviation", torch.tensor(deviation).view(shape))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((images - self.mean) / self.deviation)
        return logits


def export(learner: Learned, task: str, path: str | Path, form: str | None = None, *, force: bool = False) -> Exported:
    """Write a task's network with its normalisation, for any batch size; compared with the network before it is kept.

    `form` is "onnx" or "pt2", by the file's name if not given. A file that exists is replaced only by `force`.
    """
    out = Path(path)
    writer = WRITERS[_check_place(out, form, force)]
    meta = learner.state().meta
    entries = {entry["name"]: entry for entry in meta["tasks"]}
    if task not in entries:
        raise unknown("task", task, entries)
    shape = tuple(meta["graph"][0]["shape"])
    about = _describe(entries[task], shape)
    network = learner.network(task).eval()
    whole = _WithNormalisation(network, **about["normalisation"], axes=len(shape)).eval()
    try:
        with _quiet():
            data, run = writer(_program(whole, shape), about)
    except RuntimeError as error:
        raise ConfigError(f"task {task!r} cannot be exported: {first_line(error)}") from error
    worst, allowed = _compare(network, run, about, shape)
    if not worst <= allowed:
        raise ConfigError(
            f"task {task!r}: the exported network's logits differ by up to {worst:.3g} where {allowed:.3g} is allowed; "
            f"{out} was not written"
        )
    files.write(out, data)
    return Exported(len(data), worst, allowed, about)


def _check_place(out: Path, form: str | None, force: bool) -> str:
    """The form, after everything that can be refused before any work."""
    form = out.suffix.removeprefix(".") if form is None else form
    if form not in WRITERS:
        raise unknown("format", form, WRITERS)
    if out.suffix != f".{form}":
        raise FileError(f"{out}: a file of format {form} is named *.{form}")
    if out.exists() and not out.is_file():
        raise FileError(f"{out} exists already, and is no file")
    if out.exists() and not force:
        raise FileError(f"{out} exists already; give --force to replace it")
    if not out.parent.is_dir():
        raise FileError(f"cannot write {out}: there is no folder {out.parent}")
    for name in NEEDS[form]:
        _import(name)
    return form


def _describe(entry: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """What the file says of itself."""
    from grown import __version__

    axes = [BATCH, "channels", "height", "width"] if len(shape) == 3 else [BATCH, "features"]
    return {
        "library": f"grown {__version__}",
        "task": entry["name"],
        "classes": entry["classes"],
        "input": {
            "name": INPUT,
            "type": "float32",
            "shape": [BATCH, *shape],
            "axes": axes,
            "units": "as the training images: 0 to 255 for 8-bit ones; the normalisation is inside",
        },
        "output": {"name": OUTPUT, "type": "float32", "shape": [BATCH, len(entry["classes"])]},
        "normalisation": {"mean": entry["mean"], "deviation": entry["deviation"]},
    }


def _program(whole: nn.Module, shape: tuple[int, ...]) -> torch.export.ExportedProgram:
    """The network as torch.export sees it, without the paths and stacks of the machine that it was made on."""
    batch = {INPUT: {0: torch.export.Dim(BATCH)}}
    program = torch.export.export(whole, (torch.zeros(2, *shape),), dynamic_shapes=batch)
    for node in program.graph.nodes:
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node"):
            node.meta.pop(key, None)
    return program


def _to_pt2(program: torch.export.ExportedProgram, about: dict[str, Any]) -> tuple[bytes, Run]:
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={KEY: json.dumps(about)})
    data = buffer.getvalue()
    reloaded = torch.export.load(io.BytesIO(data)).module()
    return data, reloaded


def _to_onnx(program: torch.export.ExportedProgram, about: dict[str, Any]) -> tuple[bytes, Run]:
    runtime = _import("onnxruntime")
    made: Any = torch.onnx.export(program, dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT])
    model = made.model_proto
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    del model.graph.value_info[:]  # shapes inside, by another name of the batch
    for node in model.graph.node:
        del node.metadata_props[:]
    del model.metadata_props[:]
    model.metadata_props.add(key=KEY, value=json.dumps(about))
    data: bytes = model.SerializeToString(deterministic=True)
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])

    return data, run


WRITERS: dict[str, Callable[[torch.export.ExportedProgram, dict[str, Any]], tuple[bytes, Run]]] = {
    "onnx": _to_onnx,
    "pt2": _to_pt2,
}
NEEDS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "pt2": ()}  # packages


@torch.inference_mode()
def _compare(network: nn.Module, run: Run, about: dict[str, Any], shape: tuple[int, ...]) -> tuple[float, float]:
    """The largest difference between the file's logits and the network's, and what is allowed."""
    draw = torch.Generator().manual_seed(0)
    over = (1, -1) + (1,) * (len(shape) - 1)
    mean, deviation = (torch.tensor(values).view(over) for values in about["normalisation"].values())
    worst, largest = 0.0, 0.0
    for batch in BATCHES:
        x = torch.randn((batch, *shape), generator=draw)
        expected, found = network(x), run(x * deviation + mean)
        if found.shape != expected.shape:
            return math.inf, 0.0
        worst = max(worst, float((found - expected).abs().max().nan_to_num(math.inf)))
        largest = max(largest, float(expected.abs().max()))
    return worst, TOLERANCE * (1 + largest)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"ONNX files need {name}, which is not installed: pip install 'grown[onnx]'") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters tell of packages that nobody needs here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
