"""Ready-made calibration data."""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from . import _hub
from ._samples import Pictures
from .errors import BadInput, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Bytes of a text or of a tokenizer.json, at most. What the package tokenizers keeps of a text is 30 times as much.
TEXT_SIZE = 256 << 20
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


def _local(path: str | os.PathLike[str]) -> pathlib.Path:
    return pathlib.Path(_hub.local(os.fspath(path)))


def _images_in(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _SUFFIXES and os.path.isfile(p))
    except (OSError, ValueError) as error:
        raise BadInput(f"'{folder}' cannot be listed: {error}") from None
    if not paths:
        raise BadInput(
            f"'{folder}' holds no images" if os.path.isdir(folder) else f"'{folder}' is not a folder", "give one with images"
        )
    return paths


@overload
def images(
    folder: str | os.PathLike[str], size: int = 0, *, preset: Literal["imagenet", "01", "11", "255", "yolo"]
) -> Pictures: ...
@overload
def images(
    folder: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    size: int | tuple[int, int],
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    layout: Literal["nchw", "nhwc"] = "nchw",
    *,
    channels: Literal["RGB", "BGR", "L"] = "RGB",
    name: str = "",
) -> Images: ...
def images(
    folder: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    size: int | tuple[int, int] = 0,
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    layout: Literal["nchw", "nhwc"] = "nchw",
    *,
    channels: Literal["RGB", "BGR", "L"] = "RGB",
    name: str = "",
    preset: str | None = None,
) -> Images | Pictures:
    """The images below a folder as samples, in the order of their paths; read one at a time, again for each pass.

    folder: or a sequence of image files, in any order.
    size: width and height that each image is resized to, or one number for both.
    mean, std: of each channel, for pixels from 0 to 1: (pixel / 255 - mean) / std.
    channels: "L" is one channel of brightness.
    name: of the input; optional for models with one input.
    preset: how pictures become the one input of a model, as for the command's --image-preset, bit for bit: detent reads .jpg and
    .png files itself then, in the model's size and layout. size is only for models that leave it open.

    Without a preset Pillow is needed: pip install pillow.
    """
    if preset is not None:
        return _pictures(folder, size, preset, (mean, std, layout, channels, name) != (0.0, 1.0, "nchw", "RGB", ""))
    import importlib.util

    import numpy as np

    if importlib.util.find_spec("PIL") is None:
        raise UsageError("detent.data.images needs Pillow", "pip install pillow")
    if layout not in ("nchw", "nhwc"):
        raise UsageError(f"layout: '{layout}' is not one of its values", "choose from: nchw, nhwc")
    if channels not in ("RGB", "BGR", "L"):
        raise UsageError(f"channels: '{channels}' is not one of its values", "choose from: RGB, BGR, L")
    paths = _images_in(_local(folder)) if isinstance(folder, str | os.PathLike) else [pathlib.Path(p) for p in folder]

    def per_channel(value: Any, what: str) -> NDArray[np.float32]:
        try:
            array = np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"{what}: {value!r} is not made of numbers", "give one number, or one for each channel") from None
        if array.shape not in ((), (1 if channels == "L" else 3,)):
            raise UsageError(f"{what} has {array.size} values for {channels}", "give one number, or one for each channel")
        return array

    pair = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list | tuple) else ()
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise UsageError(f"size: {size!r} is not a width and a height", "give one number, or two")
    return Images(paths, pair, per_channel(mean, "mean"), per_channel(std, "std"), layout, channels, name)


def _pictures(folder: Any, size: Any, preset: str, has_more: bool) -> Pictures:
    if not isinstance(folder, str | os.PathLike):
        raise UsageError("preset is for the pictures of a folder", "give one, or mean and std instead of preset")
    if has_more:
        raise UsageError("mean, std, layout, channels and name do not go with preset, which says them", "leave them out")
    if not isinstance(size, int) or size < 0:
        raise UsageError(f"size: {size!r} is not a number of pixels", "leave it out, or give one number")
    return Pictures(str(_local(folder)), preset, size)


