"""Mutated files: bits, bytes, headers, metadata and tensors changed at random, with right digests or wrong ones."""

from __future__ import annotations

import copy
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from forging import GOLDEN, KINDS, LATER, golden, put_together, take_apart
from grown.errors import GrownError
from grown.io import container
from grown.io.state import State
from grown.io.versions import DELTA, MODEL, Kind
from grown.methods import method
from grown.methods.grown import delta
from grown.methods.verify import verify_content

VALUES: list[Any] = [
    0, 1, -1, 2, 3, 7, 9, 64, 255, 4096, 65_536, 2**24, 2**31 - 1, 2**31, 2**40, 2**62, 10**25, 0.0, -0.5, 1.5, 1e-300,
    1e300, True, False, None, "", "x", "..", "grown", "scratch", "same", "conv", "relu", "add", "cat", "head", "input",
    "x" * 300, "\x00", "é", [], {}, [[]], [0], [1, 1], [3, 3], [2**31, 1], [None], {"a": 1}, ["t0", "t1"], [[[[[[]]]]]],
]  # fmt: skip


class Largest(TorchDispatchMode):
    """The largest memory that PyTorch asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else (result,):
            if isinstance(part, Tensor) and part.device.type == "cpu":
                self.bytes = max(self.bytes, part.untyped_storage().nbytes())
        return result


def mutate(draw: random.Random, data: bytes, kind: Kind) -> bytes:
    """A file that somebody changed, once or a few times."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        how = draw.choice((_bytes, _header, _metadata, _metadata, _metadata, _tensors, _tensors))
        try:
            data = how(draw, data, kind)
        except (GrownError, ValueError, KeyError, TypeError, RuntimeError, RecursionError, IndexError):
            data = _bytes(draw, data, kind)  # what is broken already is broken further
    return data


def _bytes(draw: random.Random, data: bytes, kind: Kind) -> bytes:  # noqa: ARG001
    changed = bytearray(data)
    place = draw.randrange(len(changed) + 1) if draw.random() < 0.5 else draw.randrange(min(len(changed) + 1, 400))
    how = draw.randrange(7)
    if how == 0:
        for _ in range(draw.choice((1, 1, 2, 8))):
            if changed:
                changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    elif how == 1:
        del changed[place:]
    elif how == 2:
        changed[place:place] = draw.randbytes(draw.choice((1, 8, 100)))
    elif how == 3:
        del changed[place : place + draw.choice((1, 8, 100))]
    elif how == 4:
        end = place + draw.choice((1, 8, 100, 1000))
        changed[place:place] = changed[place:end]
    elif how == 5:
        changed[place : place + 1] = draw.choice((b"\x00", b"\xff", b'"', b"{", b"}", b"[", b",", b"\\", b"9", b"-"))
    else:
        changed[:8] = draw.choice((0, 1, 2**16, 2**24, 2**32, 2**63, len(data) - 8)).to_bytes(8, "little")
    return bytes(changed)


def _header(draw: random.Random, data: bytes, kind: Kind) -> bytes:  # noqa: ARG001
    header, body = take_apart(data)
    if draw.random() < 0.2:
        text = json.dumps(header)
        name = draw.choice([key for key in header if key != "__metadata__"])
        return put_together(text[:-1] + "," + json.dumps({name: header[name]})[1:], body)  # a name twice
    entries = {key: value for key, value in header.items() if key != "__metadata__"}
    _edit(draw, entries)
    return put_together({"__metadata__": header.get("__metadata__"), **entries}, body)


def _metadata(draw: random.Random, data: bytes, kind: Kind) -> bytes:
    content = container.parse(data, kind)
    meta = copy.deepcopy(content.meta)
    for _ in range(draw.choice((1, 1, 2))):
        _edit(draw, meta)
    return container.dump(content.tensors, meta, kind)


