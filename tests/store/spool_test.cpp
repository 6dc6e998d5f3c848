#include <gtest/gtest.h>

#include <sys/stat.h>
#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "store/lane_file.h"
#include "store/spool.h"
#include "store/support.h"
#include "store/transfers.h"

namespace detent::store::test {
namespace {

// Arrays of every type and of odd shapes.
Record mixed_record(std::uint64_t seed) {
  Record record;
  for (int type = 1; type <= 26; ++type) {
    if (onnx::bits_of(static_cast<DataType>(type)) == 0) continue;
    record.push_back(array_of(static_cast<DataType>(type), {3, 5, 7}, seed + static_cast<std::uint64_t>(type)));
  }
  record.push_back(array_of(DataType::float32, {}, seed));    // a scalar
  record.push_back(array_of(DataType::int64, {0, 4}, seed));  // nothing at all
  record.push_back(array_of(DataType::float32, {1, 33, 1, 1, 1, 1, 1}, seed));
  return record;
}

TEST_F(SpoolTest, KeepsEveryTypeAndShape) {
  for (const Residency residency : {Residency::memory, Residency::memory_then_disk, Residency::disk}) {
    for (const DiskAccess access : all_accesses()) {
      if (!works(access)) continue;
      for (const std::size_t prefetch : {0, 1, 8}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(residency) << text_of(access) << prefetch);
        SpoolOptions with = options(residency, access);
        with.prefetch = prefetch;
        if (residency == Residency::memory_then_disk) with.memory_bytes = 20'000;
        Spool spool(with);
        const auto lane = spool.open("mixed");
        for (std::size_t i = 0; i < 10; ++i) spool.put(lane, i, mixed_record(i));
        spool.sync();
        spool.prefetch({lane}, 0, 10);
        for (std::size_t i = 0; i < 10; ++i) EXPECT_TRUE(same(spool.get(lane, i), mixed_record(i))) << i;
        EXPECT_EQ(spool.in_memory(lane, 0), residency != Residency::disk);
        EXPECT_EQ(spool.in_memory(lane, 9), residency == Residency::memory);
        EXPECT_EQ(spool.use().bytes_written > 0, residency != Residency::memory);
        EXPECT_EQ(spool.damaged(), 0u);
        spool.close(lane);
        EXPECT_EQ(files(), 0u);
      }
    }
  }
}

TEST_F(SpoolTest, KeepsRecordsOfAnySize) {
  for (const DiskAccess access : all_accesses()) {
    if (!works(access)) continue;
    Spool spool(options(Residency::disk, access));
    const auto lane = spool.open("sizes");
    const std::vector<std::size_t> sizes = {0,      1,       63,      64,      4095,      4096,      4097,
                                            65'536, 130'999, 250'000, 262'144, 1'048'576, 5'000'001, 20'000'000};
    for (std::size_t i = 0; i < sizes.size(); ++i) spool.put(lane, i, record_of(sizes[i], i));
    for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_TRUE(same(spool.get(lane, i), record_of(sizes[i], i))) << i;
    spool.sync();
    for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_TRUE(same(spool.get(lane, i), record_of(sizes[i], i))) << i;
    EXPECT_EQ(spool.damaged(), 0u) << text_of(access);
  }
}

TEST_F(SpoolTest, KeepsRecordsOfVeryManyArrays) {
  for (const DiskAccess access : all_accesses()) {
    if (!works(access)) continue;
    Spool spool(options(Residency::disk, access));
    const auto lane = spool.open("many");
    Record many;
    for (std::uint64_t i = 0; i < 20'000; ++i) many.push_back(bytes_of(i % 7, i));
    for (std::size_t i = 0; i < 3; ++i) {
      spool.put(lane, 2 * i, many);
      spool.put(lane, 2 * i + 1, {});
    }
    spool.sync();
    Spool again(options(Residency::disk, access));
    const auto same_lane = again.open("many");
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(same(again.get(same_lane, 2 * i), many));
      EXPECT_TRUE(same(again.get(same_lane, 2 * i + 1), {}));
    }
    again.close(same_lane);
  }
}

TEST_F(SpoolTest, ArraysAreAlignedAndOutliveTheSpool) {
  std::optional<Record> record;
  {
    Spool spool(options());
    const auto lane = spool.open("a");
    spool.put(lane, 0, mixed_record(5));
    spool.sync();
    record = spool.get(lane, 0);
    spool.close(lane);
  }
  EXPECT_TRUE(same(record, mixed_record(5)));
  for (const Array& array : *record) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.bytes.data()) % 64, 0u);
}