class Columns:
    """Samples of which only some parts are inputs; see columns()."""

    def __init__(self, samples: Iterable[Any], keys: Mapping[str, str | int]) -> None:
        if not isinstance(keys, Mapping):
            raise TypeError(f"keys is a dict from inputs to keys of samples, not a {type(keys).__name__}")
        self._samples, self._keys = samples, keys

    def __len__(self) -> int:
        return len(self._samples)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for sample in self._samples:
            try:
                yield {name: sample[key] for name, key in self._keys.items()}
            except (KeyError, IndexError, TypeError):
                found = ", ".join(map(str, sample)) if isinstance(sample, Mapping) else f"a {type(sample).__name__}"
                raise BadInput(f"a sample lacks one of {list(self._keys.values())}; found: {found}") from None


def columns(samples: Iterable[Any], inputs: Sequence[str] | Mapping[str, str | int]) -> Iterable[dict[str, Any]]:
    """Of each sample the parts that are inputs: for dicts with more keys, such as labels, or with other names.

    samples: dicts, tuples or lists; a DataLoader, a Hugging Face dataset, a list, a generator.
    inputs: keys that are input names, or for each input name the key or position of its part:
        columns(loader, {"pixel_values": 0}).
    """
    keys = dict(inputs) if isinstance(inputs, Mapping) else {name: name for name in inputs}
    picked = Columns(samples, keys)
    return iter(picked) if isinstance(samples, Iterator) else picked


