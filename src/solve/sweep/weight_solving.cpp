#include "solve/sweep/weight_solving.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string_view>

#include "base/error.h"
#include "profile/meters.h"
#include "shim/shared_work.h"
#include "solve/blocks/block_error.h"

namespace detent::solve {
namespace {

constexpr auto kTogether = static_cast<std::int64_t>(kColumnsTogether);
constexpr std::array<std::string_view, 3> kMethodNames{"nearest", "search", "gptq"};

// awq is search on weights that have been scaled.
BlockMethod solver_of(WeightMethod method) {
  switch (method) {
    case WeightMethod::nearest: return BlockMethod::nearest;
    case WeightMethod::search:
    case WeightMethod::awq: return BlockMethod::search;
    case WeightMethod::gptq: return BlockMethod::gptq;
    case WeightMethod::automatic: break;
  }
  return BlockMethod::automatic;
}

class WeightSolving {
 public:
  WeightSolving(const onnx::Tensor& tensor, const quantization::BlockTensor& shape, const InputGrams& grams,
                const WeightSolvingOptions& options)
      : tensor_(tensor), shape_(shape), grams_(grams), options_(options), method_(solver_of(options.method)) {}

  BlockVerdict run(BlockWriter& writer) {
    const bool sparse = options_.sparsity != WeightSparsity::none && shape_.tables.empty();
    BlockVerdict verdict;
    if (sparse) verdict.dense_error = dense_error();
    verdict.output_error = sparse ? solve_pruned(writer) : solve_unpruned(&writer);
    const auto most = std::max_element(counts_.begin(), counts_.end()) - counts_.begin();
    verdict.method = kMethodNames[static_cast<std::size_t>(most)];
    return verdict;
  }

 private:
  struct Solve {
    std::function<BlockSolution(std::span<const float> columns)> all;               // by the method
    std::function<quantization::BlockWeight(std::span<const float> columns)> gptq;  // without errors
  };

  BlockSolver solver(bool keep_zeros) const {
    return {grams_.fitted,    grams_.held_back, shape_.format, {.method = method_, .keep_zeros = keep_zeros},
            options_.kernels, options_.threads};
  }

  double dense_error() {
    const double error = solve_unpruned(nullptr);
    counts_ = {};
    return error;
  }

  double solve_unpruned(BlockWriter* writer) {
    const auto dense = solver(false);
    return solve_all({[&](std::span<const float> columns) { return dense.solve(columns); },
                      [&](std::span<const float> columns) { return dense.rounded(columns); }},
                     writer);
  }

  double solve_pruned(BlockWriter& writer) {
    const Damping damping(grams_.fitted, usual_damping(grams_.fitted.positions));
    const TwoOfFour sparsity(grams_.fitted, damping, {}, options_.kernels, options_.threads);
    const auto rest = solver(true);
    return solve_all({[&](std::span<const float> columns) { return rest.solve(sparsity.prune(columns), columns); },
                      [&](std::span<const float> columns) { return rest.rounded(sparsity.prune(columns)); }},
                     &writer);
  }

  // The sum of squared errors over that of squares. Where some columns of a weight of many gain hardly anything by the
  // other rungs, the rest go without them and without being judged: that costs more than solving.
  double solve_all(const Solve& solve, BlockWriter* writer) {
    constexpr double kHardly = 1.01;
    constexpr std::int64_t kMany = 1024;
    if (method_ == BlockMethod::automatic && shape_.columns > kMany) {
      const auto columns = representative_columns(tensor_, shape_);
      const auto tried = solve.all(columns);
      if (tried.error_gptq <= kHardly * tried.error) {
        counts_[static_cast<std::size_t>(BlockMethod::gptq)] = shape_.columns;
        if (writer != nullptr) for_each_stripe([&](std::span<const float> stripe) { writer->add(solve.gptq(stripe)); });
        const double energy = energy_of(columns);
        return energy > 0 ? tried.error_gptq / energy : 0;
      }
    }
    double error = 0, energy = 0;
    for_each_stripe([&](std::span<const float> columns) {
      const auto solution = solve.all(columns);
      error += solution.error;
      energy += energy_of(columns);
      count_methods(solution);
      if (writer != nullptr) writer->add(solution.weight);
    });
    return energy > 0 ? error / energy : 0;
  }

  // As many as keep all threads busy, so far as memory allows.
  std::int64_t pieces_at_a_time() const {
    constexpr std::int64_t kValues = std::int64_t{1} << 22;
    const std::int64_t wanted =
        std::max(kValues / shape_.rows / kTogether, static_cast<std::int64_t>(options_.threads));
    if (!options_.memory_budget) return wanted;
    const auto taken = profile::memory_now().resident + tensor_.data.size();  // columns lie all over the weight
    const auto left = *options_.memory_budget > taken ? *options_.memory_budget - taken : 0;
    return std::clamp(static_cast<std::int64_t>(left / memory_of_piece(shape_.rows)), std::int64_t{1}, wanted);
  }

