"""The command `detent`: the native binary of the package, told where the installed ONNX Runtime is."""

import os
import pathlib
import sys

from . import _runtime

_EXIT_CODES = {"usage": 2, "bad_input": 3}


def _exit_code(of_child: int) -> int:
    return of_child if of_child >= 0 else 128 - of_child


def _run_with_text(binary: pathlib.Path) -> int:
    """The exit code of the binary, which gets token ids instead of the text of --calibration-text."""
    import signal
    import subprocess

    from . import _command_text
    from .errors import Error

    try:
        with _command_text.with_token_ids(binary, sys.argv[1:]) as words:
            child = subprocess.Popen([binary, *words])

            signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
            signal.signal(signal.SIGINT, lambda *_: None)  # terminals send it to the binary as well
            code = child.wait()
            return _exit_code(code)
    except _command_text.Refused as refused:
        return _exit_code(refused.code)
    except Error as error:
        print(f"detent: error: {error}", file=sys.stderr)
        return _EXIT_CODES.get(error.kind, 1)


def main() -> None:
    binary = pathlib.Path(__file__).with_name("detent")
    runtime = _runtime.library()
    if runtime is not None:
        os.environ["DETENT_ONNXRUNTIME"] = runtime
    try:
        if any(word.startswith("--calibration-text") for word in sys.argv[2:]):
            sys.exit(_run_with_text(binary))
        os.execv(binary, ["detent", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"detent: error: cannot run '{binary}': {error.strerror}; install detent again")


if __name__ == "__main__":
    main()
