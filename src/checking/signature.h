// In what form a node of a quantized model reads and makes its values: what a runtime chooses the kernel by.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/targets.h"
#include "graph/index.h"
#include "onnx/model.h"

namespace detent::checking {

/// Type, zero point and scales of a quantized value. Text forms, as in the tables: "u8", "s8", …, "=" after it where
/// the zero point is in the middle of the type; of constants "/c" for a scale for each channel, "/t" for one, "/b" for
/// blocks. "f32": not quantized; "-": there is no such value.
struct Form {
  std::string text = "f32";
  bool is_constant = false;
  std::vector<double> scales = {};  // empty: not quantized, or not constant
  std::int64_t zero_point = 0;      // of the first slice
};

struct Signature {
  Form first, second, output;
};

/// The forms of a node that is no Q/DQ itself. An output that only a Relu or Clip reads has the form of that one's
/// output, where it has none of its own and the target fuses the two.
Signature signature_of(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                       const config::Target& target);

/// Whether it is a Relu or Clip that alone reads what a product makes in float, and fuses with it.
bool fuses_with_product(const onnx::Model& model, const graph::Index& index, const onnx::Node& node);

/// Likewise, of all activations and makers that the target fuses.
bool fuses_with_maker(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                      const config::Target& target);

/// The form of the value that a node reads as its input `i`.
Form form_of_input(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, std::size_t i);

// What a target makes of single operators, as a table: swept from the runtime itself (scripts/sweep_targets.py), or
// written from its documentation.

/// A row. A signature has alternatives with '|' between them; '*' stands for any.
struct Row {
  std::string_view op_types, first, second, output;
  /// "int8", "float32", …: what the kernel computes in; "cpu": the target leaves it to ONNX Runtime's CPU kernels;
  /// "refused"; "none": the node vanishes; "htp": Qualcomm's, in the type of its inputs.
  std::string_view kernel;
  std::string_view rule;  // why, where it is known
};

class Table {
 public:
  /// Of a file's lines: fields with tabs between them, '#' before comments.
  explicit Table(std::string_view text);

  /// The row of a node with these forms, or null. Where none is for exactly these forms: one of the same types whose
  /// zero points differ, or one of an operator of one input.
  const Row* find(std::string_view op_type, const Signature& forms) const;

  /// The row that differs least from these forms and whose kernel runs on integers, or null.
  const Row* nearest_on_integers(std::string_view op_type, const Signature& forms) const;

 private:
  const Row* find(std::string_view op_type, std::string_view first, std::string_view second,
                  std::string_view output) const;

  std::vector<Row> rows_;
};

/// The table of a target: the name up to a ':' counts, unless it has a table of its own. Null: there is none.
const Table* table_of(std::string_view target);

/// Whether a row has another type there, whatever it says of the zero point.
bool differs(std::string_view alternatives, const std::string& text);

/// Or on block floats, which have integers in them.
bool on_integers(const Row& row);

// What a target's row says of scales and attributes, checked node by node in a quantized model.

struct Violation {
  std::string rule, suggestion;  // empty: there is none
};

/// The first rule of the target that the node breaks. Rules: scales are powers of two, a fixed range for the results of
/// an operator, one scale for all that an operator joins, convolutions with all their attributes.
Violation violation(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, const Signature& forms,
                    const config::Target& target);

}  // namespace detent::checking
