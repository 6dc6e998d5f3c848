// Private to checking/: a graph under construction whose float values are also there in float64.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/index.h"
#include "graph/values.h"
#include "onnx/model.h"

namespace detent::checking {

/// A DequantizeLinear whose integers can be read by themselves.
struct Integers {
  const onnx::Node* node = nullptr;
  std::vector<double> scales;
  std::vector<std::int64_t> zeros;
  onnx::DataType type = onnx::DataType::undefined;
  std::int64_t axis = 0;  // of several scales
  std::size_t rank = 0;   // of the value; 0: not known
  double magnitude = 0;   // at most, of the integers without zero point
  bool is_one_scale() const noexcept { return scales.size() == 1; }
};

class ReferenceGraph {
 public:
  ReferenceGraph(const onnx::Model& model, const graph::ValueTypes& types);

  const graph::Index& index() const noexcept { return index_; }
  const onnx::Tensor* constant(const std::string& value) const;
  bool is_float(const std::string& value) const;
  std::optional<std::size_t> rank_of(const std::string& value) const;

  /// Adds a node with one output of a fresh name, which it returns.
  std::string add(const std::string& op_type, std::vector<std::string> inputs, const std::string& wanted,
                  std::vector<onnx::Attribute> attributes = {});
  void add(onnx::Node node) { nodes_.push_back(std::move(node)); }
  std::string constant_doubles(const std::string& wanted, std::vector<std::int64_t> dims,
                               const std::vector<double>& values);
  std::string constant_ints(const std::string& wanted, const std::vector<std::int64_t>& values);
  std::string cast(const std::string& value, onnx::DataType to, const std::string& wanted);

  /// Found later under this name in float64, float32, or as integers.
  void define_double(const std::string& value, const std::string& as) { doubles_[value] = as; }
  void define_float(const std::string& value) { floats_.insert(value); }
  void define_integers(const std::string& value, Integers integers) { integers_[value] = std::move(integers); }
  const Integers* integers(const std::string& value) const;

  /// The value in float64; scaled, where it is integers.
  std::string dequantized(const std::string& value);
  /// Adds what makes the value in float32, under its own name.
  void need_float(const std::string& value);
  /// The integers less their zero points in float32, exactly; of int32, in float64.
  std::string without_zero_point(const std::string& value);
  std::string double_without_zero_point(const std::string& value);
  /// The product of a value in float64 and numbers along an axis (or one number).
  std::string scaled(const std::string& value, const std::vector<double>& scales, std::size_t axis, std::size_t rank,
                     const std::string& wanted);

  onnx::Model finish();

 private:
  onnx::Model model_;
  const graph::ValueTypes& types_;
  graph::Index index_;
  std::vector<onnx::Node> nodes_;
  std::unordered_map<std::string, std::string> doubles_, centred_;
  std::unordered_map<std::string, Integers> integers_;
  std::set<std::string> floats_;
};

}  // namespace detent::checking
