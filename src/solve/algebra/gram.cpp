#include "solve/algebra/gram.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"

namespace detent::solve {
namespace {

constexpr std::size_t kSmallFanIn = 32;         // below, a matrix product's overhead is larger than its work
constexpr std::size_t kSmallItem = 64;          // groups of that kind in one item
constexpr std::size_t kSpan = 1024;             // columns of one block, at most
constexpr std::size_t kRowsToFill = 64;         // patch rows that one thread copies at a time
constexpr std::size_t kRowsToDraw = 512;        // the same where positions are listed
constexpr std::size_t kWorthThreads = 1 << 16;  // values below which starting threads takes longer than copying

/// Rows of one block: large for the kernels, but enough blocks for many threads.
std::size_t block_rows(std::size_t fan_in) { return fan_in <= 256 ? 64 : fan_in <= 1024 ? 128 : 256; }

template <class Fn>
void for_each_block(std::size_t count, std::size_t size, const Fn& fn) {
  for (std::size_t first = 0; first < count; first += size) fn(Patches::Range{first, std::min(first + size, count)});
}

std::size_t positions_for(const LayerGeometry& g) {
  return tile_positions(static_cast<std::size_t>(g.groups * g.fan_in() + g.outputs));
}

// Of all `positions` that were drawn some neighbours, to a place of a tile of the same layout.
void copy_positions(std::span<const float> from, std::size_t positions, std::size_t first, std::size_t count, Tile& to,
                    std::size_t at) {
  if (to.column_major) {
    std::copy_n(from.data() + first * to.rows, count * to.rows, to.at(0, at));
    return;
  }
  for (std::size_t r = 0; r < to.rows; ++r) std::copy_n(from.data() + r * positions + first, count, to.at(r, at));
}

}  // namespace

DrawnPatches::DrawnPatches(const LayerGeometry& geometry, const Shape& input_shape, std::span<const float> input,
                           std::span<const float> target, std::span<const std::size_t> positions)
    : inputs(static_cast<std::size_t>(geometry.groups * geometry.fan_in()), positions.size(),
             geometry.kind == LayerKind::product),
      targets(static_cast<std::size_t>(geometry.outputs), target.empty() ? 0 : positions.size(), inputs.column_major) {
  const Patches patches(geometry, input_shape);
  if (input.size() != product_of(input_shape) ||
      (!target.empty() && target.size() != patches.positions() * patches.outputs()))
    throw internal_error("a sample does not fit the layer's geometry");
  patches.gather(input.data(), {0, inputs.rows}, positions, Patches::places(inputs, 0, positions.size()));
  if (!target.empty()) patches.gather_outputs(target.data(), positions, Patches::places(targets, 0, positions.size()));
}

void GramSums::add_drawn(std::size_t, std::span<const float>, std::span<const float>) {
  throw internal_error("positions of a sample were drawn for a device");
}

GramAccumulator::GramAccumulator(const LayerGeometry& geometry, const Kernels& kernels, std::size_t threads,
                                 shim::Team team)
    : geometry_(geometry),
      kernels_(kernels),
      threads_(threads),
      fan_in_(static_cast<std::size_t>(geometry.fan_in())),
      group_outputs_(static_cast<std::size_t>(geometry.outputs / geometry.groups)),
      inputs_(static_cast<std::size_t>(geometry.groups) * fan_in_, positions_for(geometry),
              geometry.kind == LayerKind::product),
      targets_(static_cast<std::size_t>(geometry.outputs), positions_for(geometry), inputs_.column_major),
      team_(std::move(team)) {
  form_.groups = static_cast<std::size_t>(geometry.groups);
  form_.cross.resize(targets_.rows * fan_in_);
  form_.input_sum.resize(inputs_.rows);
  form_.target_sum.resize(targets_.rows);
  form_.target_norm.resize(targets_.rows);
  if (ShiftedSums::saves_work(geometry)) shifted_.emplace(geometry, kernels, threads, team_);
  inputs_.close();
  targets_.close();
  plan_items();
}

// Where all sums are those of shifts, neither tiles nor the matrix are there beside these.
void GramAccumulator::open_tiles() {
  form_.gram.resize(form_.groups * fan_in_ * fan_in_);
  inputs_.open();
  if (aimed_) targets_.open();
}

// A fixed list, whatever the number of threads: each block is summed by one thread at a time, tile after tile. Blocks
// above the diagonal are left out; the longest come first, so that threads end together.
void GramAccumulator::plan_items() {
  if (fan_in_ <= kSmallFanIn && form_.groups > 1 && !inputs_.column_major) {
    for_each_block(form_.groups, kSmallItem, [&](Patches::Range groups) {
      items_.push_back({Item::Kind::small_groups, 0, groups, {}});
    });
  } else {
    const std::size_t size = block_rows(fan_in_);
    for (std::size_t group = 0; group < form_.groups; ++group) {
      for_each_block(fan_in_, size, [&](Patches::Range rows) {
        for_each_block(rows.last, kSpan, [&](Patches::Range columns) {
          items_.push_back({Item::Kind::gram, group, rows, columns});
        });
      });
      for_each_block(group_outputs_, size, [&](Patches::Range rows) {
        for_each_block(fan_in_, kSpan, [&](Patches::Range columns) {
          items_.push_back({Item::Kind::cross, group, rows, columns});
        });
      });
    }
    const auto work = [](const Item& i) { return (i.rows.last - i.rows.first) * (i.columns.last - i.columns.first); };
    std::stable_sort(items_.begin(), items_.end(), [&](const Item& a, const Item& b) { return work(a) > work(b); });
  }
  for_each_block(inputs_.rows, 512, [&](Patches::Range rows) { items_.push_back({Item::Kind::inputs, 0, rows, {}}); });
  for_each_block(targets_.rows, 512, [&](Patches::Range rows) {
    items_.push_back({Item::Kind::targets, 0, rows, {}});
  });
}

bool GramAccumulator::is_made(const Item& item) const {
  return aimed_ || (item.kind != Item::Kind::cross && item.kind != Item::Kind::targets);
}

// Once it is known whether there are targets.
void GramAccumulator::deal_items() {
  if (!owners_.empty()) return;
  std::vector<double> costs;
  for (const auto& item : items_) {
    const auto columns = static_cast<double>(std::max<std::size_t>(item.columns.last - item.columns.first, 1));
    costs.push_back(is_made(item) ? static_cast<double>(item.rows.last - item.rows.first) * columns : 0);
  }
  owners_ = shim::owners_of(costs, static_cast<int>(team_.size()));
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (static_cast<std::size_t>(owners_[i]) == team_.rank() && is_made(items_[i])) mine_.push_back(i);
  }
}

