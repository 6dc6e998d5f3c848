"""How runs behave inside a Python process: memory, threads, Ctrl-C, progress."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types

import detent
import graphs
import numpy as np
import onnx
import pytest
import support
from test_same_bytes import Tensor

# Prints the process's peak memory after quantizing with a generator of so many samples of 4.8 MB each.
GENERATE = """
import json, pathlib, sys
import numpy as np, detent
def samples():
    for i in range(int(sys.argv[2])):
        yield {"x": np.full((400, 3, 32, 32), i % 7, np.float32)}
result = detent.quantize(sys.argv[1], sys.argv[1] + ".out", samples(), {"threads": 1})
status = pathlib.Path("/proc/self/status").read_text()
print(json.dumps({"peak": int(status.split("VmHWM:")[1].split()[0]) * 1024, "samples": result.samples}))
"""


def python(code: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)


@pytest.fixture
def thin_model(tmp_path):
    """Reads much and computes little."""
    b = graphs.Builder()
    x = b.add("GlobalAveragePool", b.add("MaxPool", "x", kernel_shape=[8, 8], strides=[8, 8]))
    x = b.add("Gemm", b.add("Flatten", x), b.weight("w", 3, 4), b.weight("b", 4))
    onnx.save(b.model({"x": (graphs.FLOAT, ["N", 3, 32, 32])}, [x]), tmp_path / "thin.onnx")
    return tmp_path / "thin.onnx"


@pytest.mark.full
def test_a_thousand_samples_take_the_memory_of_eight(thin_model):
    told = {}
    for count in (8, 1000):
        result = python(GENERATE, thin_model, count)
        assert result.returncode == 0, result.stderr
        told[count] = json.loads(result.stdout)
        assert told[count]["samples"] == count
    # Of 4.7 GB, with 24 bytes for each of 400,000 rows. How many are read ahead depends on how busy the machine is.
    assert told[1000]["peak"] <= 1.05 * told[8]["peak"] + (22 << 20)


def test_ctrl_c_stops_and_leaves_nothing(model, tmp_path):
    code = """
import sys, detent, graphs
made = graphs.cnn_samples(8)  # an import of numpy.random would lose the KeyboardInterrupt
def samples():
    print("started", flush=True)
    while True:
        yield from made
