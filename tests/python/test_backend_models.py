"""A sample of the onnx package's backend test models, in each format; backend_models.py runs all of them."""

import backend_models
import pytest

#: Modules of onnx.backend.test.case.node: products, bodies, and values that are no tensors of floats.
OPERATORS = (
    "ai_onnx_ml.label_encoder attention conv dequantizelinear einsum gemm if_ layernormalization loop lstm matmul "
    "optionalhaselement qlinearmatmul reducesum resize rnn scan sequenceinsert sequence_map string_concat swish tensorscatter topk"
).split()
pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", backend_models.FORMATS)
def test_every_model_is_quantized_or_refused(name: str) -> None:
    found = backend_models.in_both_forms([*backend_models.node_cases(OPERATORS), *backend_models.cases(("simple",))])
    net = backend_models.light_case(backend_models.data_folder() / "light" / "light_shufflenet.onnx")
    jobs = [(case, name) for case in [*found[::4], net]]
    outcomes: list[tuple[str, str, str]] = []
    backend_models.run_in_children(jobs, lambda job, what, details: outcomes.append((what, jobs[job][0].name, details)))
    assert len(outcomes) == len(jobs) > 80
    assert [outcome for outcome in outcomes if outcome[0][0].isupper()] == []
    assert outcomes[-1][0] == "quantized"