// Where the form has what an item adds up.
shim::Made GramAccumulator::made_by(const Item& item) {
  const auto part = [](auto& values, std::size_t first, std::size_t last) {
    return std::as_writable_bytes(std::span(values).subspan(first, last - first));
  };
  const auto [first, last] = item.rows;
  const std::size_t square = fan_in_ * fan_in_, block = group_outputs_ * fan_in_;
  shim::Made made;
  switch (item.kind) {
    case Item::Kind::inputs: return {part(form_.input_sum, first, last)};
    case Item::Kind::targets: return {part(form_.target_sum, first, last), part(form_.target_norm, first, last)};
    case Item::Kind::small_groups:
      return {part(form_.gram, first * square, last * square), part(form_.cross, first * block, last * block)};
    case Item::Kind::gram:
    case Item::Kind::cross: break;
  }
  auto& values = item.kind == Item::Kind::gram ? form_.gram : form_.cross;
  const std::size_t row = item.group * (item.kind == Item::Kind::gram ? fan_in_ : group_outputs_);
  for (std::size_t r = row + first; r < row + last; ++r)
    made.push_back(part(values, r * fan_in_ + item.columns.first, r * fan_in_ + item.columns.last));
  return made;
}

Patches GramAccumulator::checked(const Shape& input_shape, std::size_t inputs, std::size_t targets) const {
  Patches patches(geometry_, input_shape);
  if (inputs != product_of(input_shape) || (targets != 0 && targets != patches.positions() * patches.outputs())) {
    throw internal_error("a sample does not fit the layer's geometry");
  }
  return patches;
}

