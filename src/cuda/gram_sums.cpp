#include "cuda/gram_sums.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "cuda/launch.h"
#include "cuda/layer_pass.h"
#include "solve/layers/layer_solver.h"
#include "store/buffers.h"

namespace detent::cuda {
namespace {

using solve::GramForm;
using solve::LayerGeometry;
using solve::LayerKind;
using solve::Patches;
using solve::Shape;

// Half of a symmetric matrix is enough: of a large one, blocks of so many rows up to the diagonal are made, n of them
// with (1 + 1/n) / 2 of the operations: two thirds for three blocks, where cuBLAS's syrk has half. That one takes no
// batches, which groups are, and is in a second library beside cuBLASLt, which has none: not worth it before a device
// has shown it. Smaller blocks would fill large devices badly: so many rows and positions are 64 tiles of 128 x 128.
constexpr std::size_t kBlockRows = 1024;

std::size_t elements(const Shape& shape) {
  return static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

}  // namespace

/// What adds a tile of so many positions: X Xᵀ, for a single large group in blocks of rows up to the diagonal, and Y
/// Xᵀ.
struct GramSumsOnDevice::Products {
  struct Block {
    std::size_t first;
    Matmul product;
  };
  std::vector<Block> gram;
  Matmul cross;

  Products(Device& device, const GramSumsOnDevice& s, std::size_t positions)
      : cross(device, shape(s, s.outputs_ / s.groups_, s.fan_in_, positions, s.outputs_), DevicePrecision::float32) {
    const std::size_t step = s.groups_ > 1 ? s.fan_in_ : kBlockRows;
    for (std::size_t first = 0; first < s.fan_in_; first += step) {
      const std::size_t last = std::min(first + step, s.fan_in_);
      gram.push_back({first, Matmul(device, shape(s, last - first, last, positions, s.groups_ * s.fan_in_),
                                    DevicePrecision::float32)});
    }
  }

