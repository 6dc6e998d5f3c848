#include "calibration/statistics_file.h"

#include <fmt/format.h>
#include <xxhash.h>
#include <protozero/pbf_builder.hpp>
#include <protozero/pbf_message.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "base/error.h"
#include "base/file.h"
#include "onnx/wire.h"

namespace detent::calibration {
namespace {

constexpr std::array<char, 8> kMagic{'d', 'e', 't', 'e', 'n', 't', '\x1a', 's'};
constexpr std::uint32_t kVersion = 1;

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t reserved = 0;
  std::uint64_t size = 0;      // of the message that follows
  std::uint64_t checksum = 0;  // XXH3-64 of it
};
static_assert(sizeof(Header) == 32 && std::endian::native == std::endian::little);

enum class File : protozero::pbf_tag_type {
  model_name = 1,
  fingerprints = 2,  // packed: model low, high, data low, high
  samples = 3,
  has_histograms = 4,
  has_votes = 5,
  tensor = 6,
};
enum class Tensor : protozero::pbf_tag_type {
  name = 1,
  minimum = 2,
  maximum = 3,
  count = 4,
  nan_count = 5,
  inf_count = 6,
  runs = 7,
  sum_of_minima = 8,
  sum_of_maxima = 9,
  row = 10,
  negative_row = 11,
  vote_8_bit = 12,
  vote_16_bit = 13,
};
enum class Row : protozero::pbf_tag_type { exponent = 1, counts = 2 };
enum class Vote : protozero::pbf_tag_type { exponent = 1, count = 2 };

// A field of another type is none that encode() writes, and is passed over as one of an unknown number is.
using protozero::tag_and_type;
constexpr auto kNumber = protozero::pbf_wire_type::varint;
constexpr auto kFloat = protozero::pbf_wire_type::fixed32;
constexpr auto kBytes = protozero::pbf_wire_type::length_delimited;

void put_sum(protozero::pbf_builder<Tensor>& out, Tensor field, const ExactSum& sum) {
  const auto limbs = sum.limbs();
  out.add_packed_sint64(field, limbs.begin(), limbs.end());
}

void put_votes(protozero::pbf_builder<Tensor>& out, Tensor field, const Votes& votes) {
  for (const auto& [exponent, count] : votes) {
    protozero::pbf_builder<Vote> vote(out, field);
    vote.add_sint32(Vote::exponent, exponent);
    vote.add_uint64(Vote::count, count);
  }
}

void put(protozero::pbf_builder<Tensor> out, const std::string& name, const Summary& s) {
  out.add_string(Tensor::name, name);
  if (s.has_values()) {
    out.add_float(Tensor::minimum, s.extremes.lowest());
    out.add_float(Tensor::maximum, s.extremes.highest());
  }
  out.add_uint64(Tensor::count, s.count);
  if (s.nan_count > 0) out.add_uint64(Tensor::nan_count, s.nan_count);
  if (s.inf_count > 0) out.add_uint64(Tensor::inf_count, s.inf_count);
  out.add_uint64(Tensor::runs, s.runs);
  put_sum(out, Tensor::sum_of_minima, s.sum_of_minima);
  put_sum(out, Tensor::sum_of_maxima, s.sum_of_maxima);
  for (const bool negative : {false, true}) {
    for (const auto& [exponent, counts] : s.histogram.rows(negative)) {
      protozero::pbf_builder<Row> row(out, negative ? Tensor::negative_row : Tensor::row);
      row.add_uint32(Row::exponent, static_cast<std::uint32_t>(exponent));
      row.add_packed_uint64(Row::counts, counts.begin(), counts.end());
    }
  }
  put_votes(out, Tensor::vote_8_bit, s.votes_8_bit);
  put_votes(out, Tensor::vote_16_bit, s.votes_16_bit);
}

ExactSum get_sum(protozero::pbf_message<Tensor>& in) {
  ExactSum::Limbs limbs{};
  const auto values = in.get_packed_sint64();
  if (static_cast<std::size_t>(std::distance(values.begin(), values.end())) != limbs.size())
    throw std::invalid_argument("a sum of a wrong length");
  std::copy(values.begin(), values.end(), limbs.begin());
  if (std::any_of(limbs.begin(), limbs.end() - 1, [](auto limb) { return limb >> 32 != 0; }))
    throw std::invalid_argument("a sum in a wrong form");
  return ExactSum(limbs);
}

void get_row(protozero::pbf_message<Row> in, Histogram::Rows& rows) {
  int exponent = 0;
  Histogram::Counts counts;
  while (in.next()) {
    switch (in.tag_and_type()) {
      case tag_and_type(Row::exponent, kNumber): exponent = static_cast<int>(std::min(in.get_uint32(), 1000U)); break;
      case tag_and_type(Row::counts, kBytes):
        for (const auto c : in.get_packed_uint64()) {
          if (counts.size() == Histogram::kFineBins) throw std::invalid_argument("a row that is too long");
          counts.push_back(c);
        }
        break;
      default: in.skip();
    }
  }
  if (!rows.try_emplace(exponent, std::move(counts)).second) throw std::invalid_argument("a row that comes twice");
}

void get_vote(protozero::pbf_message<Vote> in, Votes& votes) {
  constexpr int kFarthest = 300;
  int exponent = 0;
  std::uint64_t count = 0;
  while (in.next()) {
    switch (in.tag_and_type()) {
      case tag_and_type(Vote::exponent, kNumber): exponent = std::clamp(in.get_sint32(), -kFarthest, kFarthest); break;
      case tag_and_type(Vote::count, kNumber): count = in.get_uint64(); break;
      default: in.skip();
    }
  }
  votes[exponent] += count;
}

std::int32_t finite_key(float value) {
  const std::int32_t key = order_key(std::bit_cast<std::int32_t>(value));
  if (!KeyRange{key, key}.finite()) throw std::invalid_argument("a bound that is not finite");
  return key;
}

std::uint64_t total(const Votes& votes) {
  std::uint64_t sum = 0;
  for (const auto& [exponent, count] : votes) sum += count;
  return sum;
}

void check(const Summary& s) {
  constexpr const char* kContradict = "counts that contradict each other";
  if (s.nan_count > s.count || s.inf_count > s.count - s.nan_count) throw std::invalid_argument(kContradict);
  const std::uint64_t finite = s.count - s.nan_count - s.inf_count;
  if ((finite > 0) != s.has_values() || (finite > 0) != (s.runs > 0) || s.runs > finite)
    throw std::invalid_argument(kContradict);
  if (!s.histogram.empty() && s.histogram.total() != finite)
    throw std::invalid_argument("a histogram that does not add up");
  if (total(s.votes_8_bit) != total(s.votes_16_bit) || total(s.votes_8_bit) > s.runs)
    throw std::invalid_argument("votes that do not add up");
}

// Of all tensors and what is said of them.
void check(const Statistics& statistics) {
  for (const auto& [name, s] : statistics.tensors) {
    if (s.histogram.empty() == (statistics.has_histograms && s.has_values()))
      throw std::invalid_argument("a histogram that is missing, or was not asked for");
    if (s.votes_8_bit.empty() == (statistics.has_votes && s.has_values() && !s.all_zero()))
      throw std::invalid_argument("votes that are missing, or were not asked for");
  }
}

std::pair<std::string, Summary> get_tensor(protozero::pbf_message<Tensor> in) {
  std::string name;
  Summary s;
  Histogram::Rows rows, negative_rows;
  while (in.next()) {
    switch (in.tag_and_type()) {
      case tag_and_type(Tensor::name, kBytes): name = in.get_string(); break;
      case tag_and_type(Tensor::minimum, kFloat): s.extremes.min = finite_key(in.get_float()); break;
      case tag_and_type(Tensor::maximum, kFloat): s.extremes.max = finite_key(in.get_float()); break;
      case tag_and_type(Tensor::count, kNumber): s.count = in.get_uint64(); break;
      case tag_and_type(Tensor::nan_count, kNumber): s.nan_count = in.get_uint64(); break;
      case tag_and_type(Tensor::inf_count, kNumber): s.inf_count = in.get_uint64(); break;
      case tag_and_type(Tensor::runs, kNumber): s.runs = in.get_uint64(); break;
      case tag_and_type(Tensor::sum_of_minima, kBytes): s.sum_of_minima = get_sum(in); break;
      case tag_and_type(Tensor::sum_of_maxima, kBytes): s.sum_of_maxima = get_sum(in); break;
      case tag_and_type(Tensor::row, kBytes): get_row(in.get_message(), rows); break;
      case tag_and_type(Tensor::negative_row, kBytes): get_row(in.get_message(), negative_rows); break;
      case tag_and_type(Tensor::vote_8_bit, kBytes): get_vote(in.get_message(), s.votes_8_bit); break;
      case tag_and_type(Tensor::vote_16_bit, kBytes): get_vote(in.get_message(), s.votes_16_bit); break;
      default: in.skip();
    }
  }
  s.histogram = Histogram(std::move(rows), std::move(negative_rows));
  check(s);
  return {std::move(name), std::move(s)};
}

void get_fingerprints(protozero::pbf_message<File>& in, Statistics& statistics) {
  std::array<std::uint64_t, 4> words{};
  const auto given = in.get_packed_fixed64();
  if (static_cast<std::size_t>(std::distance(given.begin(), given.end())) != words.size())
    throw std::invalid_argument("fingerprints of a wrong length");
  std::copy(given.begin(), given.end(), words.begin());
  statistics.model = {words[0], words[1]};
  statistics.data = {words[2], words[3]};
}

Statistics parse(std::string_view message) {
  Statistics statistics;
  protozero::pbf_message<File> in(message.data(), message.size());
  while (in.next()) {
    switch (in.tag_and_type()) {
      case tag_and_type(File::model_name, kBytes): statistics.model_name = in.get_string(); break;
      case tag_and_type(File::fingerprints, kBytes): get_fingerprints(in, statistics); break;
      case tag_and_type(File::samples, kNumber): statistics.samples = in.get_uint64(); break;
      case tag_and_type(File::has_histograms, kNumber): statistics.has_histograms = in.get_bool(); break;
      case tag_and_type(File::has_votes, kNumber): statistics.has_votes = in.get_bool(); break;
      case tag_and_type(File::tensor, kBytes): {
        auto [name, summary] = get_tensor(in.get_message());
        if (!statistics.tensors.try_emplace(std::move(name), std::move(summary)).second)
          throw std::invalid_argument("a tensor that comes twice");
        break;
      }
      default: in.skip();
    }
  }
  check(statistics);
  return statistics;
}

// The message, once the header and the checksum are right.
std::string_view open_envelope(std::span<const std::byte> bytes, const std::string& where) {
  Header header;
  if (bytes.size() < sizeof header)
    throw bad_input(where + " is not a statistics file: it is too short", "see: detent calibrate");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic)
    throw bad_input(where + " is not a statistics file of detent", "make one with: detent calibrate");
  if (header.version != kVersion) {
    throw bad_input(
        fmt::format("{} has format version {}, this detent reads version {}", where, header.version, kVersion),
        "calibrate again, or use the detent that wrote it");
  }
  const auto message = bytes.subspan(sizeof header);
  if (header.reserved != 0 || header.size != message.size() ||
      XXH3_64bits(message.data(), message.size()) != header.checksum)
    throw bad_input(where + " is damaged: its header or checksum is wrong", "copy it again, or calibrate again");
  return {reinterpret_cast<const char*>(message.data()), message.size()};
}

}  // namespace

