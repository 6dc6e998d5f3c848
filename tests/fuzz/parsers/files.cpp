#include <nlohmann/json.hpp>

#include <xxhash.h>
#include <cstring>

#include "base/json.h"
#include "base/text.h"
#include "data/sample.h"
#include "fuzz/fuzz.h"
#include "profile/report.h"
#include "store/lane_file.h"
#include "store/spool.h"

namespace detent::fuzz {
namespace {

// Files of a spool that an earlier process left: records come back whole or not at all.

constexpr std::size_t kBlockSize = 4096;

void append(std::string& to, const auto& value) { to.append(reinterpret_cast<const char*>(&value), sizeof value); }

/// A record whose header is in order as far as its checksum goes (docs/spool.md); the numbers in it come from the
/// input.
void append_record(std::string& file, Parts& parts) {
  const std::uint8_t form = parts.byte();
  const std::size_t arrays = parts.byte() % 6U;
  std::string body;
  for (std::size_t i = 0; i < arrays; ++i) {
    const std::uint8_t shape = parts.byte();
    append(body, std::int32_t{parts.byte()});
    append(body, std::uint32_t{parts.byte()});
    append(body, (shape & 0x40) != 0 ? parts.number<std::uint64_t>() : std::uint64_t{parts.byte()});
    append(body, (shape & 0x80) != 0 ? parts.number<std::uint64_t>() : std::uint64_t{parts.byte()});
    append(body, (shape & 0x20) != 0 ? parts.number<std::uint64_t>() : std::uint64_t{shape % 8U});
    for (int d = 0; d < shape % 8; ++d)
      append(body, (shape & 0x10) != 0 ? parts.number<std::uint64_t>() : std::uint64_t{parts.byte()});
  }
  const Bytes payload = parts.piece();
  std::string blocks(as_text(payload));
  blocks.resize((blocks.size() + kBlockSize - 1) / kBlockSize * kBlockSize);
  std::string head;
  append(head, std::uint64_t{0x1A6C6F6F70733164});
  append(head, std::uint32_t{1});
  append(head, static_cast<std::uint32_t>((form & 1) != 0 ? parts.number<std::uint32_t>() : arrays));
  append(head, std::uint64_t{kBlockSize});
  append(head, std::uint64_t{0});
  append(head, std::uint64_t{form % 4U});  // the sample
  append(head, (form & 2) != 0 ? parts.number<std::uint64_t>() : std::uint64_t{file.size()});
  append(head, (form & 4) != 0 ? parts.number<std::uint64_t>() : std::uint64_t{blocks.size()});
  append(head, (form & 8) != 0 ? parts.number<std::uint64_t>() : XXH3_64bits(blocks.data(), blocks.size()));
  body.resize(std::max(body.size(), kBlockSize - head.size()));
  body.resize(kBlockSize - head.size());
  const std::uint64_t sum = XXH3_64bits_withSeed(body.data(), body.size(), XXH3_64bits(head.data(), head.size()));
  std::memcpy(head.data() + 24, &sum, sizeof sum);
  file += head + body + blocks;
}

std::string file_of(Bytes input) {
  Parts parts(input);
  if (parts.byte() == 0) return std::string(as_text(parts.rest()));
  std::string file;
  while (!parts.empty() && file.size() < 32 * kBlockSize) append_record(file, parts);
  return file;
}

void run_spool(Bytes input) {
  const auto directory = fresh_folder("spool");
  put("spool/lane.lane", as_byte_span(file_of(input)));
  try_to([&] {
    store::Spool spool({.directory = directory,
                        .residency = store::Residency::disk,
                        .buffer_bytes = 1 << 20,
                        .prefetch = 0,
                        .access = store::DiskAccess::buffered});
    const auto lane = spool.open("lane");
    for (std::size_t sample = 0; sample < 4; ++sample) {
      const bool held = spool.holds(lane, sample);
      spool.resting(lane, sample);
      const auto record = spool.get(lane, sample);
      require(held || !record, "only records that are held are given");
      if (!record) continue;
      for (const auto& array : *record) touch(array.bytes);
    }
    spool.damaged();
    static const std::vector<float> floats(20000, 1.5F);
    spool.put(lane, 10, {{onnx::DataType::float32, {20000}, std::as_bytes(std::span(floats)), nullptr}});
    spool.put(lane, 9, {{onnx::DataType::uint8, {static_cast<std::int64_t>(input.size())}, input, nullptr}});
    spool.sync();
    const auto again = spool.get(lane, 9);
    require(again && again->size() == 1 && std::ranges::equal(again->front().bytes, input), "a new record comes back");
    spool.close(lane);
  });
}

const Registered spool_target{{"spool", run_spool, {}, 0, 25}};

// JSON of other programs and of earlier runs: what is read is bounded and comes out as it went in.

template <class Json>
void read_and_write(std::string_view text) {
  const auto read = parse_json<Json>(text);
  const auto library = Json::parse(text, nullptr, false);
  require(!read || *read == library, "JSON is what the library reads");
  if (!read) return;
  for (const int indent : {-1, 2}) {
    const auto again = parse_json<Json>(json_text(*read, indent));
    require(again && *again == *read, "JSON that is written reads back");
  }
}

void run_json(Bytes input) {
  const std::string_view text = as_text(input);
  read_and_write<nlohmann::json>(text);
  read_and_write<nlohmann::ordered_json>(text);
  const auto name = json_of_name(text);
  require(name_of_json(name) == text, "a name comes back as it was");
  const auto again = parse_json(json_text(name));
  require(again && name_of_json(*again) == text, "a name comes back from a file");
  if (const auto read = parse_json(text)) name_of_json(*read);
}

const Registered json_target{{"json", run_json}};

// Names from files on their way to terminals and reports, and patterns over them.

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    if (!point.valid) return false;
    text.remove_prefix(point.length);
  }
  return true;
}

