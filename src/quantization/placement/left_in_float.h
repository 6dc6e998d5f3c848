// Nodes that could read integers but stay in float, and why.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::quantization {

/// The nodes by the reason, each kind of operator by itself.
class LeftInFloat {
 public:
  void add(const onnx::Node& node, const std::string& reason) {
    nodes_[{reason, node.op_type()}].push_back(node.label());
  }

  /// One for each reason and kind, with the first node and how many more there are.
  std::vector<std::string> notes() const;
  std::size_t count() const;

 private:
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> nodes_;
};

/// Of a product in a front end, see graph::front_end().
inline constexpr std::string_view kBeforeLogarithm =
    "a logarithm or a power behind it makes large what integers lose of small values; --nodes quantizes it all the "
    "same";

/// Whether a product's second input is a constant without elements: no form of integers makes it smaller or faster.
bool reads_empty_weight(const onnx::Model& model, const graph::Index& index, const onnx::Node& product);

/// What a Gemm does beside multiplying by its second input and adding its third; empty: nothing.
std::string reason_against_gemm(const onnx::Node& gemm);

}  // namespace detent::quantization