void GramAccumulator::add(const Shape& input_shape, std::span<const float> input, std::span<const float> target) {
  const Patches patches = checked(input_shape, input.size(), target.size());
  aimed_ = !target.empty();
  form_.positions += patches.positions();
  if (shifted_ && !aimed_) return shifted_->add(input_shape, input);
  open_tiles();
  for (std::size_t at = 0; at < patches.positions();) {
    const std::size_t count = std::min(inputs_.capacity - used_, patches.positions() - at);
    fill(patches, input.data(), target.data(), Patches::Range{at, at + count});
    at += count;
    used_ += count;
    if (used_ == inputs_.capacity) flush();
  }
}

void GramAccumulator::add(const Shape& input_shape, std::span<const float> input, std::span<const float> target,
                          std::span<const std::size_t> positions) {
  const Patches patches = checked(input_shape, input.size(), target.size());
  aimed_ = !target.empty();
  open_tiles();
  for (std::size_t at = 0; at < positions.size();) {
    const std::size_t count = std::min(inputs_.capacity - used_, positions.size() - at);
    fill(patches, input.data(), target.data(), positions.subspan(at, count));
    at += count;
    used_ += count;
    if (used_ == inputs_.capacity) flush();
  }
  form_.positions += positions.size();
}

void GramAccumulator::add_drawn(std::size_t positions, std::span<const float> inputs, std::span<const float> targets) {
  aimed_ = !targets.empty();
  if (inputs.size() != positions * inputs_.rows || targets.size() != (aimed_ ? positions * targets_.rows : 0))
    throw internal_error("what was drawn of a sample does not fit the layer's geometry");
  open_tiles();
  for (std::size_t at = 0; at < positions;) {
    const std::size_t count = std::min(inputs_.capacity - used_, positions - at);
    copy_positions(inputs, positions, at, count, inputs_, used_);
    if (aimed_) copy_positions(targets, positions, at, count, targets_, used_);
    at += count;
    used_ += count;
    if (used_ == inputs_.capacity) flush();
  }
  form_.positions += positions;
}

void GramAccumulator::fill(const Patches& patches, const float* input, const float* target, Patches::Range positions) {
  const std::size_t threads = (positions.last - positions.first) * inputs_.rows < kWorthThreads ? 1 : threads_;
  const std::size_t input_pieces = (inputs_.rows + kRowsToFill - 1) / kRowsToFill;
  const std::size_t target_pieces = aimed_ ? (targets_.rows + kRowsToFill - 1) / kRowsToFill : 0;
  parallel_for(input_pieces + target_pieces, threads, [&](std::size_t piece) {
    const bool of_input = piece < input_pieces;
    const std::size_t first = (of_input ? piece : piece - input_pieces) * kRowsToFill;
    if (of_input) {
      patches.gather(input, {first, std::min(first + kRowsToFill, inputs_.rows)}, positions, inputs_, used_);
    } else {
      patches.gather_outputs(target, {first, std::min(first + kRowsToFill, targets_.rows)}, positions, targets_, used_);
    }
  });
}

void GramAccumulator::fill(const Patches& patches, const float* input, const float* target,
                           std::span<const std::size_t> positions) {
  const auto inputs = Patches::places(inputs_, used_, positions.size());
  parallel_for((inputs_.rows + kRowsToDraw - 1) / kRowsToDraw, threads_, [&](std::size_t piece) {
    const std::size_t first = piece * kRowsToDraw;
    patches.gather(input, {first, std::min(first + kRowsToDraw, inputs_.rows)}, positions, inputs);
  });
  if (aimed_) patches.gather_outputs(target, positions, Patches::places(targets_, used_, positions.size()));
}

