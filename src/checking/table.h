// What a target makes of single operators, as a table: swept from the runtime itself (scripts/sweep_targets.py), or
// written from its documentation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checking/signature.h"

namespace detent::checking {

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

}  // namespace detent::checking
