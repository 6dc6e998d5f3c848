"""What the children that run other quantizers share: the samples, the number of threads, how they report their time."""

import glob
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader


class Samples(CalibrationDataReader):
    """A folder of .npz files in the order of their names; one sample is read when it is asked for."""

    def __init__(self, folder: str):
        self.files = sorted(glob.glob(os.path.join(folder, "*.npz")))
        self.at = 0

    def __len__(self) -> int:
        return len(self.files)

    def get_next(self) -> dict[str, np.ndarray] | None:
        if self.at == len(self.files):
            return None
        self.at += 1
        return dict(np.load(self.files[self.at - 1]))


class Stage:
    """Seconds spent in the calls it wraps, as against those of the whole process with its imports."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            started = time.monotonic()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.monotonic() - started

        return wrapper

    def report(self, out: str) -> None:
        """The last line of the output; a quantizer may give up without an error, so the model is looked for."""
        if not os.path.exists(out):
            raise SystemExit("the quantizer returned without an error and wrote no model")
        print("\n" + json.dumps({"stage_s": self.seconds}))


def set_threads(threads: int) -> None:
    """Neither quantizer has an option for the threads of its calibration session, so the class of options is replaced.
    Call it before Quark is imported."""
    plain = onnxruntime.SessionOptions

    class SessionOptions(plain):
        def __init__(self) -> None:
            plain.__init__(self)
            self.intra_op_num_threads = threads

    onnxruntime.SessionOptions = SessionOptions