void GramAccumulator::flush() {
  if (used_ == 0) return;
  deal_items();
  const std::size_t threads = used_ * inputs_.rows < kWorthThreads / 8 ? 1 : threads_;
  parallel_for(mine_.size(), threads, [&](std::size_t i) { run(items_[mine_[i]]); });
  used_ = 0;
}

void GramAccumulator::run(const Item& item) {
  switch (item.kind) {
    case Item::Kind::inputs: return sum_inputs(item.rows);
    case Item::Kind::targets: return sum_targets(item.rows);
    case Item::Kind::small_groups:
      for (std::size_t group = item.rows.first; group < item.rows.last; ++group) run_small_group(group);
      return;
    case Item::Kind::gram:
    case Item::Kind::cross: break;
  }
  const bool cross = item.kind == Item::Kind::cross;
  Gemm shape = gemm_of(item.rows.last - item.rows.first, item.columns.last - item.columns.first, used_,
                       !inputs_.column_major, 1);
  shape.transpose_a = inputs_.column_major;
  const Tile& left = cross ? targets_ : inputs_;
  const std::size_t left_row = item.group * (cross ? group_outputs_ : fan_in_) + item.rows.first;
  float* sums = (cross ? form_.cross.data() : form_.gram.data()) + left_row * fan_in_ + item.columns.first;
  kernels_.gemm(shape, left.row(left_row), left.leading(), inputs_.row(item.group * fan_in_ + item.columns.first),
                inputs_.leading(), sums, fan_in_);
}

void GramAccumulator::run_small_group(std::size_t group) {
  float* gram = form_.gram.data() + group * fan_in_ * fan_in_;
  const std::size_t first = group * fan_in_;
  for (std::size_t i = 0; i < fan_in_; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      gram[i * fan_in_ + j] += dot(inputs_.row(first + i), inputs_.row(first + j), used_);
    }
  }
  for (std::size_t m = group * group_outputs_; m < (group + 1) * group_outputs_ && aimed_; ++m) {
    for (std::size_t j = 0; j < fan_in_; ++j) {
      form_.cross[m * fan_in_ + j] += dot(targets_.row(m), inputs_.row(first + j), used_);
    }
  }
}

void GramAccumulator::sum_inputs(Patches::Range rows) {
  if (!inputs_.column_major) {
    for (std::size_t r = rows.first; r < rows.last; ++r) form_.input_sum[r] += sum_double(inputs_.row(r), used_);
    return;
  }
  for (std::size_t c = 0; c < used_; ++c) {
    add_scaled(form_.input_sum.data() + rows.first, 1.0, inputs_.at(rows.first, c), rows.last - rows.first);
  }
}

void GramAccumulator::sum_targets(Patches::Range rows) {
  for (std::size_t r = rows.first; r < rows.last && !targets_.column_major; ++r) {
    form_.target_sum[r] += sum_double(targets_.row(r), used_);
    form_.target_norm[r] += dot_double(targets_.row(r), targets_.row(r), used_);
  }
  for (std::size_t c = 0; c < used_ && targets_.column_major; ++c) {
    const float* outputs = targets_.at(0, c);
    for (std::size_t r = rows.first; r < rows.last; ++r) {
      form_.target_sum[r] += outputs[r];
      form_.target_norm[r] += static_cast<double>(outputs[r]) * outputs[r];
    }
  }
}

