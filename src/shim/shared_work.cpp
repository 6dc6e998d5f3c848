#include "shim/shared_work.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace detent::shim {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kPiece = std::size_t{16} << 20;

// First a list of names and sizes, then the contents, in pieces that each belong to one file.
class Sender {
 public:
  Sender(const fs::path& folder, const std::vector<std::string>& names) {
    auto list = nlohmann::json::array();
    for (const auto& name : names) {
      files_.push_back(MappedFile::open(folder / name, "working file"));
      list.push_back({name, files_.back()->bytes().size()});
    }
    list_ = json_text(list);
  }

  std::span<const std::byte> next() {
    if (!std::exchange(listed_, true)) return std::as_bytes(std::span(list_));
    if (current_) current_->release(piece_);
    while (file_ < files_.size() && done_ == files_[file_]->bytes().size()) {
      ++file_;
      done_ = 0;
    }
    if (file_ == files_.size()) return {};
    current_ = files_[file_];
    const auto rest = current_->bytes().subspan(done_);
    piece_ = rest.first(std::min(kPiece, rest.size()));
    done_ += piece_.size();
    return piece_;
  }

 private:
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::string list_;
  bool listed_ = false;
  std::size_t file_ = 0, done_ = 0;
  std::shared_ptr<const MappedFile> current_;
  std::span<const std::byte> piece_;
};

class Receiver {
 public:
  explicit Receiver(const fs::path& folder) : folder_(folder) {}

  void take(int rank, std::span<const std::byte> piece) {
    if (std::exchange(rank_, rank) != rank) {
      expect(piece);
    } else if (at_ == list_.size()) {
      throw internal_error("a rank sent more than it announced");
    } else {
      open_->write(piece);
    }
    finish_whole_ones();
  }

  std::vector<std::string> names() {
    if (at_ != list_.size()) throw internal_error("a rank sent less than it announced");
    return std::move(names_);
  }

 private:
  void expect(std::span<const std::byte> list) {
    if (at_ != list_.size()) throw internal_error("a rank sent less than it announced");
    auto read = parse_json({reinterpret_cast<const char*>(list.data()), list.size()});
    if (!read) throw internal_error("a rank sent no list of its files");
    list_ = std::move(*read);
    at_ = 0;
  }

  void finish_whole_ones() {
    for (; at_ < list_.size(); ++at_) {
      const auto name = list_[at_][0].get<std::string>();
      if (!open_) open_.emplace(folder_ / name);
      if (open_->size() < list_[at_][1].get<std::uint64_t>()) return;
      open_->commit();
      open_.reset();
      names_.push_back(name);
    }
  }

  const fs::path& folder_;
  int rank_ = 0;
  nlohmann::json list_ = nlohmann::json::array();
  std::size_t at_ = 0;
  std::optional<AtomicFile> open_;
  std::vector<std::string> names_;
};

}  // namespace

std::vector<int> owners_of(std::span<const double> costs, int ranks) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<double> loads(static_cast<std::size_t>(ranks));
  std::vector<int> owners(costs.size());
  for (const auto item : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += costs[item];
    owners[item] = static_cast<int>(least - loads.begin());
  }
  return owners;
}

std::vector<std::string> names_of_first(Ranks* ranks, std::vector<std::string> names, const std::stop_token& stop) {
  if (size_of(ranks) == 1) return names;
  std::vector<std::byte> bytes;
  for (const auto& name : names) {
    const auto text = std::as_bytes(std::span(name.c_str(), name.size() + 1));
    bytes.insert(bytes.end(), text.begin(), text.end());
  }
  ranks->broadcast(bytes, stop);
  names.clear();
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  for (std::size_t at = 0; at < bytes.size(); at += names.back().size() + 1) names.emplace_back(text + at);
  return names;
}

std::vector<std::vector<std::byte>> of_all(Ranks* ranks, std::vector<std::byte> mine, const std::stop_token& stop) {
  const auto size = static_cast<std::size_t>(size_of(ranks));
  std::vector<std::vector<std::byte>> all(size);
  const auto own = static_cast<std::size_t>(rank_of(ranks));
  all[own] = std::move(mine);
  if (size == 1) return all;
  ranks->gather(
      all[own],
      [&](int rank, std::span<const std::byte> bytes) {
        all[static_cast<std::size_t>(rank)].assign(bytes.begin(), bytes.end());
      },
      stop);
  for (auto& bytes : all) ranks->broadcast(bytes, stop);
  return all;
}

bool any_of(Ranks* ranks, bool mine, const std::stop_token& stop) {
  const auto all = of_all(ranks, {std::byte{mine}}, stop);
  return std::any_of(all.begin(), all.end(), [](const auto& bytes) { return bytes.at(0) != std::byte{0}; });
}

std::pair<std::size_t, std::size_t> share_of(const Ranks* ranks, std::size_t items) noexcept {
  const auto rank = static_cast<std::size_t>(rank_of(ranks)), size = static_cast<std::size_t>(size_of(ranks));
  return {items * rank / size, items * (rank + 1) / size};
}

std::vector<std::string> gather_files(Ranks* ranks, const fs::path& folder, const std::vector<std::string>& mine,
                                      const std::stop_token& stop) {
  if (size_of(ranks) == 1) return {};
  Receiver receiver(folder);
  std::optional<Sender> sender;
  if (ranks->rank() != 0) sender.emplace(folder, mine);
  ranks->gather_pieces([&] { return sender->next(); },
                       [&](int rank, std::span<const std::byte> piece) { receiver.take(rank, piece); }, stop);
  return receiver.names();
}

}  // namespace detent::shim