std::string encode(const Statistics& statistics) {
  std::string message;
  protozero::pbf_builder<File> out(message);
  out.add_string(File::model_name, statistics.model_name);
  const std::array<std::uint64_t, 4> words{statistics.model.low, statistics.model.high, statistics.data.low,
                                           statistics.data.high};
  out.add_packed_fixed64(File::fingerprints, words.begin(), words.end());
  out.add_uint64(File::samples, statistics.samples);
  out.add_bool(File::has_histograms, statistics.has_histograms);
  out.add_bool(File::has_votes, statistics.has_votes);
  for (const auto& [name, summary] : statistics.tensors)
    put(protozero::pbf_builder<Tensor>(out, File::tensor), name, summary);

  Header header;
  header.size = message.size();
  header.checksum = XXH3_64bits(message.data(), message.size());
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  return bytes.append(message);
}

Statistics decode(std::span<const std::byte> bytes, const std::string& where) {
  const std::string_view message = open_envelope(bytes, where);
  try {
    return parse(message);
  } catch (const protozero::exception& e) {
    throw bad_input(fmt::format("{} is damaged: {}", where, onnx::damage(e)), "calibrate again");
  } catch (const std::logic_error& e) {
    throw bad_input(fmt::format("{} is damaged: it holds {}", where, e.what()), "calibrate again");
  }
}

Statistics read_statistics(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path, "statistics");
  return decode(file->bytes(), fmt::format("statistics '{}'", path.string()));
}

void write_statistics(const Statistics& statistics, const std::filesystem::path& path) {
  AtomicFile file(path);
  const std::string bytes = encode(statistics);
  file.write(std::as_bytes(std::span(bytes)));
  file.commit();
}

void check_mergeable(const Statistics& all, const Statistics& more, const std::string& where) {
  if (all.model != more.model) {
    throw bad_input(fmt::format("{} belongs to model '{}' (fingerprint {}), not to '{}' ({})", where, more.model_name,
                                more.model.text(), all.model_name, all.model.text()),
                    "merge statistics of one model");
  }
  if (all.has_histograms != more.has_histograms || all.has_votes != more.has_votes)
    throw bad_input(where + " was made with other options: --no-histogram or --set most-common",
                    "calibrate all parts with the same options");
  const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (!std::equal(all.tensors.begin(), all.tensors.end(), more.tensors.begin(), more.tensors.end(), same_name))
    throw bad_input(where + " has other tensors than the files it is merged with",
                    "calibrate all parts with the same options");
}

}  // namespace detent::calibration