def _edit(draw: random.Random, data: dict[str, Any]) -> None:
    """Change something, anywhere in it."""
    where: Any = data
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not keys:
            return
        key = draw.choice(keys)
        inner = where[key]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.12:
            break
        where = inner
    how = draw.randrange(6)
    if how == 0:
        del where[key]
    elif how == 1 and type(inner) in (int, float):
        where[key] = draw.choice((inner + 1, inner - 1, inner * 2, -inner, inner * 1000, float(inner), str(inner)))
    elif how == 2:
        where[key] = copy.deepcopy(where[draw.choice(keys)])  # one for another
    elif how == 3 and isinstance(where, list):
        where.insert(draw.randrange(len(where) + 1), copy.deepcopy(inner))
    elif how == 4 and isinstance(inner, list):
        draw.shuffle(inner)
    else:
        where[key] = copy.deepcopy(draw.choice(VALUES))


def _tensors(draw: random.Random, data: bytes, kind: Kind) -> bytes:
    content = container.parse(data, kind)
    tensors = {name: tensor.clone() for name, tensor in content.tensors.items()}
    name = draw.choice(list(tensors))
    tensor, how = tensors[name], draw.randrange(8)
    flat = tensor.flatten()
    if how == 0 and flat.numel():
        raw = flat.view(torch.uint8)
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        tensors[name] = flat.view(tensor.shape)
    elif how == 1:
        tensors[name] = flat[: draw.randrange(flat.numel() + 1)]
    elif how == 2:
        tensors[name] = torch.cat([tensor, tensor])
    elif how == 3:
        tensors[name] = tensor.to(draw.choice((torch.uint8, torch.float32, torch.bfloat16, torch.int64, torch.bool)))
    elif how == 4:
        del tensors[name]
    elif how == 5:
        tensors[draw.choice((*tensors, "task/9/own", "bank/x/kernels", "more"))] = tensor.clone()
    elif how == 6 and tensor.is_floating_point() and flat.numel():
        flat[draw.randrange(flat.numel())] = draw.choice((float("nan"), float("inf"), 1e38, 0.0))
        tensors[name] = flat.view(tensor.shape)
    else:
        tensors[name] = torch.zeros((draw.choice((0, 1, 31, 32)), draw.choice((0, 1, 2**20 * (how == 7)))))[:, :0]
    return container.dump(tensors, content.meta, kind)


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Break off what takes too long."""

    def ring(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def use(data: bytes, kind: Kind, old: container.Content, *, verify: bool = True) -> tuple[str, int]:
    """Do with a file what a user would; says how that ended, and the largest memory asked for while reading it."""
    said = ""
    with Largest() as largest:
        try:
            if kind is DELTA:
                data = delta.apply(old, container.parse(data, DELTA))
            content = container.parse(data)
            if content.damaged or content.metadata_damaged or content.not_finite:
                ended = "damaged"
            else:
                learner = method(content.meta["method"])(None)
                learner.load_state(State(content.tensors, content.meta))
                ended = "loaded"
        except GrownError as error:
            ended, said = type(error).__name__, str(error)
    assert "\n" not in said, said
    assert len(said) < 600, said
    if verify and ended in ("loaded", "damaged"):
        verify_content(content)
    return ended, largest.bytes


def fuzz(count: int, seed: int) -> Counter[str]:
    """Use so many mutated files; raises at the first that is not met with a clear word."""
    seeds = [(golden(k, v), MODEL) for k in KINDS for v in (1, 2)]
    seeds += [(golden(kind), MODEL) for kind in LATER]
    old = container.parse(golden())
    seeds.append(((GOLDEN / "delta1-grown.safetensors").read_bytes(), DELTA))
    for data, kind in seeds:
        assert use(data, kind, old)[0] == "loaded"
    ends: Counter[str] = Counter()
    for number in range(count):
        draw = random.Random(f"{seed}-{number}")
        data, kind = draw.choice(seeds)
        mutated = mutate(draw, data, kind)
        began = time.perf_counter()
        try:
            with alarm(5):
                ended, largest = use(mutated, kind, old)
        except BaseException as error:
            raise AssertionError(f"mutation {seed}-{number}: {type(error).__name__}: {error}") from error
        seconds = time.perf_counter() - began
        size = len(mutated) + (old.size if kind is DELTA else 0)
        assert seconds < 1, f"mutation {seed}-{number}: {seconds:.2f} s"
        assert largest <= 2 * size + 4096, f"mutation {seed}-{number}: {largest:,} bytes for a file of {size:,}"
        ends[ended] += 1
    return ends
