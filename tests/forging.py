"""What an attacker can do to a file: change anything in it, and make the digests right again."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grown.io import container

GOLDEN = Path(__file__).parent / "golden"
KINDS = ("grown", "soft", "bf16", "scratch", "finetune", "joint")
LATER = (
    "cpg", "packnet", "wsn", "piggyback", "ksm", "supsup", "apd", "den", "adapter", "grow", "pnn",
)  # kinds of files that came with version 2 # fmt: skip
Change = Callable[[dict[str, Tensor], dict[str, Any]], None]


def golden(kind: str = "grown", version: int = container.VERSION) -> bytes:
    """A small model: three tasks of ours, or two of a rival."""
    return (GOLDEN / f"v{version}-{kind}.safetensors").read_bytes()


def forge(data: bytes, change: Change) -> bytes:
    """The same file with something changed, and all digests as if it had always been so."""
    content = container.parse(data)
    tensors, meta = dict(content.tensors), copy.deepcopy(content.meta)
    change(tensors, meta)
    return container.dump(tensors, meta)


def take_apart(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header as JSON, and the tensors' bytes."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def put_together(header: dict[str, Any] | str | bytes, body: bytes) -> bytes:
    """A file of this header and these bytes, whatever they are."""
    text = json.dumps(header) if isinstance(header, dict) else header
    raw = text.encode() if isinstance(text, str) else text
    return len(raw).to_bytes(8, "little") + raw + body


def flip(tensor: Tensor, bit: int) -> Tensor:
    """A copy with one bit flipped."""
    changed = tensor.clone()
    flat = changed.view(-1).view(torch.uint8)
    flat[bit // 8] ^= 1 << bit % 8
    return changed


def flip_in_file(data: bytes, tensor: str, bit: int) -> bytes:
    """The file with one bit of a tensor flipped, as a bad disk does it."""
    header, body = take_apart(data)
    start = header[tensor]["data_offsets"][0]
    changed = bytearray(data)
    changed[len(data) - len(body) + start + bit // 8] ^= 1 << bit % 8
    return bytes(changed)
