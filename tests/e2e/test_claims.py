"""What detent says of a file is true of the file: small graphs, each in a few forms (tests/claims/); scripts/check_claims.py has
all of them. The file runs in the oldest and the newest ONNX Runtime, and numpy finds accuracy, size and share of integers again."""

import sys
from collections.abc import Iterator

import pytest
from support import MODELS, ROOT, Path

sys.path.insert(0, str(ROOT / "tests" / "claims"))

import of_layers  # noqa: E402
import of_values  # noqa: E402
import trained  # noqa: E402
from claims import VERSIONS, Judge, Worker  # noqa: E402
from forms import ALWAYS, FORMS  # noqa: E402

GRAPHS = of_layers.GRAPHS | of_values.GRAPHS
#: Kinds of faults that the whole matrix has found.
FOUND = [
    ("great biases", "int8 among float16"),
    ("great biases behind MatMul", "int8 among float16"),
    ("attention in float16", "int16 x int8"),
    ("average pool, dilated", "size"),
    ("average pool, dilated", "qoperator"),
    ("resize cubic", "plain"),
    ("body of If", "int16 x int4"),
    ("body of Loop", "uint16 x int4, plain"),
    ("int4 weights", "dynamic"),
    ("tied embedding", "blocks of 4 bits"),
    ("chosen by NonZero", "size"),
    ("network 6", "int16 x int8"),
    ("random 8", "uint8 x uint4, plain"),
    ("menagerie", "int8 among float16"),
    ("great biases behind MatMul", "size"),
    ("attention", "int8 x int16"),
    ("attention", "int16 falls back"),
    ("mask of -1e9", "int8 x uint4"),
    ("MatMul and Transpose", "gptq of int4"),
    ("tied embedding", "int16 x int8"),
    ("tied embedding by Gemm", "float8e4m3fn x float8e4m3fn"),
    ("random 3", "blocks to a target"),
    ("Gemm, scaled", "size"),
    ("Gemm, half of it", "size"),
    ("Gemm, biases of rows", "uint8 x uint8"),
    ("Gemm, one bias", "size"),
    ("Gemm, turned input", "gptq"),
    ("mean and variance", "float16"),
    ("beyond float16", "float16 throughout"),
    ("scatter, Elements by add", "float16"),
    ("scatter, ND by max", "int8 among float16"),
    ("2 axes and a bias of (1, 24)", "int8 x int8"),
    ("2 axes and a bias of (6, 1)", "size"),
    ("3 axes and a bias of (1, 1, 24)", "int8 x int8"),
    ("biases of 3 axes, opset 17", "size"),
    ("biases of 4 axes, opset 21", "int8 x int8"),
    ("biases of 3 axes, opset 24", "for tensorrt"),
    ("root mean square", "for xnnpack"),
    ("moved integers, opset 22", "products alone"),
    ("computed weight of Conv", "size"),
    ("computed weight of Gemm", "int8 x int8"),
    ("computed weight of MatMul", "int8 x int8"),
]
#: Forms take turns over the graphs, so that each comes about once.
STEP = 7


def forms_of(position: int) -> list[str]:
    others = [form for form in FORMS if form not in ALWAYS]
    turns = [position * STEP, (position + len(GRAPHS)) * STEP]
    return [ALWAYS[position % len(ALWAYS)], *(others[turn % len(others)] for turn in turns)]


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, Worker]]:
    all_of = {version: Worker(version) for version in VERSIONS}
    yield all_of
    for worker in all_of.values():
        worker.process.stdin.close()
        worker.process.wait()


def test_there_are_enough() -> None:
    assert len(GRAPHS) >= 60 and len(FORMS) >= 100
    assert {form for i in range(len(GRAPHS)) for form in forms_of(i)} == set(FORMS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("graph", GRAPHS)
def test_claims(graph: str, workers: dict[str, Worker], tmp_path: Path) -> None:
    judge = Judge(GRAPHS[graph](), tmp_path, workers)
    verdicts = {form: judge.judged(form) for form in forms_of(list(GRAPHS).index(graph))}
    assert not {form: verdict.text for form, verdict in verdicts.items() if verdict.kind == "wrong"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("graph", "form"), FOUND)
def test_what_was_wrong(graph: str, form: str, workers: dict[str, Worker], tmp_path: Path) -> None:
    verdict = Judge(GRAPHS[graph](), tmp_path, workers).judged(form)
    assert verdict.kind == "right", verdict.text


@pytest.mark.full
@pytest.mark.parametrize("form", ["default", "plain", "float16", "for qnn"])
def test_trained(form: str, workers: dict[str, Worker], tmp_path: Path) -> None:
    """The smallest of those that scripts/check_claims.py --trained has."""
    make = trained.fetched(MODELS).get("trained ppocr_cls")
    if make is None:
        pytest.skip("ppocr_cls is missing; make models fetches it")
    verdict = Judge(make(), tmp_path, workers).judged(form)
    assert verdict.kind == "right", verdict.text
