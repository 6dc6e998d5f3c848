"""Ready-made calibration data."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .errors import BadInput, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".ppm", ".tif", ".tiff"}


class Images:
    """The images of a folder, each a sample of one row; see images()."""

    def __init__(
        self,
        paths: Sequence[pathlib.Path],
        size: tuple[int, int],
        mean: NDArray[np.float32],
        std: NDArray[np.float32],
        layout: str,
        channels: str,
        name: str,
    ) -> None:
        self._paths, self._size, self._mean, self._std = paths, size, mean, std
        self._layout, self._channels, self._name = layout, channels, name

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[dict[str, NDArray[np.float32]]]:
        for path in self._paths:
            yield {self._name: self._load(path)}

    def _load(self, path: pathlib.Path) -> NDArray[np.float32]:
        import numpy as np
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(path) as image:
                resized = image.convert("L" if self._channels == "L" else "RGB").resize(self._size, Image.Resampling.BILINEAR)
        except (UnidentifiedImageError, OSError) as error:
            raise BadInput(f"'{path}' cannot be read as an image: {str(error).splitlines()[0]}") from None
        pixels = np.asarray(resized, dtype=np.float32)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        if self._channels == "BGR":
            pixels = pixels[:, :, ::-1]
        pixels = (pixels / np.float32(255) - self._mean) / self._std
        if self._layout == "nchw":
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels[None])


def _images_in(folder: pathlib.Path) -> list[pathlib.Path]:
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())
    if not paths:
        raise BadInput(f"'{folder}' holds no images" if folder.is_dir() else f"'{folder}' is not a folder", "give one with images")
    return paths


def images(
    folder: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    size: int | tuple[int, int],
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    layout: Literal["nchw", "nhwc"] = "nchw",
    *,
    channels: Literal["RGB", "BGR", "L"] = "RGB",
    name: str = "",
) -> Images:
    """The images below a folder as samples, in the order of their paths; read one at a time, again for each pass.

    folder: or a sequence of image files, in any order.
    size: width and height that each image is resized to, or one number for both.
    mean, std: of each channel, for pixels from 0 to 1: (pixel / 255 - mean) / std.
    channels: "L" is one channel of brightness.
    name: of the input; optional for models with one input.

    Needs Pillow: pip install detent[images].
    """
    import importlib.util

    import numpy as np

    if importlib.util.find_spec("PIL") is None:
        raise UsageError("detent.data.images needs Pillow", "pip install pillow")
    if layout not in ("nchw", "nhwc"):
        raise UsageError(f"layout: '{layout}' is not one of its values", "choose from: nchw, nhwc")
    if channels not in ("RGB", "BGR", "L"):
        raise UsageError(f"channels: '{channels}' is not one of its values", "choose from: RGB, BGR, L")
    paths = _images_in(pathlib.Path(folder)) if isinstance(folder, str | os.PathLike) else [pathlib.Path(p) for p in folder]

    def per_channel(value: Any, what: str) -> NDArray[np.float32]:
        array = np.asarray(value, dtype=np.float32)
        if array.shape not in ((), (1 if channels == "L" else 3,)):
            raise UsageError(f"{what} has {array.size} values for {channels}", "give one number, or one for each channel")
        return array

    pair = (size, size) if isinstance(size, int) else (size[0], size[1])
    return Images(paths, pair, per_channel(mean, "mean"), per_channel(std, "std"), layout, channels, name)
