// What waits for a disk that does not write: no more than the writer was given.
#include "store/transfers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "store/support.h"

namespace detent::store::test {
namespace {

using WriterTest = SpoolTest;

constexpr std::size_t kRecord = 50'000;
constexpr std::uint64_t kBuffers = 600'000;

/// A writer whose disk stands still until it is told to go on.
struct Held {
  explicit Held(const fs::path& folder)
      : file(std::make_shared<LaneFile>(folder / "a.lane", budget)),
        writer({kBuffers,
                [this] {
                  go_on.get_future().wait();
                  return DiskAccess::buffered;
                },
                [](const std::shared_ptr<WriteJob>&) {}},
               memory) {}

  void push(std::size_t sample) {
    auto job = std::make_shared<WriteJob>();
    job->sample = sample;
    job->file = file;
    job->record = owned(record_of(kRecord, sample));
    job->layout = layout_of(job->record);
    file->charge(job->layout.size());
    writer.push(std::move(job));
    ++pushed;
  }

  DiskBudget budget{std::uint64_t{1} << 30};
  Gauge memory;
  std::promise<void> go_on;
  std::atomic<std::size_t> pushed = 0;
  std::shared_ptr<LaneFile> file;
  Writer writer;
};

TEST_F(WriterTest, AProducerWaitsForADiskThatStandsStill) {
  constexpr std::size_t kSamples = 40;
  Held held(directory());
  auto producer = std::async(std::launch::async, [&] {
    for (std::size_t i = 0; i < kSamples; ++i) held.push(i);
  });
  // What fits comes in whatever the disk does, and nothing beyond it can: however late this is looked at.
  constexpr std::uint64_t kStaging = 8 * 40 * 1024;  // chunks of a sixteenth of the buffers, in whole blocks
  constexpr std::size_t kFits = (kBuffers - kStaging) / kRecord;
  using namespace std::chrono_literals;
  while (held.pushed < kFits && producer.wait_for(0ms) == std::future_status::timeout) std::this_thread::yield();
  EXPECT_EQ(producer.wait_for(20ms), std::future_status::timeout);
  EXPECT_EQ(held.pushed, kFits);
  EXPECT_LE(held.memory.peak(), kBuffers - kStaging);
  held.go_on.set_value();
  producer.get();
  held.writer.drain();
  EXPECT_LE(held.memory.peak(), kBuffers);
  EXPECT_EQ(held.memory.now(), kStaging);  // what is kept for the next record
}

}  // namespace
}  // namespace detent::store::test
