"""Results that go to other processes, threads that outlive Python, forked children, and names that are no UTF-8."""

import copy
import os
import pickle
import subprocess
import sys

import detent
import graphs
import numpy as np
import pytest

BYTES = os.fsdecode(b"caf\xe9")  # Latin 1


def python(code: str, *arguments: object, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env={**os.environ, **environment})


def test_results_can_be_pickled(model, samples, tmp_path):
    results = [
        detent.quantize(model, tmp_path / "q.onnx", samples),
        detent.calibrate(model, tmp_path / "stats", samples),
        detent.inspect(model),
        detent.plan(model, samples),
        detent.compare(model, tmp_path / "q.onnx", samples),
        detent.bench(model, runs=2, memory=False, by_operator=True, input_shapes={"x": [1, 3, 16, 16]}),
    ]
    for result in results:
        for made in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
            assert type(made) is type(result)
            assert str(made) == str(result)
    written = detent.quantize(model, data=samples)
    read = pickle.loads(pickle.dumps(written))
    assert (bytes(read), str(read.result)) == (bytes(written), str(written.result))


def test_a_mask_is_not_ignored(model, samples):
    x = samples[0]["x"]
    masked = np.ma.masked_array(x, mask=x > 1)
    with pytest.raises(detent.BadInput, match=r"masked array.*filled"):
        detent.quantize(model, data=[{"x": masked}])
    nothing_masked = np.ma.masked_array(x)
    assert bytes(detent.quantize(model, data=[{"x": nothing_masked}])) == bytes(detent.quantize(model, data=[{"x": x}]))


DAEMON = """
import sys, threading, time, detent, graphs
begun = threading.Event()
def samples():
    print("started", flush=True)
    begun.set()
    while True:
        yield from graphs.cnn_samples(8)
def work():
    detent.calibrate(sys.argv[1], sys.argv[1] + ".stats", samples())
threading.Thread(target=work, daemon=True).start()
begun.wait()
time.sleep(0.5)
print("end", flush=True)
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError"])
def test_python_can_end_while_a_daemon_thread_runs(end, model, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    result = python(f"{DAEMON}\n{end}", model, TMPDIR=str(work))
    assert result.stdout == "started\nend\n", result.stderr
    assert result.returncode == {"": 0, "sys.exit(3)": 3}.get(end, 1), result.stderr
    assert not list(work.iterdir())


def test_python_can_end_while_samples_are_waited_for(model, tmp_path):
    """Also where the thread never comes back from the caller's own code."""
    code = DAEMON.replace("yield from graphs.cnn_samples(8)", "time.sleep(1000)")
    assert code != DAEMON
    result = python(code, model, TMPDIR=str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")


FORK = """
import os, sys, threading, time, detent, graphs
samples = graphs.cnn_samples()
def run(name, data=samples):
    return detent.quantize(sys.argv[1], sys.argv[1] + name, data, {"preset": "plain"})
begun, forked = threading.Event(), threading.Event()
def slowly():
    while not forked.is_set():
        yield samples[0]
        begun.set()
        time.sleep(0.02)
other = None
if sys.argv[2] == "after":
    run("p")
if sys.argv[2] == "beside":
    other = threading.Thread(target=run, args=("t", slowly()))
    other.start()
    begun.wait()
if (child := os.fork()) == 0:
    try:
        run("c")
        print("done", flush=True)
    except detent.Error as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
forked.set()
if other:
    other.join()
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("when", ["before", "after", "beside"])
def test_a_forked_child_works_or_says_why_not(when, model):
    told = python(FORK, model, when, timeout=300).stdout
    if when == "beside":
        assert told.startswith("UsageError") and "forked" in told and "spawn" in told
    else:
        assert told == "done\n"


def test_names_that_are_no_utf8(samples, tmp_path):
    folder = tmp_path / BYTES
    folder.mkdir()
    path = folder / "m.onnx"
    path.write_bytes(graphs.small_cnn().SerializeToString().replace(b"conv_a", b"conv\xe9a"))
    output = folder / "q.onnx"
    result = detent.quantize(path, output, samples)
    assert result.output == str(output)
    assert os.path.exists(result.output)
    str(result).encode(errors="surrogateescape")
    assert any("\\xe9" in layer.name for layer in detent.inspect(path).layers)
    with pytest.raises(detent.BadInput, match=r"\\xe9"):
        detent.inspect(folder / "missing.onnx")
    with pytest.raises(detent.UsageError):
        detent.quantize(path, output, samples, {"method": BYTES})
