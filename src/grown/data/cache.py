"""Decoded images on disk: raw pixels, and behind them what they are of, with a digest.

pixels     uint8, (n, channels, height, width), row-major
about      JSON: key, shape, SHA-256 of the pixels, which files were broken
8 bytes    the length of `about`, little-endian
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grown.data.images import Shape, decode, decode_all, decode_each

FOLDER = ".grown-cache"
LAYOUT = 1  # another number here makes every cache be written anew
LONGEST_ABOUT = 2**26
ABANDONED = 3600.0  # seconds after which an unfinished file has no writer any more

Tell = Callable[[str], None]
Step = Callable[[int], None]


@dataclass(frozen=True)
class Decoded:
    """Pixels (n, channels, height, width), perhaps in a mapped file, and the numbers of the files left out."""

    images: NDArray[np.uint8]
    broken: list[int]


def decoded(
    paths: list[Path],
    root: Path,
    name: str,
    shape: Shape,
    *,
    skip: bool,
    tell: Tell,
    step: Step | None,
    map_above: int,
    exact: bool = False,
) -> Decoded:
    """These files' pixels: from the cache if it is of just these files, else decoded and kept there.

    More than `map_above` bytes stay on disk and are mapped. A broken file raises, unless it is to be skipped; one of
    another size too, if it must be `exact`.
    """
    key = _key(paths, root, shape, exact)
    places = _places(root, name, shape)
    for place in places:
        if (found := _read(place, key, shape, tell, map_above)) is not None:
            if found.broken and not skip:
                decode(paths[found.broken[0]], shape, exact)  # raises, with its name
            return found
    reasons = []
    for place in places:
        try:
            _write(place, len(paths), decode_each(paths, shape, skip=skip, exact=exact, step=step), key)
        except OSError as error:
            reasons.append(f"{place.parent}: {error.strerror or error}")
            continue
        if (found := _read(place, key, shape, tell, map_above)) is not None:
            return found
    tell(f"decoded images of {name!r} are not kept ({'; '.join(reasons)})")
    return Decoded(*decode_all(paths, shape, skip, step, exact))


def _key(paths: list[Path], root: Path, shape: Shape, exact: bool) -> str:
    """What the pixels depend on: the files' names, sizes and times, and what they are converted to."""
    key = hashlib.sha256(json.dumps([LAYOUT, *shape, *(["exact"] if exact else [])]).encode())
    for path in paths:
        try:
            found = path.stat()
            state = f"\0{found.st_size}\0{found.st_mtime_ns}\0"
        except OSError:  # it is named when it is decoded
            state = "\0-1\0-1\0"
        key.update(os.fsencode(path.relative_to(root)) + state.encode())
    return key.hexdigest()


def _places(root: Path, name: str, shape: Shape) -> list[Path]:
    """Beside the images, or else in the user's own cache."""
    size = "x".join(str(length) for length in shape)
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grown"
    here, there = (hashlib.sha256(os.fsencode(text)).hexdigest()[:16] for text in (name, str(root.resolve() / name)))
    return [root / FOLDER / f"{here}-{size}.pixels", own / f"{there}-{size}.pixels"]


def _read(path: Path, key: str, shape: Shape, tell: Tell, map_above: int) -> Decoded | None:
    """What is kept there, if it is of this key and whole."""
    if not path.is_file():
        return None
    try:
        about = _about(path)
        if about["key"] != key:
            return None
        full = (about["count"], *shape)
        with path.open("rb") as handle:
            digest = _digest(handle, math.prod(full))
        if digest != about["sha256"] or not all(type(number) is int for number in about["broken"]):
            raise ValueError("the digest differs")
    except (OSError, ValueError, KeyError, TypeError):
        tell(f"{path} is damaged; the images are decoded again")
        return None
    if math.prod(full) > map_above:
        return Decoded(np.memmap(path, np.uint8, "r", shape=full), about["broken"])
    return Decoded(np.fromfile(path, np.uint8, math.prod(full)).reshape(full), about["broken"])


def _about(path: Path) -> dict[str, Any]:
    with path.open("rb") as handle:
        handle.seek(-8, os.SEEK_END)
        length = int.from_bytes(handle.read(8), "little")
        if length > LONGEST_ABOUT:
            raise ValueError("its end is not the end of a cache")
        handle.seek(-8 - length, os.SEEK_END)
        start, found = handle.tell(), json.loads(handle.read(length))
    if not isinstance(found, dict) or type(found["count"]) is not int or found["bytes"] != start:
        raise ValueError("it is not about these pixels")
    return found


def _digest(handle: Any, count: int) -> str:
    digest = hashlib.sha256()
    while count > 0:
        chunk = handle.read(min(count, 2**20))
        if not chunk:
            raise ValueError("it is cut off")
        digest.update(chunk)
        count -= len(chunk)
    return digest.hexdigest()


def _write(path: Path, count: int, images: Iterator[NDArray[np.uint8] | None], key: str) -> None:
    """Decode into a file that takes its place once it is whole; few images are in memory at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _tidy(path.parent)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    digest, broken = hashlib.sha256(), []
    try:
        with part.open("wb") as handle:
            for number, pixels in enumerate(images):
                if pixels is None:
                    broken.append(number)
                    continue
                handle.write(pixels.data)
                digest.update(pixels.data)
            about = {"key": key, "count": count - len(broken), "bytes": handle.tell()}
            text = json.dumps({**about, "sha256": digest.hexdigest(), "broken": broken}).encode()
            handle.write(text + len(text).to_bytes(8, "little"))
            handle.flush()
            os.fsync(handle.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _tidy(folder: Path) -> None:
    """Remove what killed processes left unfinished."""
    for part in folder.glob(".*.part"):
        if time.time() - part.stat().st_mtime > ABANDONED:
            part.unlink(missing_ok=True)