GramForm GramAccumulator::take() {
  flush();
  deal_items();
  inputs_.close();
  targets_.close();
  if (!shifted_ || team_.size() > 1) form_.gram.resize(form_.groups * fan_in_ * fan_in_);
  std::vector<shim::Made> made;
  for (const auto& item : items_) made.push_back(is_made(item) && team_.size() > 1 ? made_by(item) : shim::Made());
  shim::exchange_made(made, owners_, team_);
  if (shifted_) shifted_->add_to(form_);
  shifted_.reset();
  for (std::size_t g = 0; g < form_.groups; ++g) mirror(form_.gram.data() + g * fan_in_ * fan_in_, fan_in_, threads_);
  return std::exchange(form_, {});
}

namespace {

constexpr std::int64_t kLeastChannels = 32;  // below, products of channels are too small
constexpr std::size_t kHeldBytes = std::size_t{8} << 20;
constexpr std::size_t kRowsTogether = 512;  // of one product
constexpr std::size_t kSquare = 16;         // channels on a side, so that reads and writes stay in the cache

/// Each axis has 2 k - 1 shifts, and one of two opposite ones is enough.
std::size_t shift_count(const Shape& kernel) {
  std::size_t all = 1;
  for (const auto k : kernel) all *= static_cast<std::size_t>(2 * k - 1);
  return (all + 1) / 2;
}

}  // namespace

bool ShiftedSums::saves_work(const LayerGeometry& g) {
  const std::size_t elements = product_of(g.kernel);
  return g.kind == LayerKind::convolution && g.groups == 1 && g.inputs >= kLeastChannels && g.kernel.size() <= kAxes &&
         std::all_of(g.strides.begin(), g.strides.end(), [](auto s) { return s == 1; }) &&
         elements * elements > 6 * shift_count(g.kernel);
}

std::uint64_t ShiftedSums::bytes(const LayerGeometry& geometry, std::size_t threads) {
  const std::size_t channels = static_cast<std::size_t>(geometry.inputs), elements = product_of(geometry.kernel);
  const std::size_t products = elements * (elements + 1) / 2 + threads;
  const std::uint64_t matrix = sizeof(float) * channels * channels * elements * elements;
  return std::max<std::uint64_t>(kHeldBytes, matrix) +
         sizeof(float) * channels * (products * channels + threads * 2 * kRowsTogether);
}

ShiftedSums::ShiftedSums(const LayerGeometry& geometry, const Kernels& kernels, std::size_t threads, shim::Team team)
    : channels_(static_cast<std::size_t>(geometry.inputs)),
      kernel_size_(product_of(geometry.kernel)),
      geometry_(geometry),
      kernels_(kernels),
      threads_(threads),
      team_(std::move(team)),
      input_sums_(channels_ * kernel_size_) {
  const std::size_t first = kAxes - geometry.kernel.size();
  for (std::size_t k = 0; k < kernel_size_; ++k) {
    Coordinates at{};
    for (std::size_t a = geometry.kernel.size(), rest = k; a-- > 0;) {
      const auto size = static_cast<std::size_t>(geometry.kernel[a]);
      at[first + a] = static_cast<std::int64_t>(rest % size) * geometry.dilations[a];
      rest /= size;
    }
    elements_.push_back(at);
  }
  std::map<Coordinates, Shift> shifts;
  for (std::size_t i = 0; i < kernel_size_; ++i) {
    for (std::size_t j = i; j < kernel_size_; ++j) {
      Coordinates by{};
      for (std::size_t a = 0; a < kAxes; ++a) by[a] = elements_[j][a] - elements_[i][a];
      shifts[by].by = by;
      shifts[by].pairs.push_back({i, j});
    }
  }
  for (auto& [by, shift] : shifts) {
    shift.products.assign(shift.pairs.size(), std::vector<float>(channels_ * channels_));
    shifts_.push_back(std::move(shift));
  }
  owners_ = shim::owners_of(std::vector<double>(shifts_.size(), 1), static_cast<int>(team_.size()));
}

ShiftedSums::Coordinates ShiftedSums::coordinates(std::size_t position) const {
  Coordinates at{};
  for (std::size_t a = kAxes, rest = position; a-- > 0;) {
    at[a] = static_cast<std::int64_t>(rest) % extent_[a];
    rest /= static_cast<std::size_t>(extent_[a]);
  }
  return at;
}

