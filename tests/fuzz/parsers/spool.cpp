// Files of a spool that an earlier process left: records come back whole or not at all.
#include "store/spool.h"

#include <xxhash.h>

#include <cstring>

#include "fuzz/fuzz.h"
#include "store/lane_file.h"

namespace detent::fuzz {
namespace {

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

void run(Bytes input) {
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

const Registered spool{{"spool", run, {}, 0, 25}};

}  // namespace
}  // namespace detent::fuzz
