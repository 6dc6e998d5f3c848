// Records read into a device that is the host, by cuFile (a made-up one) and through pinned buffers.
#include "cuda/streamed.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "detent/error.h"
#include "store/support.h"

namespace detent::cuda {
namespace {

namespace fs = std::filesystem;
using store::test::record_of;

class RecordReaderTest : public testing::Test {
 protected:
  RecordReaderTest() : spool_(options()) {
    places_ = {FAKE_CUFILE_LIBRARY, FAKE_CUDA, folder_.path() / "modules", std::chrono::minutes(1)};
    std::ofstream(places_.modules) << "nvidia_fs 323584 0 - Live 0x0\n";
    const auto lane = spool_.open("lane");
    for (std::size_t i = 0; i < 3; ++i) {
      expected_.push_back(record_of((std::size_t{3 + 20 * i} << 20) + 1000 * i, i));
      spool_.put(lane, i, expected_.back());
    }
    spool_.sync();
    for (std::size_t i = 0; i < 3; ++i) resting_.push_back(spool_.resting(lane, i).value());
  }
  ~RecordReaderTest() override { ::unsetenv("FAKE_CUFILE"); }

  store::SpoolOptions options() const {
    store::SpoolOptions options;
    options.directory = folder_.path();
    options.residency = store::Residency::disk;
    return options;
  }

  void expect_right(RecordReader& reader) {
    for (const std::size_t i : {0U, 2U, 1U, 1U}) {
      std::vector<std::byte> to(resting_[i].size);
      reader.read(resting_[i], to.data());
      for (std::size_t a = 0; a < expected_[i].size(); ++a) {
        const auto& bytes = expected_[i][a].bytes;
        EXPECT_EQ(std::memcmp(to.data() + resting_[i].parts[a].begin, bytes.data(), bytes.size()), 0);
      }
    }
  }

  TempDir folder_{fs::current_path()};
  Device device_{0, std::uint64_t{256} << 20};
  shim::CuFilePlaces places_;
  store::Spool spool_;
  std::vector<store::Record> expected_;
  std::vector<store::RecordOnDisk> resting_;
};

TEST_F(RecordReaderTest, ReadsThroughPinnedBuffers) {
  RecordReader reader(device_, GdsMode::off, folder_.path(), places_);
  EXPECT_FALSE(reader.route().direct_storage);
  expect_right(reader);
  EXPECT_NE(reader.note().find("cuda:0 read spooled samples by pinned buffers"), std::string::npos) << reader.note();
}

TEST_F(RecordReaderTest, ReadsPastTheHost) {
  RecordReader reader(device_, GdsMode::on, folder_.path(), places_);
  EXPECT_TRUE(reader.route().direct_storage);
  expect_right(reader);
}

TEST_F(RecordReaderTest, ChoosesByMeasuring) {
  RecordReader reader(device_, GdsMode::automatic, folder_.path(), places_);
  expect_right(reader);
  EXPECT_NE(reader.note().find("GB/s, pinned buffers filled by"), std::string::npos) << reader.note();
  EXPECT_EQ(device_.memory().used(), 0U) << "what was measured with is given back";
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_FALSE(entry.path().filename().string().starts_with("device-probe")) << entry.path();
}

TEST_F(RecordReaderTest, SaysWhyNotPastTheHost) {
  ::setenv("FAKE_CUFILE", "refuses", 1);
  try {
    RecordReader(device_, GdsMode::on, folder_.path(), places_);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::device);
    EXPECT_NE(std::string(e.what()).find("does not take files of this file system"), std::string::npos) << e.what();
  }
  RecordReader reader(device_, GdsMode::automatic, folder_.path(), places_);
  EXPECT_FALSE(reader.route().direct_storage);
  EXPECT_NE(reader.note().find("no GPUDirect Storage"), std::string::npos) << reader.note();
  expect_right(reader);
}

}  // namespace
}  // namespace detent::cuda