void ShiftedSums::plan(const Shape& sample_shape) {
  flush();
  shape_ = sample_shape;
  const Shape output = geometry_.output_shape(shape_);
  Coordinates pad{}, out{1, 1, 1};
  extent_ = {1, 1, 1};
  for (std::size_t a = 0, at = kAxes - geometry_.kernel.size(); a < geometry_.kernel.size(); ++a, ++at) {
    extent_[at] = shape_[a + 2];
    out[at] = output[a + 2];
    pad[at] = geometry_.pads_begin[a];
  }
  regions_.clear();
  places_.clear();
  std::map<std::vector<char>, std::size_t> known;
  const auto positions = static_cast<std::size_t>(extent_[0] * extent_[1] * extent_[2]);
  for (std::size_t p = 0; p < positions; ++p) {
    const Coordinates at = coordinates(p);
    std::vector<char> reached;
    for (const Coordinates& element : elements_) {
      bool is = true;
      for (std::size_t a = 0; a < kAxes; ++a) {
        const std::int64_t to = at[a] + pad[a] - element[a];
        is = is && to >= 0 && to < out[a];
      }
      reached.push_back(is ? 1 : 0);
    }
    const auto [entry, is_new] = known.try_emplace(reached, regions_.size());
    if (is_new) regions_.push_back({std::move(reached), {}, {}});
    Region& region = regions_[entry->second];
    places_.push_back({entry->second, region.positions.size()});
    region.positions.push_back(p);
  }
  const std::size_t samples = kHeldBytes / (positions * channels_ * sizeof(float)) + 1;
  for (Region& region : regions_) region.rows.reserve(samples * region.positions.size() * channels_);
}

void ShiftedSums::add(const Shape& input_shape, std::span<const float> input) {
  Shape sample_shape = input_shape;
  sample_shape[0] = 1;
  if (sample_shape != shape_) plan(sample_shape);
  const std::size_t positions = places_.size(), size = positions * channels_;
  for (std::size_t at = 0; at < input.size(); at += size) {
    const float* values = input.data() + at;
    for (Region& region : regions_) {
      const std::size_t first = region.rows.size();
      region.rows.resize(first + region.positions.size() * channels_);
      float* to = region.rows.data() + first;
      for (std::size_t c = 0; c < channels_; ++c) {
        const float* line = values + c * positions;
        for (std::size_t i = 0; i < region.positions.size(); ++i) to[i * channels_ + c] = line[region.positions[i]];
      }
    }
    if (++held_ * size * sizeof(float) >= kHeldBytes) flush();
  }
}

void ShiftedSums::flush() {
  if (held_ == 0) return;
  parallel_for(shifts_.size(), threads_, [&](std::size_t i) {
    if (static_cast<std::size_t>(owners_[i]) == team_.rank()) sum(shifts_[i]);
  });
  for (Region& region : regions_) {
    std::vector<double> sums(channels_);
    for (std::size_t at = 0; at < region.rows.size(); at += channels_) {
      add_scaled(sums.data(), 1.0, region.rows.data() + at, channels_);
    }
    for (std::size_t c = 0; c < channels_; ++c) {
      for (std::size_t k = 0; k < kernel_size_; ++k) {
        if (region.reached[k] != 0) input_sums_[c * kernel_size_ + k] += sums[c];
      }
    }
    region.rows.clear();
  }
  held_ = 0;
}

void ShiftedSums::sum(Shift& shift) const {
  std::vector<float> product(channels_ * channels_);
  for (const Region& region : regions_) {
    const auto reaches = [&](const auto& pair) { return region.reached[pair[0]] != 0; };
    if (std::none_of(shift.pairs.begin(), shift.pairs.end(), reaches)) continue;
    if (!multiply(region, shift, product)) continue;
    for (std::size_t i = 0; i < shift.pairs.size(); ++i) {
      if (!reaches(shift.pairs[i])) continue;
      add_scaled(shift.products[i].data(), 1.0F, product.data(), product.size());
    }
  }
}

