// One search over all formats: the front of size, latency and accuracy of a model, and the models that were asked for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/config.h"
#include "detent/error.h"
#include "detent/progress.h"
#include "detent/resources.h"
#include "detent/samples.h"
#include "detent/stage_report.h"

namespace detent {

struct SearchOptions {
  /// A float model in one file.
  std::filesystem::path model;
  /// A folder that is made; it may be there if it is empty.
  std::filesystem::path output;
  std::optional<std::filesystem::path> calibration_data;
  /// Samples in memory instead of calibration_data; must outlive the run.
  SampleStream* samples = nullptr;
  /// How a command line gives them, as in "--images photos"; for SearchPoint::command.
  std::string samples_given;
  /// What the chosen models must meet, in any combination. Nothing asked for: the smallest, the fastest and the most
  /// accurate model that lie within 20 dB of the float one are chosen.
  std::optional<double> max_latency;      // seconds of one sample, as measured here
  std::optional<std::uint64_t> max_size;  // bytes, with the data file
  bool may_be_float = true;               // whether the float model may be the one that meets them
  /// Target, metric, command and score, as for quantize(); they judge whole models.
  AccuracyConfig accuracy;
  /// Formats that products may have; empty: fp32, int8, a16w8, int8-dynamic, q8, q4 and q2.
  std::vector<std::string> formats;
  /// Mixed models that are written and measured at the most, beside one of each format.
  std::size_t points = 8;
  std::optional<std::filesystem::path> kernel_table;
  /// A JSON file of machines to choose from: {"machines": [{"name": "small", "kernel-table": "small.json", "threads":
  /// 4, "memory": "8GiB", "price": 0.17}]}. The table, by its path from that file, has the times of the model's
  /// operators there, as a search on that machine writes them. Each thread computes one request at a time; the price is
  /// of an hour. Then max_latency is the limit of those machines, and latencies here are of one thread.
  std::optional<std::filesystem::path> machines;
  /// That the machines have to serve together, each second.
  std::optional<double> requests;
  std::size_t max_samples = 0;  // 0: all
  std::int64_t batch_size = 0;  // rows per run; 0: as the files have them
  /// Inputs that are one number in every sample, beside those that the samples hold: "sr=16000".
  std::vector<std::string> input_values;
  int threads = 0;  // of the runtime; 0: one per core
  std::optional<std::filesystem::path> runtime;
  /// At the end of time_limit the best of what is measured by then is given.
  Resources resources;
  Progress progress;
  std::stop_token stop;
};

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
  std::uint64_t needed = 0;       // of such machines, of those that serve all requests for the least
};

/// The front of size, latency and accuracy.
struct SearchResult {
  std::vector<SearchPoint> points;       // the float model first; in Python the fastest first
  std::vector<ServingMachine> machines;  // that can serve within the limits, by price of a request
  std::size_t candidates = 0;            // measured, of products and formats
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
