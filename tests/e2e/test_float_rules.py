"""The table of operators and 16-bit types against the schemas that come with the onnx package."""

import re

import onnx
import support

ROW = re.compile(
    r'^    \{\{"(\w+)"([^{}]*)\},\s*\{(\d+|kNever), (\d+|kNever)(?:, \w+, \w+(?:, (\w+)(?:, (\w+))?)?)?[^}]*\}', re.MULTILINE
)
FLOAT, TYPES = "tensor(float)", ("tensor(float16)", "tensor(bfloat16)")
CONTRIB = {"SimplifiedLayerNormalization"}  # of ONNX Runtime, in ONNX's domain


def rows() -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """By operator type: the opsets of both types, and the masks of inputs and outputs that stay float32."""
    text = (support.ROOT / "src" / "graph" / "traits.cpp").read_text()
    number = {"kNever": 127}
    found = {}
    for row in ROW.finditer(text):
        name, traits, half, brain, inputs, outputs = row.groups()
        if "kMicrosoft" in traits:
            continue
        opsets = tuple(number.get(word) or int(word) for word in (half, brain))
        found[name] = (opsets, tuple(int(word or "0", 0) for word in (inputs, outputs)))
    return found


def allowed(schema: onnx.defs.OpSchema, formal: onnx.defs.OpSchema.FormalParameter) -> set[str]:
    for constraint in schema.type_constraints:
        if constraint.type_param_str == formal.type_str:
            return set(constraint.allowed_type_strs)
    return {formal.type_str}


def first_opset(name: str, wanted: str, masks: tuple[int, int]) -> int:
    """From which on all float inputs and outputs outside of the masks may have the type."""
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if (s.domain, s.name) == ("", name)]
    first = 127
    for schema in sorted(schemas, key=lambda s: -s.since_version):
        formals = [(schema.inputs, masks[0]), (schema.outputs, masks[1])]
        types = [allowed(schema, f) for list_, mask in formals for i, f in enumerate(list_) if not mask >> i & 1]
        floats = [t for t in types if FLOAT in t]
        if not floats or any(wanted not in t for t in floats):
            break
        first = schema.since_version
    return first


def test_rows_are_those_of_the_schemas() -> None:
    table = rows()
    assert len(table) > 120
    found = {name: tuple(first_opset(name, wanted, masks) for wanted in TYPES) for name, (_, masks) in table.items()}
    assert {n: v for n, v in found.items() if n not in CONTRIB} == {n: v for n, (v, _) in table.items() if n not in CONTRIB}
