"""Image files as arrays: any size, grey or colour, converted to what a network takes."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grown.errors import FileError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
LARGEST = 2**26  # pixels of one image: what is unpacked from a small file can be enormous
PIECE = 32  # images that a thread decodes at a time
GREY = ("1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N")
DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N")  # whole numbers of more than 8 bits

Shape = tuple[int, int, int]  # channels, height, width


def is_image(path: Path) -> bool:
    """Whether a file is named like an image."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def look(path: Path) -> tuple[int, int, bool]:
    """Width, height and whether it has colours, from the file's header alone."""
    with _opened(path) as image:
        return image.width, image.height, not _is_grey(image)


def decode(path: Path, shape: Shape, exact: bool = False) -> NDArray[np.uint8]:
    """The image as (channels, height, width): its middle, in the network's proportions, scaled unless it must fit."""
    from PIL import Image, ImageOps

    channels, height, width = shape
    with _opened(path) as image:
        if exact and image.size != (width, height):
            raise FileError(
                f"{path}: it has {image.width} x {image.height} pixels, but {width} x {height} are expected; "
                f"--image-size {width} resizes such images"
            )
        image.draft(None, (2 * width, 2 * height))  # a JPEG much larger than needed is unpacked smaller
        plain = ImageOps.exif_transpose(_flat(path, image)).convert("L" if channels == 1 else "RGB")
        if plain.size != (width, height):
            plain = ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR)
        pixels: NDArray[np.uint8] = np.asarray(plain).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def decode_each(
    paths: list[Path],
    shape: Shape,
    *,
    skip: bool = False,
    exact: bool = False,
    step: Callable[[int], None] | None = None,
) -> Iterator[NDArray[np.uint8] | None]:
    """These images in their order, decoded by all cores, a few ahead; a broken one raises, or is None if skipped."""
    pieces = (paths[start : start + PIECE] for start in range(0, len(paths), PIECE))
    done = 0
    with ThreadPoolExecutor(_cores()) as pool:
        running = deque(pool.submit(_try_piece, piece, shape, exact) for piece in islice(pieces, 2 * _cores()))
        try:
            while running:
                for found in running.popleft().result():
                    if isinstance(found, FileError) and not skip:
                        raise found
                    yield None if isinstance(found, FileError) else found
                    done += 1
                    if step is not None:
                        step(done)
                running.extend(pool.submit(_try_piece, piece, shape, exact) for piece in islice(pieces, 1))
        finally:
            pool.shutdown(cancel_futures=True)


def decode_all(
    paths: list[Path],
    shape: Shape,
    skip: bool = False,
    step: Callable[[int], None] | None = None,
    exact: bool = False,
) -> tuple[NDArray[np.uint8], list[int]]:
    """All of these (n, channels, height, width), and the numbers of the broken ones, which are not among them."""
    found = list(decode_each(paths, shape, skip=skip, exact=exact, step=step))
    good = [image for image in found if image is not None]
    broken = [number for number, image in enumerate(found) if image is None]
    return np.stack(good) if good else np.zeros((0, *shape), np.uint8), broken


def _try_piece(paths: list[Path], shape: Shape, exact: bool) -> list[NDArray[np.uint8] | FileError]:
    found: list[NDArray[np.uint8] | FileError] = []
    for path in paths:
        try:
            found.append(decode(path, shape, exact))
        except FileError as error:
            found.append(error)
    return found


def _cores() -> int:
    """What this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Quiet:
    """Silences warnings, which are the whole process's: the first thread inside turns them off, the last one on."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._silence: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._silence = warnings.catch_warnings()
                self._silence.__enter__()
                warnings.simplefilter("ignore")

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._silence.__exit__()


_QUIET = _Quiet()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An image whose size is known to be harmless; whatever goes wrong with it names it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise FileError("reading image files needs Pillow: pip install 'grown[images]'") from error
    try:
        with _QUIET, Image.open(path, formats=FORMATS) as image:  # what Pillow only warns of is refused, or harmless
            if image.width * image.height > LARGEST:
                raise FileError(f"{path}: {image.width} x {image.height} pixels are more than {LARGEST:,}")
            yield image
    except FileError:
        raise
    except Exception as error:  # a damaged image can raise nearly anything
        raise FileError(f"{path}: not a readable image") from error


def _is_grey(image: Any) -> bool:
    if image.mode not in ("P", "PA"):
        return image.mode in GREY
    palette = np.array(image.getpalette("RGB"), dtype=np.uint8).reshape(-1, 3)
    return bool((palette == palette[:, :1]).all())


def _flat(path: Path, image: Any) -> Any:
    """Eight bits a channel and nothing transparent: 16 bits are scaled, and what shines through is white."""
    from PIL import Image

    if image.mode == "F":
        raise FileError(f"{path}: its pixels are floating-point numbers, which have no known range; save it as 8 bit")
    if image.mode in DEEP:
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise FileError(f"{path}: its pixels do not lie between 0 and 65535; save it as 8 or 16 bit")
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image
