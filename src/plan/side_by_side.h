// What several models take that go through a sweep side by side.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "graph/values.h"
#include "onnx/model.h"

namespace detent::planning {

/// A model in stages: stage i ends before node ends[i], and the next begins there. All must outlive the course.
struct Course {
  const onnx::Model& model;
  const graph::ValueTypes& types;
  std::vector<int> ends;
};

/// Bytes resident while all courses, of as many stages each, are in stage i and take single samples through it: the
/// process, the stages, and what is on its way from one to another. nullopt when a shape is not static.
std::optional<std::vector<std::uint64_t>> memory_side_by_side(std::span<const Course> courses);

}  // namespace detent::planning
