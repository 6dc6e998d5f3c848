#include "profile/amd_gpu.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/paths.h"

namespace detent::profile {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kAmd = "0x1002";

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto begin = std::min(text.find_first_not_of(" \t"), text.size());
  const auto [end, failed] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  if (failed != std::errc()) return std::nullopt;
  return value;
}

std::uint64_t number_in(const fs::path& file) { return number(first_line(file)).value_or(0); }

std::vector<fs::path> entries(const fs::path& folder) {
  try {
    return paths::entries_of(folder);
  } catch (const Error&) {  // there is no such driver, or it may not be asked
    return {};
  }
}

// A file that this process has open on a device, in lines "NAME:\tVALUE" (Documentation/gpu/drm-usage-stats.rst).
struct Client {
  std::string driver, address, id;
  std::optional<std::uint64_t> bytes;
};

Client client_of(const fs::path& file) {
  Client client;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto name = std::string_view(line).substr(0, colon);
    auto value = std::string_view(line).substr(colon + 1);
    value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
    if (name == "drm-driver") client.driver = value;
    if (name == "drm-pdev") client.address = value;
    if (name == "drm-client-id") client.id = value;
    if (name != "drm-memory-vram") continue;
    const std::uint64_t unit = value.ends_with("KiB") ? 1 << 10 : value.ends_with("MiB") ? 1 << 20 : 1;
    if (const auto found = number(value)) client.bytes = *found * unit;
  }
  return client;
}

}  // namespace

std::optional<AmdGpus> AmdGpus::open(const AmdPlaces& places) {
  auto cards = visible(visible(cards_of(places.devices), "ROCR_VISIBLE_DEVICES"), "HIP_VISIBLE_DEVICES");
  if (cards.empty()) return std::nullopt;
  return AmdGpus(std::move(cards), places.own_files);
}

// In the order of their addresses, which is that in which ROCm counts them.
std::vector<AmdGpus::Card> AmdGpus::cards_of(const fs::path& devices) {
  std::vector<Card> cards;
  for (const auto& entry : entries(devices)) {
    const auto name = entry.filename().string();
    const auto digits = std::string_view(name).substr(std::min<std::size_t>(name.size(), 4));
    // Beside card0 there are its sockets, as card0-DP-1, and renderD128.
    if (!name.starts_with("card") || digits.empty() || digits.find_first_not_of("0123456789") != digits.npos) continue;
    const auto folder = entry / "device";
    std::error_code failed;
    if (first_line(folder / "vendor") != kAmd || !fs::exists(folder / "mem_info_vram_used", failed)) continue;
    const auto id = first_line(folder / "unique_id");
    const auto address = fs::canonical(folder, failed).filename().string();
    cards.push_back({address, folder, id.empty() ? std::string() : "GPU-" + id});
  }
  std::sort(cards.begin(), cards.end(), [](const Card& a, const Card& b) { return a.address < b.address; });
  return cards;
}

// Numbers or ids between commas. As in ROCm, what is no device ends the list.
std::vector<AmdGpus::Card> AmdGpus::visible(std::vector<Card> cards, const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr) return cards;
  std::vector<Card> chosen;
  for (std::string_view rest(value); !rest.empty();) {
    const auto comma = std::min(rest.find(','), rest.size());
    const auto word = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const auto index = number(word);
    const auto found =
        index ? cards.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(*index, cards.size()))
              : std::find_if(cards.begin(), cards.end(), [&](const Card& card) { return card.id == word; });
    if (found == cards.end()) break;
    chosen.push_back(*found);
  }
  return chosen;
}

// nullopt: the driver does not tell. Several files may be one client, whose memory counts once.
std::optional<std::uint64_t> AmdGpus::used_by_us() const {
  std::set<std::pair<std::string, std::string>> seen;
  std::optional<std::uint64_t> sum;
  for (const auto& entry : entries(own_files_)) {
    const auto client = client_of(entry);
    const bool is_visible =
        std::any_of(cards_.begin(), cards_.end(), [&](const Card& card) { return card.address == client.address; });
    if (client.driver != "amdgpu" || !is_visible || !client.bytes) continue;
    if (!seen.emplace(client.address, client.id).second) continue;
    sum = sum.value_or(0) + *client.bytes;
  }
  return sum;
}

GpuMemory AmdGpus::now() const {
  GpuMemory memory;
  for (const auto& card : cards_) {
    memory.bytes += number_in(card.folder / "mem_info_vram_used");
    const auto busy = std::min<std::uint64_t>(number_in(card.folder / "gpu_busy_percent"), 100);
    memory.busy_percent = std::max(memory.busy_percent, static_cast<unsigned>(busy));
  }
  if (const auto own = used_by_us()) {
    memory.bytes = *own;
    memory.of_this_process = true;
  }
  return memory;
}

}  // namespace detent::profile
