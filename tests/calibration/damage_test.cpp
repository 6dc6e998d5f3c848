// Statistics whose envelope is right and whose message is not: refused, or usable without harm.
#include <functional>
#include <protozero/pbf_writer.hpp>

#include "calibration/file_support.h"

namespace detent::calibration {
namespace {

using namespace test;  // NOLINT

TEST(Message, RefusesCountsThatContradictEachOther) {
  const auto refuse = [](const char* says, const std::function<void(Summary&)>& change) {
    Statistics s;
    s.has_histograms = s.has_votes = true;
    s.tensors["t"] = summary_of({1.0F, -2.5F, 3.0F});
    EXPECT_NO_THROW(decode(bytes_of(encode(s)), kWhere));
    change(s.tensors["t"]);
    SCOPED_TRACE(says);
    expect_refused(encode(s), says);
  };
  refuse("histogram that does not add up", [](Summary& s) { ++s.count; });
  refuse("histogram that does not add up", [](Summary& s) { ++s.nan_count; });
  refuse("histogram that does not add up", [](Summary& s) { s.histogram = summary_of({1.0F}).histogram; });
  refuse("histogram that is missing", [](Summary& s) { s.histogram = Histogram(); });
  refuse("contradict", [](Summary& s) { s.runs = 0; });
  refuse("contradict", [](Summary& s) { s.runs = 4; });
  refuse("contradict", [](Summary& s) { s.count = 0; });
  refuse("contradict", [](Summary& s) { s.inf_count = 3; });
  refuse("contradict", [](Summary& s) { s.nan_count = ~std::uint64_t{0} - 1; });
  refuse("contradict", [](Summary& s) { s.extremes = KeyRange(); });
  refuse("contradict", [](Summary& s) { std::swap(s.extremes.min, s.extremes.max); });
  refuse("votes that do not add up", [](Summary& s) { s.votes_8_bit[3] += 7; });
  refuse("votes that do not add up", [](Summary& s) { s.votes_16_bit.clear(); });
  refuse("votes that are missing", [](Summary& s) {
    s.votes_8_bit.clear();
    s.votes_16_bit.clear();
  });
  refuse("votes that do not add up", [](Summary& s) {
    s.votes_8_bit[3] += 7;
    s.votes_16_bit[3] += 7;
  });
  refuse("not finite", [](Summary& s) { s.extremes.max = order_key(0x7f800000); });
  refuse("not finite", [](Summary& s) { s.extremes.min = order_key(static_cast<std::int32_t>(0xffc00000U)); });
}

TEST(Message, PassesOverFieldsOfAnotherType) {
  std::string message;
  protozero::pbf_writer file(message);
  file.add_string(4, "flags are numbers");
  file.add_uint64(1, 5);  // a name
  file.add_fixed32(3, 7);
  const Statistics read = decode(bytes_of(wrap(message)), kWhere);
  EXPECT_FALSE(read.has_histograms);
  EXPECT_EQ(read.model_name, "");
  EXPECT_EQ(read.samples, 0U);
}

TEST(Message, RefusesPartsThatItsFlagsDeny) {
  Statistics s;
  s.tensors["t"] = summary_of({1.0F, 2.0F});
  s.has_votes = true;
  expect_refused(encode(s), "histogram");
  s.has_histograms = true;
  s.has_votes = false;
  expect_refused(encode(s), "votes");
}

// A tensor by hand: a minimum, maximum, count and run, and what `more` adds.
std::string tensor_with(const std::function<void(protozero::pbf_writer&)>& more, std::uint64_t count = 1) {
  std::string tensor, message;
  protozero::pbf_writer t(tensor);
  t.add_string(1, "t");
  t.add_float(2, 1.0F);
  t.add_float(3, 1.0F);
  t.add_uint64(4, count);
  t.add_uint64(7, 1);
  more(t);
  protozero::pbf_writer file(message);
  file.add_bool(4, true);
  file.add_message(6, tensor);
  return message;
}
void put_row(protozero::pbf_writer& tensor, std::uint32_t exponent, const std::vector<std::uint64_t>& counts) {
  protozero::pbf_writer row(tensor, 10);
  row.add_uint32(1, exponent);
  row.add_packed_uint64(2, counts.begin(), counts.end());
}
void put_limbs(protozero::pbf_writer& tensor, const std::vector<std::int64_t>& limbs) {
  tensor.add_packed_sint64(8, limbs.begin(), limbs.end());
}

TEST(Message, RefusesRowsAndSumsThatNoneWrites) {
  std::vector<std::uint64_t> counts(256);
  counts[0] = 1;
  EXPECT_NO_THROW(decode(bytes_of(wrap(tensor_with([&](auto& t) { put_row(t, 127, counts); }))), kWhere));
  const auto refuse = [](const char* says, const auto& more, std::uint64_t count = 1) {
    expect_refused(wrap(tensor_with(more, count)), says);
  };
  refuse("an empty row", [](auto& t) { put_row(t, 127, std::vector<std::uint64_t>(256)); });
  refuse("exponent or size", [&](auto& t) { put_row(t, 255, counts); });
  refuse("exponent or size", [&](auto& t) { put_row(t, 0xffffffff, counts); });
  refuse("exponent or size", [](auto& t) { put_row(t, 127, {1, 0, 0, 0}); });
  refuse("exponent or size", [](auto& t) { put_row(t, 127, {}); });
  refuse("too long", [](auto& t) { put_row(t, 127, std::vector<std::uint64_t>(300, 1)); });
  refuse(
      "comes twice",
      [&](auto& t) {
        put_row(t, 127, counts);
        put_row(t, 127, counts);
      },
      2);
  refuse(
      "exponent or size",
      [&](auto& t) {
        put_row(t, 127, counts);
        put_row(t, 120, counts);  // 7 octaves down there are 64
      },
      2);
  const auto with_row = [&](const std::vector<std::int64_t>& limbs) {
    return [=](auto& t) {
      put_row(t, 127, counts);
      put_limbs(t, limbs);
    };
  };
  EXPECT_NO_THROW(decode(bytes_of(wrap(tensor_with(with_row({0, 0, 0, 0, 1 << 21, 0, 0, 0, -1})))), kWhere));
  refuse("wrong length", with_row({1}));
  refuse("wrong length", with_row(std::vector<std::int64_t>(10)));
  refuse("a sum", with_row({std::int64_t{1} << 32, 0, 0, 0, 0, 0, 0, 0, 0}));
  refuse("a sum", with_row({0, 0, 0, -1, 0, 0, 0, 0, 0}));
  std::string message;
  protozero::pbf_writer file(message);
  const std::vector<std::uint64_t> words(5);
  file.add_packed_fixed64(2, words.begin(), words.end());
  expect_refused(wrap(message), "fingerprint");
}

// Nothing but bad_input may come of it. What is accepted must be good for every method and for merging.
bool survives(const std::string& bytes) {
  const auto read = [&] { return decode(bytes_of(bytes), kWhere); };
  try {
    Statistics s = read();
    s.merge(read());
    EXPECT_FALSE(encode(s).empty());
    for (const auto& [name, summary] : s.tensors) {
      if (!summary.has_values()) continue;
      std::vector<Range> ranges{minmax_range(summary, false), most_common_power_of_two_range(summary.votes_8_bit, 8)};
      if (!summary.histogram.empty()) {
        ranges.push_back(percentile_range(summary, 99.9, false));
        ranges.push_back(percentile_range(summary, 99.9, true));
        ranges.push_back(mse_power_of_two_range(summary, int8_power_of_two()));
        ranges.push_back(entropy_range(summary, 64, 8));
      }
      for (const auto& range : ranges) {
        EXPECT_TRUE(std::isfinite(range.min) && std::isfinite(range.max)) << range.min << " to " << range.max;
        EXPECT_LE(range.min, range.max);
      }
    }
    return true;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::bad_input) << e.what();
    return false;
  }
}

class Damage : public ::testing::Test {
 protected:
  Damage() {
    Statistics s;
    s.tensors["a"] = summary_of_runs({heavy_tailed(30, 1), normal(30, 2)});
    s.tensors["b"] = summary_of_runs({rectified(20, 3), Floats(3, 0.0F)});
    s.tensors["c"] = summary_of({kLargest, -kLargest, kDenormal});
    s.tensors["d"] = Summary();
    s.model_name = "m.onnx";
    s.samples = 2;
    s.has_histograms = s.has_votes = true;
    message_ = encode(s).substr(kHeader);
  }

