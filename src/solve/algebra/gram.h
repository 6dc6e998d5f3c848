// Sums over all positions of a layer's inputs and targets: all that the squared reconstruction error depends on.
// The Gram matrix XXᵀ of the inputs is the Hessian of that error (up to a factor of 2).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shim/shared_work.h"
#include "solve/algebra/kernels.h"
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

  /// What the sums take, with all the threads' products: beside the samples held, and beside the matrix in the end.
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

/// A layer's inputs and targets at some positions of a sample, copied as sums on the CPU take them.
struct DrawnPatches {
  Tile inputs;
  Tile targets;  // of no positions where there are none

  DrawnPatches(const LayerGeometry& geometry, const Shape& input_shape, std::span<const float> input,
               std::span<const float> target, std::span<const std::size_t> positions);
};

/// Accumulates a GramForm sample by sample: inputs of the quantized branch, targets of the float branch with the bias
/// in them, as they come from the model. The result depends on the sequence of positions alone, not on how samples are
/// batched.
class GramSums {
 public:
  virtual ~GramSums() = default;
  /// `input` of this shape and the layer's target for it. Targets are empty in all samples where only sums of inputs
  /// are wanted; sums with targets are then 0.
  virtual void add(const Shape& input_shape, std::span<const float> input, std::span<const float> target) = 0;
  /// The same for some of its positions.
  virtual void add(const Shape& input_shape, std::span<const float> input, std::span<const float> target,
                   std::span<const std::size_t> positions) = 0;
  /// The same, copied before: on the CPU only.
  virtual void add_drawn(std::size_t positions, std::span<const float> inputs, std::span<const float> targets);
  /// The form of all that was added. It is empty afterwards and cannot be used again.
  virtual GramForm take() = 0;
};

/// On the CPU. Memory: the form, and tiles of a few MiB. Threads do not change the result.
///
/// A team's ranks are all given all samples, but each sums up some blocks of the form; take() is a collective.
class GramAccumulator final : public GramSums {
 public:
  GramAccumulator(const LayerGeometry& geometry, const Kernels& kernels, std::size_t threads, shim::Team team = {});

  void add(const Shape& input_shape, std::span<const float> input, std::span<const float> target) override;
  void add(const Shape& input_shape, std::span<const float> input, std::span<const float> target,
           std::span<const std::size_t> positions) override;
  /// What DrawnPatches has of so many positions.
  void add_drawn(std::size_t positions, std::span<const float> inputs, std::span<const float> targets) override;
  GramForm take() override;

 private:
  /// A block of a group's Gram matrix (rows and columns of G), or of its cross sums (outputs and columns of G).
  struct Item {
    enum class Kind { gram, cross, inputs, targets, small_groups } kind;
    std::size_t group = 0;
    Patches::Range rows;
    Patches::Range columns;
  };

  void open_tiles();
  void plan_items();
  void deal_items();
  bool is_made(const Item& item) const;
  shim::Made made_by(const Item& item);
  Patches checked(const Shape& input_shape, std::size_t inputs, std::size_t targets) const;
  void fill(const Patches& patches, const float* input, const float* target, Patches::Range positions);
  void fill(const Patches& patches, const float* input, const float* target, std::span<const std::size_t> positions);
  void flush();
  void run(const Item& item);
  void run_small_group(std::size_t group);
  void sum_inputs(Patches::Range rows);
  void sum_targets(Patches::Range rows);

  LayerGeometry geometry_;
  const Kernels& kernels_;
  std::size_t threads_;
  std::size_t fan_in_;
  std::size_t group_outputs_;
  Tile inputs_;
  Tile targets_;
  std::size_t used_ = 0;  // positions in the tiles
  bool aimed_ = false;    // whether there are targets
  shim::Team team_;
  std::vector<Item> items_;
  std::vector<int> owners_;             // of each
  std::vector<std::size_t> mine_;       // the items that this rank sums up
  std::optional<ShiftedSums> shifted_;  // where they pay, for inputs of which all positions are taken, without targets
  GramForm form_;
};

}  // namespace detent::solve
