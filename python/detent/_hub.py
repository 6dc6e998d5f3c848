"""Paths on the Hugging Face hub, "hf://OWNER/NAME[@REVISION][/PATH]" and "hf://datasets/OWNER/NAME…": by the package
huggingface_hub, with its cache, its token and its environment variables."""

from __future__ import annotations

import importlib.util
import os
import re

from .errors import BadInput, UsageError

PREFIX = "hf://"
#: What detent never reads of a repository that is fetched whole.
_OTHER_WEIGHTS = ["*.safetensors", "*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.ot", "*.gguf", "*.tflite", "*.mlmodel"]
_HOW = (
    "write hf://OWNER/NAME, hf://OWNER/NAME/PATH or hf://datasets/OWNER/NAME/PATH; a revision stands behind NAME, as in NAME@main"
)


def local(path: str) -> str:
    """The path itself, or where a path of the hub lies in the cache, fetched if it is not there."""
    if not path.startswith(PREFIX):
        return path
    kind, repository, revision, inside = _parts(path)
    if importlib.util.find_spec("huggingface_hub") is None:
        raise UsageError(f"'{path}' needs huggingface_hub", "pip install huggingface_hub")
    from huggingface_hub import snapshot_download

    def fetch(patterns: list[str] | None) -> str:
        ignored = _OTHER_WEIGHTS if kind == "model" and not inside else None
        whole = {"allow_patterns": patterns, "ignore_patterns": ignored}
        return str(snapshot_download(repository, repo_type=kind, revision=revision, **whole))

    is_model = os.path.splitext(inside)[1] == ".onnx"
    try:
        snapshot = fetch(([inside] if is_model else [inside, f"{inside}/*"]) if inside else None)
        data = _data_beside(os.path.join(snapshot, inside), os.path.dirname(inside)) if is_model else []
        if data:
            snapshot = fetch([inside, *data])
    except Exception as error:  # of the package, of its HTTP client and of the system, by version
        told = next(iter(str(error).splitlines()), type(error).__name__)
        raise BadInput(
            f"'{path}' cannot be fetched: {told}", "look after its name, the network, and HF_TOKEN if it is private"
        ) from error
    found = os.path.join(snapshot, inside)
    if not os.path.lexists(found):
        raise BadInput(
            f"'{path}': the repository has no '{inside}'", f"see https://huggingface.co/{_page(kind, repository)}/tree/main"
        )
    return found


def _data_beside(model: str, folder: str) -> list[str]:
    """The files that hold a model's tensors: they lie beside it, under any name."""
    import mmap

    if not os.path.isfile(model) or not os.path.getsize(model):
        return []
    with open(model, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        # An entry of TensorProto.external_data: its key, and its value with the length before it.
        found = re.findall(rb"\x0a\x08location\x12([\x01-\x7f])([^\x00-\x1f]{1,127})", content)
    names = {text[: length[0]].decode(errors="replace") for length, text in found if len(text) >= length[0]}
    return [os.path.normpath(os.path.join(folder, name)) for name in sorted(names)]


def _parts(path: str) -> tuple[str, str, str | None, str]:
    words = path.removeprefix(PREFIX).strip("/").split("/")
    kind = "model"
    if words[0] in ("datasets", "models"):
        kind = words.pop(0)[:-1]
    if len(words) < 2 or not all(words) or ".." in words:  # noqa: PLR2004
        raise UsageError(f"'{path}' is no path on the Hugging Face hub", _HOW)
    name, _, revision = words[1].partition("@")
    if not name:
        raise UsageError(f"'{path}' is no path on the Hugging Face hub", _HOW)
    return kind, f"{words[0]}/{name}", revision or None, "/".join(words[2:])


def _page(kind: str, repository: str) -> str:
    return repository if kind == "model" else f"datasets/{repository}"
