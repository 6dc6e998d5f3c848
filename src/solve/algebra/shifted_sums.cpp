#include "solve/algebra/shifted_sums.h"

#include <algorithm>
#include <map>

#include "base/parallel.h"
#include "solve/algebra/vector_sums.h"

namespace detent::solve {
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
  return 2 * kHeldBytes + sizeof(float) * channels * (products * channels + threads * 2 * kRowsTogether);
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
  std::vector<shim::Made> made;
  for (Shift& shift : shifts_) {
    made.emplace_back();
    for (auto& product : shift.products) made.back().push_back(std::as_writable_bytes(std::span(product)));
  }
  shim::exchange_made(made, owners_, team_);
  const std::size_t size = channels_ * kernel_size_, squares = (channels_ + kSquare - 1) / kSquare;
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