try:
    detent.quantize(sys.argv[1], sys.argv[1] + ".out", samples())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    work = tmp_path / "work"
    work.mkdir()
    environment = {**os.environ, "TMPDIR": str(work)}
    child = subprocess.Popen(
        [sys.executable, "-c", code, model], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdout.readline() == "started\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=200)
    assert (out, err, child.returncode) == ("interrupted\n", "", 0)
    assert list(work.iterdir()) == []
    assert not (tmp_path / "model.onnx.out").exists()


def test_ctrl_c_amid_an_attribute_of_a_sample(model, samples, tmp_path):
    """Such as the name of numpy's types, which is Python code."""

    class Array(Tensor):
        @property
        def dtype(self):
            os.kill(os.getpid(), signal.SIGINT)
            return self.array.dtype

    wrapped = [{name: Array(value) for name, value in sample.items()} for sample in samples]
    with pytest.raises(KeyboardInterrupt):
        detent.quantize(model, tmp_path / "out.onnx", wrapped)
    assert not (tmp_path / "out.onnx").exists()


def test_other_threads_go_on(model):
    """While samples run, a thread has many more turns than there are samples."""
    big = [{"x": np.random.default_rng(i).normal(size=(256, 3, 16, 16)).astype(np.float32)} for i in range(24)]
    counts = {"total": 0}
    ended = threading.Event()

    def count():
        while not ended.is_set():
            counts["total"] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = counts["total"]
    detent.quantize(model, data=big, config={"threads": 1})
    turns = counts["total"] - before
    ended.set()
    thread.join()
    assert turns > 5 * len(big)


def test_the_callers_code_runs_in_the_callers_thread(model, samples):
    threads = set()

    def generate():
        for sample in samples:
            threads.add(threading.get_ident())
            yield sample

    detent.quantize(model, data=generate(), progress=lambda *_: threads.add(threading.get_ident()))
    assert threads == {threading.get_ident()}


def test_a_function_scores_in_the_callers_thread(model, samples, tmp_path):
    """The score: a share of the products in float, so that only fewer integers raise it."""
    seen = []

    def score(path: str) -> float:
        seen.append(threading.get_ident())
        nodes = onnx.load(path).graph.node
        makers = {name: node.op_type for node in nodes for name in node.output}
        products = [node for node in nodes if node.op_type in ("Conv", "Gemm", "MatMul")]
        return sum(makers.get(node.input[1]) != "DequantizeLinear" for node in products) / len(products)

    accuracy = detent.Accuracy(metric=score, target=0.3)
    result = detent.quantize(model, tmp_path / "q.onnx", samples, detent.Config(accuracy=accuracy))
    assert result.accuracy.score == score(tmp_path / "q.onnx") >= 0.3
    assert set(seen) == {threading.get_ident()}
    assert len(result.accuracy.float_nodes) > 0


@pytest.mark.parametrize(("score", "error"), [(lambda path: "no number", ValueError), (lambda path: 1 / 0, ZeroDivisionError)])
def test_what_a_score_raises_comes_through(model, samples, tmp_path, score, error):
    accuracy = detent.Accuracy(metric=score, target=0.9)
    with pytest.raises(error):
        detent.quantize(model, tmp_path / "q.onnx", samples, {"accuracy": accuracy})
    assert not (tmp_path / "q.onnx").exists()


def extremes_or(fail: str):
    """A method with the range of minmax, unless the activation has this name."""

    def method(counts, edges, minimum, maximum):
        assert counts.sum() > 0 and len(edges) == len(counts) + 1 and (np.diff(edges) > 0).all()
        assert edges[0] <= minimum <= maximum <= edges[-1]
        return {"nan": np.nan, "text": "wide"}.get(fail, minimum), maximum

    return method


def test_a_method_of_ones_own(model, samples, tmp_path):
    detent.register_method("extremes", extremes_or(""))
    plain = {"preset": "plain"}
    given = [samples, (s for s in samples), types.SimpleNamespace(get_next=iter([*samples, None]).__next__)]
    for data in given:
        own = detent.quantize(model, None, data, {**plain, "method": "extremes"})
        assert own == detent.quantize(model, None, samples, {**plain, "method": "minmax"})
    for fail, said in (("nan", "the range nan to"), ("text", "fails for '")):
        detent.register_method("extremes", extremes_or(fail))
        with pytest.raises(detent.BadInput, match=f"method 'extremes' .*{said}"):
            detent.quantize(model, None, samples, {**plain, "method": "extremes"})
    with pytest.raises(detent.UsageError, match="needs samples or statistics"):
        detent.quantize(model, None, config={"method": "extremes"})
    for name in ("mse", "a b"):
        with pytest.raises(detent.UsageError, match="register_method: "):
            detent.register_method(name, max)


def test_a_score_of_ones_own(model, samples):
    told = detent.quantize(model, None, samples, {"accuracy": {"target": 0.5}}, score=lambda path: 2.0)
    assert told.result.accuracy.score == 1
    with pytest.raises(detent.UsageError, match="score is given beside"):
        detent.quantize(model, None, samples, {"accuracy": {"metric": "sqnr"}}, score=lambda path: 2.0)


def test_runs_in_several_threads(model, samples):
    expected = bytes(detent.quantize(model, data=samples))
    for _ in range(8):  # runs begin and end while others go on
        found = []
        threads = [threading.Thread(target=lambda: found.append(detent.quantize(model, data=samples))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 3


def test_beside_onnx_runtime_in_one_process(model, samples, tmp_path):
    session = support.load(model)
    before = session.run(None, samples[0])
    detent.quantize(model, tmp_path / "out.onnx", samples)
    support.check_model(tmp_path / "out.onnx").run(None, samples[0])
    np.testing.assert_array_equal(session.run(None, samples[0])[0], before[0])


def test_progress_is_told(model, samples):
    told = []
    detent.quantize(model, data=samples, progress=lambda *what: told.append(what))
    assert ("calibrate", 9, 9) in told
    assert all(total == 9 for stage, _, total in told if stage == "calibrate")


def test_nothing_is_printed_where_nobody_looks(model, folder):
    code = "import detent, sys; detent.quantize(sys.argv[1], data=sys.argv[2])"
    result = python(code, model, folder)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    shown = python(code.replace("argv[2])", "argv[2], progress=True)"), model, folder)
    assert "calibrate: 9 of 9" in shown.stderr


def test_import_loads_little():
    code = """
import sys
before = set(sys.modules)
import detent
print(*sorted(set(sys.modules) - before))
"""
    loaded = python(code).stdout.split()
    assert "detent._core" in loaded
    assert not {"numpy", "onnxruntime", "onnx", "asyncio", "concurrent.futures", "subprocess", "logging", "json"} & set(loaded)
    assert len(loaded) <= 76, loaded


def test_the_command_comes_with_it(model, folder, tmp_path):
    command = [sys.executable, "-m", "detent", "quantize", model, "-o", tmp_path / "out.onnx", "--calibration-data", folder]
    command += ["--optimize-for", "size", "--format", "int8"]
    environment = {name: value for name, value in os.environ.items() if name != "DETENT_ONNXRUNTIME"}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    assert bytes(detent.quantize(model, data=folder)) == (tmp_path / "out.onnx").read_bytes()


def test_a_notebook_has_one_output_that_changes(model, samples, monkeypatch):
    shown = []

    class Handle:
        def update(self, data, raw):
            shown.append(data["text/plain"])

    def display(data, raw, display_id):
        shown.append(data["text/plain"])
        return Handle()

    class ZMQInteractiveShell:
        pass

    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=ZMQInteractiveShell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    detent.quantize(model, data=samples)
    assert shown[0].startswith("calibrate: ")
    assert "calibrate: 9 of 9" in shown
    assert shown[-1] == ""


def test_ctrl_c_stops_fine_tuning(model, samples, tmp_path):
    """A signal that comes while the native library computes, and no code of the caller's runs."""

    def interrupt():
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGINT)

    config = {"finetune": detent.AdaRound(num_iterations=500_000_000, early_stop=False)}
    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=interrupt).start()
        detent.quantize(model, tmp_path / "out.onnx", samples, config)
    assert not (tmp_path / "out.onnx").exists()
