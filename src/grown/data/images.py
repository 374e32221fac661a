"""Image files as arrays: any size, grey or colour, converted to what a network takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grown.errors import FileError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
LARGEST = 2**26  # pixels of one image: what is unpacked from a small file can be enormous
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


def decode(path: Path, shape: Shape) -> NDArray[np.uint8]:
    """The image as (channels, height, width): its middle, in the network's proportions, scaled."""
    from PIL import Image, ImageOps

    channels, height, width = shape
    with _opened(path) as image:
        image.draft(None, (2 * width, 2 * height))  # a JPEG much larger than needed is unpacked smaller
        plain = ImageOps.exif_transpose(_flat(path, image)).convert("L" if channels == 1 else "RGB")
        if plain.size != (width, height):
            plain = ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR)
        pixels: NDArray[np.uint8] = np.asarray(plain).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def decode_all(
    paths: list[Path], shape: Shape, skip: bool = False, step: Callable[[int], None] | None = None
) -> tuple[NDArray[np.uint8], list[int]]:
    """All of these (n, channels, height, width), and the numbers of the broken ones, which are not among them."""
    found, broken = [], []
    for number, path in enumerate(paths):
        try:
            found.append(decode(path, shape))
        except FileError:
            if not skip:
                raise
            broken.append(number)
        if step is not None:
            step(number + 1)
    return np.stack(found) if found else np.zeros((0, *shape), np.uint8), broken


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An image whose size is known to be harmless; whatever goes wrong with it names it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise FileError("reading image files needs Pillow: pip install 'grown[images]'") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Pillow only warns of is refused below, or harmless
            with Image.open(path, formats=FORMATS) as image:
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
