#include "shim/shared_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

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
      require_all_came();
      announced_ = announced(rank, piece);
      at_ = 0;
    } else if (at_ == announced_.size()) {
      throw unexpected_message(rank, "more than it announced");
    } else {
      open_->write(piece);
    }
    finish_whole_ones();
  }

  std::vector<std::string> names() {
    require_all_came();
    return std::move(names_);
  }

 private:
  struct File {
    std::string name;
    std::uint64_t size;
  };

  static std::vector<File> announced(int rank, std::span<const std::byte> list) {
    const auto json = parse_json(as_text(list));
    std::vector<File> files;
    const auto is_file = [](const nlohmann::json& entry) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number_unsigned())
        return false;
      const fs::path name = entry[0].get<std::string>();
      return name.has_filename() && name == name.filename() && name != "." && name != "..";
    };
    if (!json || !json->is_array() || !std::all_of(json->begin(), json->end(), is_file))
      throw unexpected_message(rank, "no list of its files");
    for (const auto& entry : *json) files.push_back({entry[0].get<std::string>(), entry[1].get<std::uint64_t>()});
    return files;
  }

  void require_all_came() const {
    if (at_ != announced_.size()) throw unexpected_message(rank_, "less than it announced");
  }

  void finish_whole_ones() {
    for (; at_ < announced_.size(); ++at_) {
      const auto& [name, size] = announced_[at_];
      if (!open_) open_.emplace(folder_ / name);
      if (open_->size() < size) return;
      open_->commit();
      open_.reset();
      names_.push_back(name);
    }
  }

  const fs::path& folder_;
  int rank_ = 0;
  std::vector<File> announced_;
  std::size_t at_ = 0;
  std::optional<AtomicFile> open_;
  std::vector<std::string> names_;
};

}  // namespace

Error unexpected_message(int rank, const std::string& what) {
  return device_error(fmt::format("rank {} sent {}", rank, what), "start the same detent with the same options on all");
}

void broadcast(Ranks& ranks, std::span<std::byte> bytes, const std::stop_token& stop) {
  std::vector<std::byte> sent(bytes.begin(), bytes.end());
  ranks.broadcast(sent, stop);
  if (sent.size() != bytes.size())
    throw unexpected_message(0, fmt::format("{} bytes where {} were expected", sent.size(), bytes.size()));
  std::copy(sent.begin(), sent.end(), bytes.begin());
}

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

std::vector<std::string> broadcast_names(Ranks* ranks, std::vector<std::string> names, const std::stop_token& stop) {
  if (size_of(ranks) == 1) return names;
  std::vector<std::byte> bytes;
  for (const auto& name : names) {
    const auto text = std::as_bytes(std::span(name.c_str(), name.size() + 1));
    bytes.insert(bytes.end(), text.begin(), text.end());
  }
  ranks->broadcast(bytes, stop);
  if (!bytes.empty() && bytes.back() != std::byte{0}) throw unexpected_message(0, "names without an end");
  names.clear();
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  for (std::size_t at = 0; at < bytes.size(); at += names.back().size() + 1) names.emplace_back(text + at);
  return names;
}

std::vector<std::vector<std::byte>> all_gather(Ranks* ranks, std::vector<std::byte> mine, const std::stop_token& stop) {
  const auto size = static_cast<std::size_t>(size_of(ranks));
  std::vector<std::vector<std::byte>> all(size);
  const auto own = static_cast<std::size_t>(rank_of(ranks));
  all[own] = std::move(mine);
  if (size == 1) return all;
  ranks->exchange(
      all[own],
      [&](int rank, std::span<const std::byte> bytes) {
        all[static_cast<std::size_t>(rank)].assign(bytes.begin(), bytes.end());
      },
      stop);
  return all;
}

void exchange_made(std::span<const Made> items, std::span<const int> owners, const Team& team) {
  if (team.size() == 1) return;
  const auto for_each_of = [&](int owner, const auto& visit) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (owners[i] != owner) continue;
      for (const auto part : items[i]) visit(part);
    }
  };
  std::vector<std::byte> mine;
  for_each_of(team.ranks->rank(),
              [&](std::span<std::byte> part) { mine.insert(mine.end(), part.begin(), part.end()); });
  team.ranks->exchange(
      mine,
      [&](int rank, std::span<const std::byte> bytes) {
        std::size_t wanted = 0;
        for_each_of(rank, [&](std::span<std::byte> part) { wanted += part.size(); });
        if (bytes.size() != wanted)
          throw unexpected_message(rank, fmt::format("{} bytes where {} were expected", bytes.size(), wanted));
        for_each_of(rank, [&](std::span<std::byte> part) {
          std::copy_n(bytes.begin(), part.size(), part.begin());
          bytes = bytes.subspan(part.size());
        });
      },
      team.stop);
}

bool any_of(Ranks* ranks, bool mine, const std::stop_token& stop) {
  const auto all = all_gather(ranks, {std::byte{mine}}, stop);
  const std::vector<std::byte> no{std::byte{0}};
  return std::any_of(all.begin(), all.end(), [&](const auto& bytes) { return bytes != no; });
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