  /// `left_rows`: of the tile that the left factor's m rows (of each group) are from.
  static Product shape(const GramSumsOnDevice& s, std::size_t m, std::size_t n, std::size_t positions,
                       std::size_t left_rows) {
    Product p;
    p.transpose_a = s.by_position_;
    p.transpose_b = !s.by_position_;
    p.m = static_cast<std::int64_t>(m);
    p.n = static_cast<std::int64_t>(n);
    p.k = static_cast<std::int64_t>(positions);
    p.lda = static_cast<std::int64_t>(s.by_position_ ? left_rows : s.capacity_);
    p.ldb = static_cast<std::int64_t>(s.by_position_ ? s.groups_ * s.fan_in_ : s.capacity_);
    p.ldc = static_cast<std::int64_t>(s.fan_in_);
    p.batch = static_cast<std::int64_t>(s.groups_);
    p.stride_a = static_cast<std::int64_t>(left_rows / s.groups_ * (s.by_position_ ? 1 : s.capacity_));
    p.stride_b = static_cast<std::int64_t>(s.fan_in_ * (s.by_position_ ? 1 : s.capacity_));
    p.stride_c = static_cast<std::int64_t>(left_rows / s.groups_ * s.fan_in_);
    return p;
  }
};

GramSumsOnDevice::GramSumsOnDevice(Device& device, const LayerGeometry& g)
    : device_(device.current()),
      geometry_(g),
      by_position_(g.kind == LayerKind::product),
      groups_(static_cast<std::size_t>(g.groups)),
      fan_in_(static_cast<std::size_t>(g.fan_in())),
      outputs_(static_cast<std::size_t>(g.outputs)),
      capacity_(solve::device_tile_positions(groups_ * fan_in_ + outputs_)),
      staging_(device) {
  auto& memory = device.memory();
  const char* const what = "summing a layer's samples";
  inputs_ = {memory, groups_ * fan_in_ * capacity_, what};
  targets_ = {memory, outputs_ * capacity_, what};
  gram_ = {memory, groups_ * fan_in_ * fan_in_, what};
  cross_ = {memory, outputs_ * fan_in_, what};
  input_sum_ = {memory, groups_ * fan_in_, what};
  target_sum_ = {memory, outputs_, what};
  target_norm_ = {memory, outputs_, what};
  clear(device.stream(), gram_);
  clear(device.stream(), cross_);
  clear(device.stream(), input_sum_);
  clear(device.stream(), target_sum_);
  clear(device.stream(), target_norm_);
}

GramSumsOnDevice::~GramSumsOnDevice() = default;

std::size_t GramSumsOnDevice::checked(const Shape& shape, std::size_t inputs, std::size_t targets) const {
  const Patches patches(geometry_, shape);
  if (inputs != elements(shape) || targets != patches.positions() * outputs_)
    throw internal_error("a sample does not fit the layer's geometry");
  return patches.positions();
}

// Sums with no targets are those with targets that are 0.
std::span<const float> GramSumsOnDevice::or_zeros(const Shape& shape, std::span<const float> target) {
  if (!target.empty()) return target;
  zeros_.resize(Patches(geometry_, shape).positions() * outputs_);
  return zeros_;
}

void GramSumsOnDevice::add(const Shape& input_shape, std::span<const float> input, std::span<const float> given) {
  device_.current();
  const std::span<const float> target = or_zeros(input_shape, given);
  const std::size_t positions = checked(input_shape, input.size(), target.size());
  const float* const at = staging_.put(std::array{input, target});
  device_.clock().queued(device_.stream(), DeviceLane::compute, "sums over samples", amount(positions),
                         [&] { fill(input_shape, at, at + input.size(), nullptr, positions); });
}

void GramSumsOnDevice::add(const Shape& input_shape, std::span<const float> input, std::span<const float> given,
                           std::span<const std::size_t> positions) {
  device_.current();
  const std::span<const float> target = or_zeros(input_shape, given);
  checked(input_shape, input.size(), target.size());
  // Numbers travel beside the sample, as bits.
  std::vector<float> drawn(positions.size());
  std::transform(positions.begin(), positions.end(), drawn.begin(),
                 [](std::size_t c) { return std::bit_cast<float>(static_cast<std::uint32_t>(c)); });
  const float* const at = staging_.put(std::array{input, target, std::span<const float>(drawn)});
  const auto* const numbers = reinterpret_cast<const std::uint32_t*>(at + input.size() + target.size());
  device_.clock().queued(device_.stream(), DeviceLane::compute, "sums over samples", amount(positions.size()),
                         [&] { fill(input_shape, at, at + input.size(), numbers, positions.size()); });
}

// Half of the Gram matrix and all of the cross product; positions are gathered once and read for each of the two. A
// full tile is due to all the samples that went into it.
DeviceAmount GramSumsOnDevice::amount(std::size_t positions) const {
  const std::uint64_t rows = groups_ * fan_in_;
  return {sizeof(float) * positions * 3 * (rows + outputs_),
          2.0 * static_cast<double>(positions) * static_cast<double>(fan_in_) *
              (static_cast<double>(rows) / 2 + static_cast<double>(outputs_))};
}

void GramSumsOnDevice::fill(const Shape& shape, const float* input, const float* target, const std::uint32_t* drawn,
                            std::size_t positions) {
  const Stream& stream = device_.stream();
  const PatchShape patch = by_position_ ? PatchShape{} : patch_shape(geometry_, shape);
  const std::size_t rows = groups_ * fan_in_;
  for (std::size_t first = 0; first < positions;) {
    const std::size_t count = std::min(capacity_ - used_, positions - first);
    if (by_position_ && drawn != nullptr) {
      launch(stream, GatherPositionsKernel{input, inputs_.data() + used_ * rows, rows, count, drawn + first},
             blocks_for(rows * count));
      launch(stream, GatherPositionsKernel{target, targets_.data() + used_ * outputs_, outputs_, count, drawn + first},
             blocks_for(outputs_ * count));
    } else if (by_position_) {
      stream.copy(inputs_.data() + used_ * rows, input + first * rows, count * rows * sizeof(float));
      stream.copy(targets_.data() + used_ * outputs_, target + first * outputs_, count * outputs_ * sizeof(float));
    } else {
      launch(stream, GatherKernel{patch, input, inputs_.data(), 0, rows, first, count, capacity_, used_, drawn},
             blocks_for(rows * count));
      launch(stream,
             GatherOutputsKernel{patch, target, targets_.data(), 0, outputs_, first, count, capacity_, used_, drawn},
             blocks_for(outputs_ * count));
    }
    first += count;
    used_ += count;
    if (used_ == capacity_) flush();
  }
  positions_ += positions;
}

GramSumsOnDevice::Products& GramSumsOnDevice::products(std::size_t positions) {
  auto& made = products_[positions];
  if (!made) made = std::make_unique<Products>(device_, *this, positions);
  return *made;
}

void GramSumsOnDevice::flush() {
  if (used_ == 0) return;
  const Stream& stream = device_.stream();
  const Products& p = products(used_);
  for (const auto& block : p.gram) {
    const std::size_t left = block.first * (by_position_ ? 1 : capacity_);
    block.product.run(inputs_.data() + left, inputs_.data(), gram_.data() + block.first * fan_in_, 1, 1);
  }
  p.cross.run(targets_.data(), inputs_.data(), cross_.data(), 1, 1);
  const std::size_t rows = groups_ * fan_in_;
  if (by_position_) {
    launch(stream, ColumnSumsKernel{inputs_.data(), input_sum_.data(), nullptr, rows, used_, rows}, blocks_for(rows));
    launch(stream,
           ColumnSumsKernel{targets_.data(), target_sum_.data(), target_norm_.data(), outputs_, used_, outputs_},
           blocks_for(outputs_));
  } else {
    launch(stream, RowSumsKernel{inputs_.data(), input_sum_.data(), nullptr, used_, capacity_},
           static_cast<unsigned>(rows), kSumBytes);
    launch(stream, RowSumsKernel{targets_.data(), target_sum_.data(), target_norm_.data(), used_, capacity_},
           static_cast<unsigned>(outputs_), kSumBytes);
  }
  used_ = 0;
}

GramForm GramSumsOnDevice::take() {
  device_.current();
  flush();
  const Stream& stream = device_.stream();
  launch(stream, MirrorKernel{gram_.data(), groups_, fan_in_}, blocks_for(gram_.size()));
  GramForm form;
  form.groups = groups_;
  form.positions = positions_;
  form.gram.resize(gram_.size());
  form.cross.resize(cross_.size());
  form.input_sum.resize(input_sum_.size());
  form.target_sum.resize(target_sum_.size());
  form.target_norm.resize(target_norm_.size());
  const std::uint64_t bytes = sizeof(float) * (gram_.size() + cross_.size()) +
                              sizeof(double) * (input_sum_.size() + target_sum_.size() + target_norm_.size());
  device_.clock().queued(stream, DeviceLane::copy, "sums to the host", {bytes, 0}, [&] {
    download<float>(stream, form.gram, gram_);
    download<float>(stream, form.cross, cross_);
    download<double>(stream, form.input_sum, input_sum_);
    download<double>(stream, form.target_sum, target_sum_);
    download<double>(stream, form.target_norm, target_norm_);
  });
  stream.wait();
  device_.clock().report_finished_work();
  return form;
}

Staging::Slot& Staging::take_turn() {
  // Work on the piece before this one has all been queued by now: its end is the moment when its place is free.
  slots_[1 - next_].used.record(device_.stream());
  Slot& slot = slots_[next_];
  next_ = 1 - next_;
  if (slot.busy) slot.copied.wait();  // before the host writes there again
  return slot;
}

void Staging::make_room(Slot& slot, std::size_t floats) {
  if (slot.busy) slot.used.wait();
  slot.device = {};  // both at once could pass the budget
  slot.device = {device_.memory(), floats, "samples on their way"};
}

const float* Staging::put(std::span<const std::span<const float>> pieces) {
  Slot& slot = take_turn();
  std::size_t count = 0;
  for (const auto piece : pieces) count += piece.size();
  if (slot.device.size() < count) {
    make_room(slot, count);
  } else if (slot.busy) {
    slot.used.hold(device_.copies());
  }
  if (slot.host.size() < count * sizeof(float)) {
    slot.host = {};
    slot.host = HostMemory(count * sizeof(float), device_.pins());
  }
  const std::size_t bytes = count * sizeof(float);
  device_.clock().on_host(DeviceLane::gather, device_.pins() ? "sample into pinned memory" : "sample into memory",
                          bytes, [&] {
                            float* to = slot.host.as<float>().data();
                            for (const auto piece : pieces) to = std::copy(piece.begin(), piece.end(), to);
                          });
  device_.clock().queued(device_.copies(), DeviceLane::copy, "sample", {bytes, 0},
                         [&] { device_.copies().upload(slot.device.data(), slot.host.as<float>().data(), bytes); });
  slot.copied.record(device_.copies());
  slot.copied.hold(device_.stream());
  slot.busy = true;
  return slot.device.data();
}

const std::byte* Staging::read(store::DeviceReader& reader, const store::RecordOnDisk& record) {
  Slot& slot = take_turn();
  const std::size_t floats = (record.size + store::kBlock) / sizeof(float);
  if (slot.device.size() < floats) {
    make_room(slot, floats);
  } else if (slot.busy) {
    slot.used.wait();
  }
  auto* at = reinterpret_cast<std::byte*>(slot.device.data());
  at += (store::kBlock - reinterpret_cast<std::uintptr_t>(at) % store::kBlock) % store::kBlock;
  device_.clock().on_host(DeviceLane::read, "stored sample", record.size, [&] { reader.read(record, at); });
  slot.copied.record(device_.copies());
  slot.busy = true;
  return at;
}

}  // namespace detent::cuda
