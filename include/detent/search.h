// One search over all formats: the front of size, latency and accuracy of a model, and the models that were asked for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/error.h"
#include "detent/options.h"
#include "detent/stage_report.h"

namespace detent {

using SearchOptions = Options;

/// A model that was written, run and measured as deployed.
struct SearchPoint {
  std::string name;                       // "mixed-3", or a format: "int8"
  bool single = false;                    // one format for all products that can have it
  std::vector<std::string> node_formats;  // as QuantizeOptions::node_formats
  std::string command;                    // that makes it alone, byte for byte
  double sqnr_db = 0;                     // of the worst output
  double error = 0;                       // sum of squared errors over that of squares: what sqnr_db says in decibels
  double expected_error = 0;              // by the errors of single products
  std::optional<double> value;            // of the metric or score that was asked for
  double seconds = 0;                     // of one sample, the median beside the other models
  double expected_seconds = 0;
  std::uint64_t bytes = 0;
  /// No other point is better in one of error, time and bytes, and no worse in the others: by 1 %, and by 10 % than a
  /// format alone.
  bool on_front = false;
  std::vector<std::string> chosen;  // "smallest", "fastest", "most accurate", "meets the limits", "on NAME"
  std::optional<std::filesystem::path> written;  // where a chosen model lies
};

/// The model that serves most requests on a machine of SearchOptions::machines within the limits.
struct ServingMachine {
  std::string machine;
  std::string model;              // SearchPoint::name
  double seconds = 0;             // expected of a request, by that machine's times of operators
  std::uint64_t instances = 0;    // of the model at a time: one for each thread, or as many as its memory holds
  double requests = 0;            // a second
  std::uint64_t peak_memory = 0;  // [bytes] of an instance, as measured here
  double price = 0;               // of an hour
  std::uint64_t needed = 0;       // of such machines, for all requests at the lowest price
};

/// The front of size, latency and accuracy.
struct SearchResult {
  std::vector<SearchPoint> points;       // the float model first; in Python the fastest first
  std::vector<ServingMachine> machines;  // that can serve within the limits, by price of a request
  std::size_t candidates = 0;            // measured pairs of a layer and a format
  std::uint64_t samples = 0;
  std::uint64_t inferences = 0;  // of the whole model, about
  bool out_of_time = false;      // points that were wanted are missing
  std::vector<std::string> notes;
  std::vector<StageReport> stages;
  std::uint64_t peak_memory = 0;  // [bytes]
  /// Of several processes that MPI started; of others than rank 0 the result tells nothing.
  int rank = 0;
  int ranks = 1;
};

/// Searches, and writes front.json, front.html and the chosen models. Where the limits cannot be met nothing is
/// written. Under mpirun each process takes a share of the work and rank 0 times and writes. Throws Error.
SearchResult search(const SearchOptions& options);

}  // namespace detent
