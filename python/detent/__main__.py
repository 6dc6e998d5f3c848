"""The command `detent`: the native binary of the package, told where the installed ONNX Runtime is."""

import os
import pathlib
import sys

from . import _runtime


def main() -> None:
    binary = pathlib.Path(__file__).with_name("detent")
    runtime = _runtime.library()
    if runtime is not None:
        os.environ["DETENT_ONNXRUNTIME"] = runtime
    try:
        os.execv(binary, ["detent", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"detent: error: cannot run '{binary}': {error.strerror}; install detent again")


if __name__ == "__main__":
    main()
