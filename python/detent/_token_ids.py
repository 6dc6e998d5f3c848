"""Token ids of a text, made in a process of its own: a tokenizer.json comes with a model, and may ask for anything.

main() is that process. It prints a JSON object with the error, if there is one.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
from typing import Any

from . import data
from .errors import BadInput, Error, ResourceError, UsageError, make

MEMORY = 8 << 30
SECONDS = 900.0
_PR_SET_PDEATHSIG = 1


def write(kind: str, text: str, tokenizer: pathlib.Path, length: int, count: int, output: pathlib.Path, seconds: float) -> None:
    """Writes the samples of data.lines or data.text. Throws an Error whatever becomes of the process."""
    # With the same path: `-m` would also look for packages in the current folder.
    program = f"import sys; sys.path[:] = {sys.path!r}; from detent._token_ids import main; sys.exit(main(*sys.argv[1:]))"
    words = [kind, text, str(tokenizer), str(length), str(count), str(output)]
    try:
        told = subprocess.run(
            [sys.executable, "-c", program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ResourceError(f"'{tokenizer}' takes longer than {seconds:.0f} s for this text", "give less text") from None
    except OSError as error:
        raise ResourceError(f"cannot start '{sys.executable}' to read the text: {error.strerror}") from None
    if told.returncode == 0:
        return
    try:
        found = json.loads(told.stdout)
    except ValueError:
        number = -told.returncode
        end = signal.strsignal(number) if number > 0 else f"status {told.returncode}"
        raise BadInput(
            f"the process that read the text with '{tokenizer}' ended by itself ({end})",
            f"it may take {MEMORY >> 30} GiB of memory: give less text, or another tokenizer",
        ) from None
    raise make(found["kind"], found["message"], found["hint"])


def _bound() -> None:
    """Ends with the parent, takes no memory without end, and leaves no core."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    for what, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(what)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (limit, limit))


def main(kind: str, text: str, tokenizer: str, length: str, count: str, output: str) -> int:
    _bound()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    read: Any = {"lines": data.lines, "text": data.text}[kind]
    error: Error
    try:
        read(text, tokenizer, int(length), count=int(count)).save(output)
        return 0
    except MemoryError:
        error = ResourceError(f"'{tokenizer}' takes more than {MEMORY >> 30} GiB for this text", "give less text")
    except OSError as failed:
        error = ResourceError(f"cannot write token ids to '{output}': {failed.strerror}", "set XDG_CACHE_HOME to another folder")
    except Error as told:
        error = told
    except (ValueError, OverflowError) as failed:
        error = UsageError(f"--text-length {length}, --samples {count}: {failed}")
    print(json.dumps({"kind": error.kind, "message": error.message, "hint": error.hint}))
    return 1
