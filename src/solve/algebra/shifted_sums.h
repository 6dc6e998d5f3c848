// The Gram matrix of a convolution from products of its input with itself, shifted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shim/shared_work.h"
#include "solve/algebra/kernels.h"
#include "solve/layers/geometry.h"
#include "solve/layers/patches.h"
#include "solve/layers/problem.h"

namespace detent::solve {

/// With stride 1, what two elements of the kernel see at one output position is the same pair of input values, one
/// shift apart, that two others see at another. So sums over all positions are made once for each shift, 13 instead of
/// 45 for a kernel of 3 x 3. Positions near an edge, which some elements never reach, are summed apart.
class ShiftedSums {
 public:
  /// Whether a layer has such shifts, and enough of them to take a third of the operations or less.
  static bool saves_work(const LayerGeometry& geometry);

  /// All ranks of a team are given the same, and each sums up some of the shifts.
  ShiftedSums(const LayerGeometry& geometry, const Kernels& kernels, std::size_t threads, shim::Team team = {});

  /// What the sums and the samples held take, with all the threads' products.
  static std::uint64_t bytes(const LayerGeometry& geometry, std::size_t threads);

  /// All positions of one input of this shape. Samples of a batch are added one by one.
  void add(const Shape& input_shape, std::span<const float> input);
  /// Adds what was added here to the lower half of the form's Gram matrix and to its sums of inputs. A collective.
  void add_to(GramForm& form);

 private:
  static constexpr std::size_t kAxes = 3;
  using Coordinates = std::array<std::int64_t, kAxes>;  // outermost first; axes that are not there have one place

  /// Positions that the same kernel elements reach.
  struct Region {
    std::vector<char> reached;  // by each kernel element
    std::vector<std::size_t> positions;
    std::vector<float> rows;  // of the samples held: all positions of one after those of another, channels together
  };
  struct Place {
    std::size_t region, index;
  };
  /// Pairs of kernel elements one shift apart, and their products.
  struct Shift {
    Coordinates by{};
    std::vector<std::array<std::size_t, 2>> pairs;
    std::vector<std::vector<float>> products;  // channels x channels, of each pair
  };

  void plan(const Shape& sample_shape);
  void flush();
  void sum(Shift& shift) const;
  bool multiply(const Region& region, const Shift& shift, std::vector<float>& product) const;
  Coordinates coordinates(std::size_t position) const;

  std::size_t channels_, kernel_size_;
  LayerGeometry geometry_;
  const Kernels& kernels_;
  std::size_t threads_;
  std::vector<Coordinates> elements_;  // of the kernel, dilated
  shim::Team team_;
  std::vector<Shift> shifts_;
  std::vector<int> owners_;         // of each
  std::vector<double> input_sums_;  // channels x kernel elements
  Shape shape_;                     // of one sample; what follows is for it
  Coordinates extent_{1, 1, 1};
  std::vector<Place> places_;  // of each position
  std::vector<Region> regions_;
  std::size_t held_ = 0;  // samples
};

}  // namespace detent::solve
