"""Runs models in one version of ONNX Runtime, each in a child, as the runtime may crash: `worker.py VERSION`, then one JSON a line.

A request names a model, a file of samples, a file for the results and a setting of the session; the answer is null, or what
the runtime said."""

import json
import os
import pickle
import sys

import numpy as np
import onnxruntime as ort

SECONDS = 60


def run(model: str, samples: str, results: str, setting: str) -> str | None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if setting:
        options.add_session_config_entry(setting, "1")
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        with open(samples, "rb") as file:
            found = [session.run(None, sample) for sample in pickle.load(file)]  # noqa: S301
        with open(results, "wb") as file:
            pickle.dump([[np.asarray(value) for value in sample] for sample in found], file)
    except Exception as error:  # noqa: BLE001
        return str(error)[:400] or type(error).__name__
    return None


def in_child(request: dict) -> str | None:
    into, out = os.pipe()
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(SECONDS)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(out, json.dumps(run(**request)).encode())
        os._exit(0)
    os.close(out)
    with os.fdopen(into, "rb") as pipe:
        data = pipe.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(data) if data else f"ended by signal {os.WTERMSIG(status)}"


assert ort.__version__ == sys.argv[1], ort.__version__
for line in sys.stdin:
    print(json.dumps(in_child(json.loads(line))), flush=True)