class Text:
    """Windows of a text's token ids, each a sample of one row; see text()."""

    def __init__(self, windows: NDArray[np.int64], name: str) -> None:
        self._windows, self._name = windows, name

    def __len__(self) -> int:
        return len(self._windows)

    def __iter__(self) -> Iterator[dict[str, NDArray[np.int64]]]:
        for window in self._windows:
            yield {self._name: window[None]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one .npy of all windows, for `detent … --calibration-data PATH --batch-size 1`."""
        import numpy as np

        with open(path, "wb") as file:
            np.save(file, self._windows)


def text(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    model: str | os.PathLike[str],
    length: int = 512,
    *,
    count: int = 0,
    name: str = "input_ids",
) -> Text:
    """Text files as samples for a decoder: token ids by the model's own tokenizer, one after another without padding,
    cut into windows of one length. What is left at the end is not used.

    files: one UTF-8 file, or several in their order.
    model: the model's folder, which has a tokenizer.json; or that file.
    length: tokens of a window, with those that the tokenizer puts before every text.
    count: of windows, spread over the text; 0 is all.

    Needs tokenizers: pip install tokenizers.
    """
    import numpy as np

    tokenizer = _tokenizer(model, "text")
    start = tokenizer.ids_of("", special=True)[:1]  # what begins every text, if anything does
    own = length - len(start)
    if own < 1:
        raise UsageError(f"length: {length} leaves no room for text", "give at least 2")
    paths = [_local(files)] if isinstance(files, str | os.PathLike) else list(files)
    contents = (_content(pathlib.Path(file)) for file in paths)
    ids = np.concatenate([np.empty(0, np.int64), *(tokenizer.ids_of(content, special=False) for content in contents)])
    starts = np.arange(0, len(ids) - own + 1, own)
    if len(starts) == 0:
        raise BadInput(f"the text has {len(ids)} tokens, less than one window of {own}", "give more text, or a smaller length")
    if 0 < count < len(starts):
        starts = starts[np.linspace(0, len(starts) - 1, count).astype(int)]
    rows = [np.concatenate([start, ids[at : at + own]]) for at in starts]
    return Text(np.stack(rows), name)


class Lines:
    """Lines of a text, each a sample of one row with its own length; see lines()."""

    def __init__(self, rows: list[NDArray[np.int64]], name: str) -> None:
        self._rows, self._name = rows, name

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, NDArray[np.int64]]]:
        for row in self._rows:
            yield {self._name: row[None]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a new folder with an .npy for each line, for `detent … --calibration-data PATH`."""
        import numpy as np

        os.mkdir(path)
        for number, row in enumerate(self._rows):
            np.save(pathlib.Path(path, f"{number}.npy"), row[None])


def lines(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    model: str | os.PathLike[str],
    length: int = 512,
    *,
    count: int = 0,
    name: str = "input_ids",
) -> Lines:
    """Text files as samples for an encoder: each line that is not empty is one, with all that the tokenizer puts
    around a text. The model's attention_mask is then ones, and its token_type_ids are zeros.

    files: one UTF-8 file, or several in their order.
    model: the model's folder, which has a tokenizer.json; or that file.
    length: tokens of a line at most; what goes beyond is cut off as the tokenizer does it.
    count: of lines, spread over the text; 0 is all.

    Needs tokenizers: pip install tokenizers.
    """
    import numpy as np

    tokenizer = _tokenizer(model, "lines")
    tokenizer.truncate(length)
    paths = [_local(files)] if isinstance(files, str | os.PathLike) else list(files)
    texts = [line for file in paths for line in _content(pathlib.Path(file)).splitlines() if line.strip()]
    if not texts:
        raise BadInput("the text has no line that is not empty", "give one text in each line")
    if 0 < count < len(texts):
        texts = [texts[at] for at in np.linspace(0, len(texts) - 1, count).astype(int)]
    return Lines([tokenizer.ids_of(line, special=True) for line in texts], name)


def _tokenizer(model: str | os.PathLike[str], caller: str) -> _Tokenizer:
    """The tokenizer of a folder or file, without padding and truncation."""
    import importlib.util

    if importlib.util.find_spec("tokenizers") is None:
        raise UsageError(f"detent.data.{caller} needs tokenizers", "pip install tokenizers")
    from tokenizers import Tokenizer

    path = _local(model)
    path = path / "tokenizer.json" if os.path.isdir(path) else path
    if not os.path.exists(path):
        raise BadInput(f"'{path}' does not exist", "give the folder of a model with its tokenizer")
    content = _content(path, "a tokenizer", "give the folder of a model with its tokenizer")
    with _panics_told(f"'{path}' cannot be read as a tokenizer"):
        tokenizer = Tokenizer.from_str(content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
    return _Tokenizer(tokenizer, path)


class _Tokenizer:
    def __init__(self, tokenizer: Any, path: pathlib.Path) -> None:
        self._tokenizer, self._path = tokenizer, path

    def truncate(self, length: int) -> None:
        with _panics_told(f"length: {length}"):
            self._tokenizer.enable_truncation(length)

    def ids_of(self, text: str, *, special: bool) -> NDArray[np.int64]:
        import numpy as np

        with _panics_told(f"'{self._path}' cannot be used as a tokenizer of this text"):
            return np.array(self._tokenizer.encode(text, add_special_tokens=special).ids, np.int64)


@contextlib.contextmanager
def _panics_told(what: str) -> Iterator[None]:
    """Whatever the package tokenizers throws has no narrower type, and its panics are no Exception."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise BadInput(f"{what}: {next(iter(str(error).splitlines()), type(error).__name__)}") from None


def _content(path: pathlib.Path, what: str = "text", hint: str = "") -> str:
    """Of a regular file alone: a FIFO would be waited for, and a device has no end."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadInput(f"'{path}' cannot be read as {what}: it is not a regular file", hint)
            content = file.read(TEXT_SIZE + 1)
        if len(content) > TEXT_SIZE:
            raise BadInput(
                f"'{path}' cannot be read as {what}: it has more than {TEXT_SIZE >> 20} MiB", hint or "give a part of it"
            )
        return content.decode("utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"'{path}' cannot be read as {what}: {reason}", hint) from None