bool has_controls(std::string_view text) {
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    // C0, DEL and C1: what a terminal takes for more than text.
    if (point.value < 0x20 || (point.value >= 0x7F && point.value < 0xA0)) return true;
    text.remove_prefix(point.length);
  }
  return false;
}

void check(const std::string& text, bool one_line) {
  require(is_utf8(text), "printable text is UTF-8");
  std::string flat = text;
  if (!one_line) std::erase(flat, '\n');
  require(!has_controls(flat), "printable text has no control characters");
}

void run_text(Bytes input) {
  Parts parts(input);
  const std::size_t limit = parts.byte();
  const std::string text(as_text(parts.rest()));
  check(printable(text), true);
  const std::string cut = printable(text, limit);
  check(cut, true);
  require(cut.size() <= 4 * limit + 3 || cut == printable(text), "text is cut where it is too long");
  check(printable_lines(text), false);
  const std::string yaml = profile::yaml_quoted(text);
  require(is_utf8(yaml) && yaml.find('\n') == std::string::npos, "a quoted scalar is one line of UTF-8");
  const std::size_t half = text.size() / 2;
  const std::string_view a(text.data(), half), b(text.data() + half, text.size() - half);
  require(!(data::natural_less(a, b) && data::natural_less(b, a)), "the order of names is one");
  require(data::natural_less(a, b) || data::natural_less(b, a) || a == b, "the order of names is total");
  const std::string_view words[] = {"calibration-data", "method", a};
  if (text.size() < 64) nearest_word(b, words);
}

void run_pattern(Bytes input) {
  Parts parts(input);
  const std::string expression = parts.text();
  const std::string replacement = parts.text();
  const std::string text(as_text(parts.rest()));
  try_to([&] {
    const Pattern pattern(expression);
    pattern.matches_whole(text);
    pattern.replace_all(text, replacement);
  });
}

const Registered text_target{{"text", run_text}};
const Registered pattern_target{{"pattern", run_pattern}};

}  // namespace
}  // namespace detent::fuzz
