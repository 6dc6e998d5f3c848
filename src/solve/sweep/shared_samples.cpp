#include "solve/sweep/shared_samples.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"
#include "solve/sweep/finetune.h"

namespace detent::solve {
namespace {

// Bytes that a rank sends at a time, or one record; the latter in the first rounds, since what a layer takes of a
// sample can be drawn from it by others only once sums have begun.
constexpr std::size_t kTogether = std::size_t{4} << 20;
constexpr std::size_t kSingleRounds = 3;
constexpr std::size_t kAlignment = 16;

// A record in a message: numbers of 8 bytes, which are that of its arrays and for each its type, its dimensions and
// their number, and its bytes; then the bytes. Parts begin at a multiple of kAlignment.
class Packer {
 public:
  void add(const store::Record& record) {
    number(record.size());
    for (const auto& array : record) {
      number(static_cast<std::uint64_t>(array.type));
      number(array.shape.size());
      for (const auto dim : array.shape) number(static_cast<std::uint64_t>(dim));
      number(array.bytes.size());
      align();
      bytes_.insert(bytes_.end(), array.bytes.begin(), array.bytes.end());
      align();
    }
  }
  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }

 private:
  void number(std::uint64_t value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void align() { bytes_.resize((bytes_.size() + kAlignment - 1) / kAlignment * kAlignment); }

  std::vector<std::byte> bytes_;
};

// Its records refer to one copy of the message.
class Unpacker {
 public:
  Unpacker(int rank, std::span<const std::byte> bytes)
      : rank_(rank), message_(std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end())) {}

  bool is_at_end() const noexcept { return at_ == message_->size(); }
  store::Record next() {
    store::Record record(count());
    for (auto& array : record) {
      array.type = static_cast<onnx::DataType>(number());
      array.shape.resize(count());
      for (auto& dim : array.shape) dim = static_cast<std::int64_t>(number());
      const auto size = number();
      align();
      array.bytes = part(size);
      array.owner = message_;
      align();
    }
    return record;
  }

 private:
  std::span<const std::byte> part(std::uint64_t size) {
    if (size > message_->size() - at_) throw shim::unexpected_message(rank_, "a record that breaks off");
    const auto found = std::span<const std::byte>(*message_).subspan(at_, size);
    at_ += size;
    return found;
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, part(sizeof value).data(), sizeof value);
    return value;
  }
  // Of what takes a number each.
  std::size_t count() {
    const auto value = number();
    if (value > (message_->size() - at_) / sizeof value)
      throw shim::unexpected_message(rank_, "a record that breaks off");
    return value;
  }
  void align() { part((kAlignment - at_ % kAlignment) % kAlignment); }

  int rank_;
  std::shared_ptr<const std::vector<std::byte>> message_;
  std::size_t at_ = 0;
};

}  // namespace

std::size_t runner_of(std::size_t sample, std::size_t ranks) {
  const std::size_t held_back_before = sample / kHeldBackEvery;
  return (is_held_back(sample) ? held_back_before : sample - held_back_before) % ranks;
}

SharedSamples::SharedSamples(store::Spool& spool, std::size_t layers, bool keeps_held_back, shim::Team team)
    : spool_(spool),
      lane_(spool.open("shared")),
      layers_(layers),
      keeps_held_back_(keeps_held_back),
      team_(std::move(team)),
      queues_(team_.size()) {}

SharedSamples::~SharedSamples() { spool_.close(lane_); }

bool SharedSamples::travels(std::size_t sample) const { return !keeps_held_back_ || !is_held_back(sample); }

void SharedSamples::put(std::size_t layer, std::size_t sample, store::Record record) {
  spool_.put(lane_, sample * layers_ + layer, std::move(record));
}

store::Record SharedSamples::take_own(std::size_t layer, std::size_t sample) {
  const std::size_t place = sample * layers_ + layer;
  auto record = spool_.get(lane_, place);
  if (!record)
    throw resource_error("a spooled activation was damaged on disk", "run again, or choose another --work-dir");
  spool_.release(lane_, place);
  return std::move(*record);
}

void SharedSamples::exchange_some(std::size_t samples, std::size_t most, const Reduce& reduce) {
  Packer packer;
  for (; sent_ < samples * layers_ && packer.bytes().size() < most; ++sent_) {
    const std::size_t sample = sent_ / layers_;
    if (!is_mine(sample) || !travels(sample)) continue;
    const std::size_t layer = sent_ % layers_;
    queues_[team_.rank()].push_back(reduce(layer, sample, take_own(layer, sample)));
    packer.add(queues_[team_.rank()].back());
  }
  team_.ranks->exchange(
      packer.bytes(),
      [&](int rank, std::span<const std::byte> bytes) {
        Unpacker unpacker(rank, bytes);
        while (!unpacker.is_at_end()) queues_.at(static_cast<std::size_t>(rank)).push_back(unpacker.next());
      },
      team_.stop);
}

void SharedSamples::hand_out(std::size_t samples, const Reduce& reduce, const Take& take) {
  for (std::size_t i = 0; i < samples * layers_; ++i) {
    const std::size_t sample = i / layers_, layer = i % layers_;
    const std::size_t runner = runner_of(sample, team_.size());
    if (!travels(sample)) {
      take(layer, sample, is_mine(sample) ? std::optional(take_own(layer, sample)) : std::nullopt);
      continue;
    }
    auto& queue = queues_[runner];
    const std::size_t most = sample < kSingleRounds * team_.size() ? 1 : kTogether;
    if (queue.empty()) exchange_some(samples, most, reduce);
    if (queue.empty()) throw shim::unexpected_message(static_cast<int>(runner), "too few records");
    take(layer, sample, std::move(queue.front()));
    queue.pop_front();
  }
}

}  // namespace detent::solve