  std::string message_;
};

TEST_F(Damage, NoneIsAccepted) { EXPECT_TRUE(survives(wrap(message_))); }

TEST_F(Damage, OfTensorsThatComeTwice) {
  expect_refused(wrap(message_ + message_), "a tensor that comes twice");
  expect_refused(wrap(message_ + "\x32\x7f"), "is damaged");  // a tensor of 127 bytes that are not there
}

TEST_F(Damage, OfSingleBytes) {
  std::size_t refused = 0;
  for (std::size_t at = 0; at < message_.size(); ++at) {
    for (const int change : {0x01, 0x10, 0x80}) {
      std::string bad = message_;
      bad[at] = static_cast<char>(bad[at] ^ change);
      refused += survives(wrap(bad)) ? 0 : 1;
    }
  }
  EXPECT_GT(refused, message_.size()) << "at least a third is found out by what the message says";
}

TEST_F(Damage, ByCuttingAndRepeating) {
  std::mt19937 random(4);
  for (std::size_t size = 0; size < message_.size(); size += 3) survives(wrap(message_.substr(0, size)));
  for (int round = 0; round < 500; ++round) {
    const std::size_t from = random() % message_.size();
    const std::size_t length = random() % 60;
    std::string bad = message_;
    survives(wrap(bad.insert(random() % bad.size(), message_.substr(from, length))));
    bad = message_;
    survives(wrap(bad.erase(from, length)));
  }
}

TEST_F(Damage, OfManyBytes) {
  std::mt19937 random(5);
  for (int round = 0; round < 1500; ++round) {
    std::string bad = message_;
    for (auto changes = random() % 12 + 1; changes > 0; --changes)
      bad[random() % bad.size()] = static_cast<char>(random() % 4 == 0 ? 0xff : random());
    survives(wrap(bad));
  }
}

}  // namespace
}  // namespace detent::calibration
