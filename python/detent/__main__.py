"""The command `detent`: the native binary of the package, told where the installed ONNX Runtime is."""

import os
import pathlib
import sys

from . import _runtime

_EXIT_CODES = {"usage": 2, "bad_input": 3, "resource": 4, "device": 5}
_INTERRUPTED = 130
_IS_WINDOWS = os.name == "nt"


def _exit_code(of_child: int) -> int:
    return of_child if of_child >= 0 else 128 - of_child


def _printable(text: str) -> str:
    """Names come from outside, and must not move a terminal's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _run_with_text(binary: pathlib.Path) -> int:
    """The exit code of the binary, which gets token ids instead of the text of --calibration-text."""
    import signal
    import subprocess

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the token ids are removed after this as well
    from . import _command_text
    from .errors import Error

    try:
        with _command_text.with_token_ids(binary, sys.argv[1:]) as words:
            ending = {signal.SIGINT, signal.SIGTERM}
            signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # until they can be handed on; the binary waits for them itself
            child = subprocess.Popen([binary, *words])
            signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
            signal.signal(signal.SIGINT, lambda *_: None)  # terminals send it to the binary as well
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)
            return _exit_code(child.wait())
    except _command_text.Refused as refused:
        return _exit_code(refused.code)
    except Error as error:
        print(f"detent: error: {_printable(str(error))}", file=sys.stderr)
        return _EXIT_CODES.get(error.kind, 1)


def _with_local_paths(words: list[str]) -> list[str]:
    """What stands on the Hugging Face hub, as an argument or the value of an option, lies in its cache then."""
    from . import _hub
    from .errors import Error

    def local(word: str) -> str:
        option, joined, value = word.partition("=") if word.startswith("--") else ("", "", word)
        return option + joined + _hub.local(value)

    try:
        return [local(word) for word in words]
    except Error as error:
        print(f"detent: error: {_printable(str(error))}", file=sys.stderr)
        sys.exit(_EXIT_CODES.get(error.kind, 1))
    except KeyboardInterrupt:
        print("detent: error: interrupted", file=sys.stderr)
        sys.exit(_INTERRUPTED)


def _run_demo() -> int:
    from . import _demo
    from .errors import Error

    try:
        return _demo.run(sys.argv[2:])
    except Error as error:
        print(f"detent: error: {_printable(str(error))}", file=sys.stderr)
        return _EXIT_CODES.get(error.kind, 1)
    except KeyboardInterrupt:
        print("detent: error: interrupted", file=sys.stderr)
        return _INTERRUPTED


def main() -> None:
    if sys.argv[1:2] == ["demo"]:
        sys.exit(_run_demo())
    binary = pathlib.Path(__file__).with_name("detent.exe" if _IS_WINDOWS else "detent")
    if any("hf://" in word for word in sys.argv[1:]):
        sys.argv[1:] = _with_local_paths(sys.argv[1:])
    runtime = _runtime.library()
    if runtime is not None:
        os.environ["DETENT_ONNXRUNTIME"] = runtime
    has_text = any(word.startswith("--calibration-text") for word in sys.argv[2:])
    if has_text and os.access(binary, os.X_OK) and not _IS_WINDOWS:
        try:
            code = _run_with_text(binary)
        except KeyboardInterrupt:
            code = _INTERRUPTED
            print("detent: error: interrupted", file=sys.stderr)
        sys.exit(code)
    try:
        if _IS_WINDOWS:  # where a program cannot take this one's place
            import subprocess

            sys.exit(subprocess.call([binary, *sys.argv[1:]]))
        os.execv(binary, ["detent", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"detent: error: cannot run '{binary}': {error.strerror}; install detent again")


if __name__ == "__main__":
    main()