  // `visit` gets the columns of one after another.
  void for_each_stripe(const std::function<void(std::span<const float> columns)>& visit) const {
    const std::int64_t pieces = pieces_at_a_time();
    for (std::int64_t first = 0; first < shape_.columns; first += pieces * kTogether) {
      if (options_.stop.stop_requested()) throw interrupted();
      const auto last = std::min(first + pieces * kTogether, shape_.columns);
      std::vector<float> columns(static_cast<std::size_t>((last - first) * shape_.rows));
      quantization::read_columns(tensor_, shape_, first, last, columns);
      visit(columns);
    }
  }

  // The error of storing nothing.
  double energy_of(std::span<const float> columns) const {
    const auto count = static_cast<std::int64_t>(columns.size()) / shape_.rows;
    const auto nothing = quantization::make_blocks(shape_.rows, count, shape_.format);
    double sum = 0;
    for (const double e : column_errors(grams_.judge(), columns, nothing, options_.kernels, options_.threads)) sum += e;
    return sum;
  }

  void count_methods(const BlockSolution& solution) {
    if (method_ != BlockMethod::automatic) {
      counts_[static_cast<std::size_t>(method_)] += solution.weight.columns;
    } else {
      for (const auto method : solution.column_methods) ++counts_[static_cast<std::size_t>(method)];
    }
  }

  const onnx::Tensor& tensor_;
  const quantization::BlockTensor& shape_;
  const InputGrams& grams_;
  const WeightSolvingOptions& options_;
  BlockMethod method_;
  std::array<std::int64_t, kMethodNames.size()> counts_{};
};

}  // namespace

std::uint64_t memory_of_piece(std::int64_t rows) {
  constexpr std::uint64_t kMostArrays = 9;  // of floats, see BlockGptq, TwoOfFour and BlockSolution
  return kMostArrays * sizeof(float) * kColumnsTogether * static_cast<std::uint64_t>(rows);
}

BlockMethod method_of_trials(WeightMethod method) {
  return method == WeightMethod::automatic ? BlockMethod::gptq : solver_of(method);
}

BlockVerdict solve_weight(const onnx::Tensor& tensor, const quantization::BlockTensor& shape, const InputGrams& grams,
                          const WeightSolvingOptions& options, BlockWriter& writer) {
  return WeightSolving(tensor, shape, grams, options).run(writer);
}

namespace {

using quantization::BlockWeight;

constexpr std::size_t kMethodLength = 16;
constexpr double kNone = -1;

// Behind integers [columns, rows], scales and zero points [columns, blocks].
struct Footer {
  double output_error = 0;
  double dense_error = kNone;
  char method[kMethodLength] = {};
};

std::size_t block_count(const quantization::BlockTensor& shape) {
  return static_cast<std::size_t>(shape.columns * shape.format.blocks_of(shape.rows));
}

std::size_t file_size(const quantization::BlockTensor& shape) {
  return static_cast<std::size_t>(shape.rows * shape.columns) + block_count(shape) * (sizeof(float) + 1) +
         sizeof(Footer);
}

// A weight may have no elements.
template <typename T>
void copy_to(std::span<T> to, const std::byte* from) {
  if (!to.empty()) std::memcpy(to.data(), from, to.size_bytes());
}

}  // namespace

void BlockWriter::add(const BlockWeight& stripe) {
  file_.write(std::as_bytes(std::span(stripe.integers)));
  scales_.insert(scales_.end(), stripe.scales.begin(), stripe.scales.end());
  zero_points_.insert(zero_points_.end(), stripe.zero_points.begin(), stripe.zero_points.end());
}

void BlockWriter::finish(const BlockVerdict& verdict) {
  file_.write(std::as_bytes(std::span(scales_)));
  file_.write(std::as_bytes(std::span(zero_points_)));
  Footer footer{.output_error = verdict.output_error, .dense_error = verdict.dense_error.value_or(kNone)};
  std::copy_n(verdict.method.begin(), std::min(verdict.method.size(), kMethodLength - 1), footer.method);
  file_.write(std::as_bytes(std::span(&footer, 1)));
  if (file_.size() != file_size(shape_)) throw internal_error("a solution does not fit its weight");
  file_.finish();
}

StoredBlocks::StoredBlocks(const std::filesystem::path& path, const quantization::BlockTensor& shape)
    : stored_(load_sealed(path, "solution")), shape_(shape) {
  const auto content = stored_.bytes;
  if (content.size() != file_size(shape))
    throw bad_input(fmt::format("the saved solution '{}' is damaged", path.string()), "run without --resume");
  Footer footer;
  std::memcpy(&footer, content.data() + content.size() - sizeof(footer), sizeof(footer));
  footer.method[kMethodLength - 1] = '\0';
  verdict_ = {footer.method, footer.output_error, {}};
  if (footer.dense_error >= 0) verdict_.dense_error = footer.dense_error;
}

BlockWeight StoredBlocks::columns(std::int64_t first, std::int64_t count) const {
  auto made = quantization::make_blocks(shape_.rows, count, shape_.format);
  const std::byte* scales = stored_.bytes.data() + shape_.rows * shape_.columns;
  const std::byte* zero_points = scales + block_count(shape_) * sizeof(float);
  const auto block = static_cast<std::size_t>(first * made.blocks());
  copy_to(std::span(made.integers), stored_.bytes.data() + first * shape_.rows);
  copy_to(std::span(made.scales), scales + block * sizeof(float));
  copy_to(std::span(made.zero_points), zero_points + block);
  stored_.file->release(stored_.bytes);
  return made;
}

quantization::BlockSolver StoredBlocks::solver() const {
  return [stored = *this](std::span<const float> columns, std::int64_t first) {
    const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(1, stored.shape_.rows));
    return stored.columns(first, static_cast<std::int64_t>(columns.size() / rows));
  };
}