// Large arrays that begin at a block go to disk from where they are, others by way of a copy.
TEST_F(SpoolTest, RecordsThatWereReadCanBePutAgain) {
  Record record;
  for (const std::size_t size : {70'000, 10, 65'536, 4096, 65'535, 3'000'000, 131'072, 0, 1'048'576, 7}) {
    record.push_back(bytes_of(size, size));
  }
  for (const DiskAccess access : all_accesses()) {
    if (!works(access)) continue;
    Spool spool(options(Residency::disk, access));
    const auto lane = spool.open("a");
    spool.put(lane, 0, record);
    for (std::size_t i = 1; i < 12; ++i) {
      if (i % 2 == 1) spool.sync();
      auto got = spool.get(lane, i - 1);
      ASSERT_TRUE(same(got, record)) << i;
      if (i % 3 == 0) got->push_back(bytes_of(5 * i, i));
      spool.put(lane, i, *got);
      record = *got;
    }
    EXPECT_EQ(spool.damaged(), 0u);
    spool.close(lane);
  }
}

TEST_F(SpoolTest, MemoryKeepsArraysThatOwnTheirBytesAndCopiesOthers) {
  Spool spool(options(Residency::memory));
  const auto lane = spool.open("a");
  const Array owned = bytes_of(1000, 1);
  Array borrowed = bytes_of(1000, 2);
  std::vector<std::byte> elsewhere(borrowed.bytes.begin(), borrowed.bytes.end());
  Array view{DataType::uint8, {1000}, elsewhere, nullptr};
  spool.put(lane, 0, {owned, view});
  std::fill(elsewhere.begin(), elsewhere.end(), std::byte{0});
  const auto got = spool.get(lane, 0);
  EXPECT_TRUE(same(got, {owned, borrowed}));
  EXPECT_EQ((*got)[0].bytes.data(), owned.bytes.data());
}

TEST_F(SpoolTest, MemoryGoesWithTheRecord) {
  Spool spool(options(Residency::memory));
  const auto lane = spool.open("a");
  Record record = record_of(1000, 1);
  const std::weak_ptr<const void> watch = record[0].owner;
  spool.put(lane, 0, std::move(record));
  EXPECT_FALSE(watch.expired());
  spool.release(lane, 0);
  EXPECT_TRUE(watch.expired());
  EXPECT_FALSE(spool.holds(lane, 0));
  EXPECT_EQ(spool.get(lane, 0), std::nullopt);
}