/// Sum over the region's positions u of x(u) x(u + shift)ᵀ. False where all of these lie outside.
bool ShiftedSums::multiply(const Region& region, const Shift& shift, std::vector<float>& product) const {
  struct Pair {
    std::size_t from, region, to;
  };
  std::vector<Pair> pairs;  // of positions of one sample
  for (std::size_t i = 0; i < region.positions.size(); ++i) {
    const Coordinates at = coordinates(region.positions[i]);
    std::int64_t position = 0;
    bool inside = true;
    for (std::size_t a = 0; a < kAxes; ++a) {
      const std::int64_t to = at[a] + shift.by[a];
      inside = inside && to >= 0 && to < extent_[a];
      position = position * extent_[a] + to;
    }
    if (!inside) continue;
    const Place& place = places_[static_cast<std::size_t>(position)];
    pairs.push_back({i, place.region, place.index});
  }
  const std::size_t total = pairs.size() * held_;
  std::vector<float> left(std::min(total, kRowsTogether) * channels_), right(left.size());
  for (std::size_t done = 0; done < total;) {
    const std::size_t count = std::min(kRowsTogether, total - done);
    for (std::size_t r = 0; r < count; ++r) {
      const std::size_t sample = (done + r) / pairs.size();
      const Pair& pair = pairs[(done + r) % pairs.size()];
      const Region& other = regions_[pair.region];
      std::copy_n(region.rows.data() + (sample * region.positions.size() + pair.from) * channels_, channels_,
                  left.data() + r * channels_);
      std::copy_n(other.rows.data() + (sample * other.positions.size() + pair.to) * channels_, channels_,
                  right.data() + r * channels_);
    }
    Gemm shape = gemm_of(channels_, channels_, count, false, done > 0 ? 1.0F : 0.0F);
    shape.transpose_a = true;
    kernels_.gemm(shape, left.data(), channels_, right.data(), channels_, product.data(), channels_);
    done += count;
  }
  return total > 0;
}

void ShiftedSums::add_to(GramForm& form) {
  flush();
  regions_ = {};
  std::vector<shim::Made> made;
  for (Shift& shift : shifts_) {
    made.emplace_back();
    for (auto& product : shift.products) made.back().push_back(std::as_writable_bytes(std::span(product)));
  }
  shim::exchange_made(made, owners_, team_);
  const std::size_t size = channels_ * kernel_size_, squares = (channels_ + kSquare - 1) / kSquare;
  form.gram.resize(size * size);
  // Rows of one square's channels belong to it alone on the lower side, which is all that is written.
  parallel_for(squares, threads_, [&](std::size_t square) {
    for (std::size_t other = 0; other < channels_; other += kSquare) {
      for (const Shift& shift : shifts_) {
        for (std::size_t i = 0; i < shift.pairs.size(); ++i) {
          const auto [first, second] = shift.pairs[i];
          const float* product = shift.products[i].data();
          for (std::size_t r = square * kSquare; r < std::min((square + 1) * kSquare, channels_); ++r) {
            float* row_of_first = form.gram.data() + (r * kernel_size_ + first) * size;
            float* row_of_second = form.gram.data() + (r * kernel_size_ + second) * size;
            for (std::size_t c = other; c < std::min({other + kSquare, channels_, r + 1}); ++c) {
              if (c < r || first == second) row_of_first[c * kernel_size_ + second] += product[r * channels_ + c];
              if (first != second) row_of_second[c * kernel_size_ + first] += product[c * channels_ + r];
            }
          }
        }
      }
    }
  });
  for (std::size_t i = 0; i < input_sums_.size(); ++i) form.input_sum[i] += input_sums_[i];
}

}  // namespace detent::solve
