"""Finds ONNX Runtime's library in the installed package without importing the package."""

import functools
import importlib.util
import os
import re


@functools.cache
def installed() -> str | None:
    """The library of the onnxruntime package that `import onnxruntime` would load, or None."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        return None
    for location in spec.submodule_search_locations:
        capi = os.path.join(location, "capi")
        names = os.listdir(capi) if os.path.isdir(capi) else []
        found = [name for name in names if name == "onnxruntime.dll" or name.startswith("libonnxruntime.so")]
        if found:
            return os.path.join(capi, max(found, key=lambda name: [int(n) for n in re.findall(r"\d+", name)]))
    return None


def library() -> str | None:
    """The library to load; None if $DETENT_ONNXRUNTIME is set or none is installed."""
    return None if os.environ.get("DETENT_ONNXRUNTIME") else installed()