namespace {

using quantization::BlockStream;

// Ranks take neighbouring columns: all columns of all weights in a row, cut into equal parts.
class Cuts {
 public:
  Cuts(const std::vector<BlockStream>& streams, std::span<const std::byte> wanted, int ranks) : ranks_(ranks) {
    for (std::size_t t = 0; t < streams.size(); ++t) {
      const auto& shape = streams[t].shape();
      begins_.push_back(all_);
      rows_.push_back(shape.rows);
      columns_.push_back(wanted[t] != std::byte{0} ? shape.columns : 0);
      all_ += rows_.back() * columns_.back();
    }
  }

  /// The first column of a weight that this rank takes; with the next rank, that behind its last one.
  std::int64_t first(std::size_t tensor, int rank) const {
    const auto place = all_ / ranks_ * rank + all_ % ranks_ * rank / ranks_ - begins_[tensor];
    return std::clamp(place / std::max<std::int64_t>(rows_[tensor], 1), std::int64_t{0}, columns_[tensor]);
  }

 private:
  int ranks_;
  std::int64_t all_ = 0;
  std::vector<std::int64_t> begins_, rows_, columns_;
};

std::string name_of(std::size_t tensor, int rank) { return fmt::format("blocks-{}-{}.bin", tensor, rank); }

quantization::BlockTensor piece_of(quantization::BlockTensor shape, std::int64_t columns) {
  shape.columns = columns;
  return shape;
}

void append(BlockWeight& to, const BlockWeight& more) {
  to.columns += more.columns;
  to.integers.insert(to.integers.end(), more.integers.begin(), more.integers.end());
  to.scales.insert(to.scales.end(), more.scales.begin(), more.scales.end());
  to.zero_points.insert(to.zero_points.end(), more.zero_points.begin(), more.zero_points.end());
}

}  // namespace

quantization::BlockSolver BlocksInPieces::solver() const {
  return [all = *this](std::span<const float> columns, std::int64_t first) {
    const auto& shape = all.pieces.front().second.shape();
    const auto end = first + static_cast<std::int64_t>(columns.size()) / std::max<std::int64_t>(1, shape.rows);
    auto found = quantization::make_blocks(shape.rows, 0, shape.format);
    for (const auto& [begin, piece] : all.pieces) {
      const auto from = std::max(first, begin), to = std::min(end, begin + piece.shape().columns);
      if (from < to) append(found, piece.columns(from - begin, to - from));
    }
    return found;
  };
}

std::vector<BlocksInPieces> share_blocks(const std::vector<BlockStream>& streams, std::span<const std::byte> wanted,
                                         shim::Ranks& ranks, const std::filesystem::path& folder,
                                         const std::stop_token& stop) {
  const Cuts cuts(streams, wanted, ranks.size());
  std::vector<std::string> made;
  for (std::size_t t = 0; t < streams.size(); ++t) {
    const auto first = cuts.first(t, ranks.rank()), end = cuts.first(t, ranks.rank() + 1);
    if (first == end) continue;
    made.push_back(name_of(t, ranks.rank()));
    BlockWriter writer(folder / made.back(), piece_of(streams[t].shape(), end - first));
    streams[t].for_each(first, end, [&](std::int64_t, const BlockWeight& stripe) { writer.add(stripe); });
    writer.finish({});
    failpoint("blocks.shared");
  }
  (void)shim::gather_files(&ranks, folder, made, stop);
  std::vector<BlocksInPieces> all(streams.size());
  for (std::size_t t = 0; ranks.rank() == 0 && t < streams.size(); ++t) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const auto first = cuts.first(t, rank), end = cuts.first(t, rank + 1);
      if (first == end) continue;
      all[t].pieces.emplace_back(first,
                                 StoredBlocks(folder / name_of(t, rank), piece_of(streams[t].shape(), end - first)));
    }
  }
  return all;
}

}  // namespace detent::solve