TEST_F(SpoolTest, ALaterRecordReplacesAnEarlierOne) {
  for (const Residency residency : {Residency::memory, Residency::disk}) {
    Spool spool(options(residency));
    const auto lane = spool.open("a");
    for (std::uint64_t round = 0; round < 20; ++round) {
      spool.put(lane, 7, record_of(10'000, round));
      if (round % 3 == 0) spool.sync();
      EXPECT_TRUE(same(spool.get(lane, 7), record_of(10'000, round)));
    }
    spool.sync();
    EXPECT_LE(spool.use().memory_peak, 2'000'000u);
    spool.close(lane);
  }
}

TEST_F(SpoolTest, LanesDoNotMix) {
  Spool spool(options());
  const auto a = spool.open("a");
  const auto b = spool.open("b");
  EXPECT_EQ(spool.open("a"), a);
  for (std::size_t i = 0; i < 8; ++i) {
    spool.put(a, i, record_of(5000, i));
    spool.put(b, i, record_of(7000, 100 + i));
  }
  spool.sync();
  spool.close(a);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_TRUE(same(spool.get(b, i), record_of(7000, 100 + i)));
  EXPECT_FALSE(fs::exists(lane_path("a")));
  EXPECT_TRUE(fs::exists(lane_path("b")));
  const auto fresh = spool.open("a");
  EXPECT_FALSE(spool.holds(fresh, 0));
}

TEST_F(SpoolTest, ReadsAheadOverSeveralLanes) {
  SpoolOptions with = options();
  with.prefetch = 3;
  Spool spool(with);
  const auto a = spool.open("a");
  const auto b = spool.open("b");
  for (std::size_t i = 0; i < 30; ++i) {
    spool.put(a, i, record_of(300'000, i));
    if (i % 4 != 0) spool.put(b, i, record_of(2000, 100 + i));
  }
  spool.sync();
  const auto before = spool.use().bytes_read;
  spool.prefetch({a, b}, 0, 30);
  for (std::size_t i = 0; i < 30; ++i) {
    EXPECT_TRUE(same(spool.get(a, i), record_of(300'000, i)));
    const auto other = spool.get(b, i);
    EXPECT_EQ(other.has_value(), i % 4 != 0);
    if (other) {
      EXPECT_TRUE(same(other, record_of(2000, 100 + i)));
    }
    spool.release(a, i);
  }
  // Each once.
  EXPECT_EQ(spool.use().bytes_read - before, 30u * 307'200 + 22u * 8192);
}

TEST_F(SpoolTest, AnAnnouncementMayBeBrokenOrReplaced) {
  SpoolOptions with = options();
  with.prefetch = 4;
  Spool spool(with);
  const auto lane = spool.open("a");
  for (std::size_t i = 0; i < 20; ++i) spool.put(lane, i, record_of(100'000, i));
  spool.sync();
  spool.prefetch({lane}, 0, 20);
  for (const std::size_t i : {5, 3, 19, 0, 1, 18}) EXPECT_TRUE(same(spool.get(lane, i), record_of(100'000, i)));
  spool.prefetch({lane}, 2, 6);
  spool.put(lane, 2, record_of(50, 77));
  spool.release(lane, 3);
  EXPECT_TRUE(same(spool.get(lane, 2), record_of(50, 77)));
  EXPECT_EQ(spool.get(lane, 3), std::nullopt);
  EXPECT_TRUE(same(spool.get(lane, 4), record_of(100'000, 4)));
  spool.prefetch({lane}, 6, 20);
  spool.close(lane);
  EXPECT_EQ(spool.damaged(), 0u);
}

TEST_F(SpoolTest, FilesArePrivate) {
  Spool spool(options());
  const auto lane = spool.open("a");
  spool.put(lane, 0, record_of(10, 1));
  spool.sync();
  struct stat info {};
  ASSERT_EQ(::stat(lane_path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(SpoolTest, RefusesNamesThatAreNoFileNames) {
  Spool spool(options());
  for (const char* name : {"", "../a", "a/b", "a.b", "a b"}) {
    expect_error([&] { spool.open(name); }, ErrorKind::internal, {"lane"});
  }
  expect_error([&] { spool.holds(3, 0); }, ErrorKind::internal, {"lane 3"});
}

TEST_F(SpoolTest, AutomaticAccessSaysWhatItMeasured) {
  Spool spool(options(Residency::disk, DiskAccess::automatic));
  EXPECT_EQ(spool.use().access_reason, "");
  const auto lane = spool.open("a");
  spool.put(lane, 0, record_of(100'000, 1));
  spool.sync();
  EXPECT_NE(spool.use().access, DiskAccess::automatic);
  for (const char* part : {"buffered", "direct", "io_uring"}) {
    EXPECT_NE(spool.use().access_reason.find(part), std::string::npos) << spool.use().access_reason;
  }
  EXPECT_TRUE(same(spool.get(lane, 0), record_of(100'000, 1)));
  EXPECT_EQ(files(), 1u);
}

TEST_F(SpoolTest, TheDestructorWritesWhatWasPut) {
  {
    Spool spool(options());
    const auto lane = spool.open("a");
    for (std::size_t i = 0; i < 50; ++i) spool.put(lane, i, record_of(100'000, i));
  }
  Spool spool(options());
  const auto lane = spool.open("a");
  for (std::size_t i = 0; i < 50; ++i) EXPECT_TRUE(same(spool.get(lane, i), record_of(100'000, i)));
}

// Random work on several threads, each with samples of its own, compared with what should be there.
TEST_F(SpoolTest, RandomWorkOnSeveralThreads) {
  for (const DiskAccess access : all_accesses()) {
    if (!works(access)) continue;
    SpoolOptions with = options(Residency::memory_then_disk, access);
    with.memory_bytes = 400'000;
    with.buffer_bytes = 1'000'000;
    with.prefetch = 3;
    Spool spool(with);
    const std::vector<Spool::Lane> lanes = {spool.open("a"), spool.open("b")};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(t);
        std::map<std::pair<Spool::Lane, std::size_t>, std::pair<std::size_t, std::uint64_t>> there;
        for (int step = 0; step < 400; ++step) {
          const Spool::Lane lane = lanes[random() % 2];
          const std::size_t sample = random() % 16 * 4 + t;
          const auto found = there.find({lane, sample});
          switch (random() % 8) {
            case 0:
            case 1:
            case 2: {
              const std::size_t size = random() % (random() % 4 == 0 ? 300'000 : 9000);
              const std::uint64_t seed = random();
              spool.put(lane, sample, record_of(size, seed));
              there[{lane, sample}] = {size, seed};
              break;
            }
            case 3:
              spool.release(lane, sample);
              there.erase({lane, sample});
              break;
            case 4:
              if (random() % 4 == 0) spool.prefetch(lanes, random() % 64, 64);
              break;
            case 5:
              if (random() % 8 == 0) spool.sync();
              break;
            default:
              if (found == there.end()) {
                EXPECT_EQ(spool.get(lane, sample), std::nullopt);
              } else {
                EXPECT_TRUE(same(spool.get(lane, sample), record_of(found->second.first, found->second.second)));
              }
          }
          EXPECT_EQ(spool.holds(lane, sample), there.contains({lane, sample}));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(spool.damaged(), 0u) << text_of(access);
    spool.close(lanes[0]);
    spool.close(lanes[1]);
  }
  EXPECT_EQ(files(), 0u);
}

// What waits for a disk that does not write: no more than the writer was given.

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

using Place = PrefetchOrder::Place;

// All places up to the limit, as "lane:sample".
std::vector<Place> rest(PrefetchOrder walk, std::size_t ahead) {
  std::vector<Place> out;
  while (const auto place = walk.next(ahead)) {
    out.push_back(*place);
    walk.advance();
  }
  return out;
}

TEST(PrefetchOrder, GoesSampleBySampleAndLaneByLane) {
  EXPECT_EQ(rest(PrefetchOrder({4, 2}, 5, 7), 9), (std::vector<Place>{{4, 5}, {2, 5}, {4, 6}, {2, 6}}));
  EXPECT_TRUE(rest(PrefetchOrder({}, 5, 7), 9).empty());
  EXPECT_TRUE(rest(PrefetchOrder({1}, 7, 7), 9).empty());
  EXPECT_TRUE(rest(PrefetchOrder(), 9).empty());
}

TEST(PrefetchOrder, GoesNoFurtherThanAhead) {
  PrefetchOrder walk({0, 1}, 0, 9);
  EXPECT_TRUE(rest(walk, 0).empty());
  EXPECT_EQ(rest(walk, 1), (std::vector<Place>{{0, 0}, {1, 0}}));
  walk.asked_for({0, 0});
  EXPECT_EQ(rest(walk, 1), (std::vector<Place>{{1, 0}, {0, 1}, {1, 1}}));
  EXPECT_TRUE(rest(walk, 0).empty());
  walk.asked_for({1, 0});
  EXPECT_EQ(rest(walk, 1), (std::vector<Place>{{0, 1}, {1, 1}}));
}

TEST(PrefetchOrder, SkipsWithWhatIsAskedForAndNeverGoesBack) {
  PrefetchOrder walk({0}, 0, 9);
  walk.asked_for({0, 4});
  EXPECT_EQ(rest(walk, 2), (std::vector<Place>{{0, 5}, {0, 6}}));
  walk.asked_for({0, 2});
  walk.asked_for({7, 8});   // another lane
  walk.asked_for({0, 20});  // not announced
  EXPECT_EQ(rest(walk, 2), (std::vector<Place>{{0, 5}, {0, 6}}));
  EXPECT_FALSE(walk.holds({0, 4}));
  EXPECT_TRUE(walk.holds({0, 5}));
  EXPECT_FALSE(walk.holds({0, 9}));
  EXPECT_FALSE(walk.holds({1, 6}));
}

}  // namespace
}  // namespace detent::store::test
