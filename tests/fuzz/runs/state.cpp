#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <stop_token>
#include <string_view>
#include <thread>

#include "base/json.h"
#include "calibration/methods.h"
#include "calibration/statistics_file.h"
#include "fuzz/fuzz.h"
#include "fuzz/kinds.h"
#include "fuzz/runs/sealed.h"
#include "mpi/peer.h"
#include "pipeline/search_points.h"
#include "remedies/trials.h"
#include "run/collect.h"
#include "run/files/model_folder.h"
#include "run/files/run_directory.h"
#include "shim/shared_work.h"
#include "solve/sweep/solved_layers.h"
#include "solve/sweep/weight_solving.h"
#include "speed/kernels.h"

namespace detent::fuzz {
namespace {

// What an interrupted run left in its directory, and files of settings beside models: any of them may be damaged, or
// not what this run wrote.

namespace fs = std::filesystem;

/// A run that is to be resumed where there is this run.json.
void read_run(Bytes identity) {
  const fs::path work = fresh_folder("work");
  const fs::path directory = fresh_folder("work/detent-run");
  fs::permissions(directory, fs::perms::owner_all);
  fs::permissions(put("work/detent-run/run.json", identity), fs::perms::owner_read | fs::perms::owner_write);
  const nlohmann::json wanted{{"output", "out.onnx"}, {"rank", 0}, {"model", "m"}, {"histograms", true}};
  auto ranks = test::beside_peer(1, {});
  const auto opened = [&](bool resume, shim::Ranks* among) {
    return try_to([&] {
      Resources resources;
      resources.work_dir = work;
      resources.resume = resume;
      resources.ranks = among;
      run::RunDirectory run(resources, wanted);
      require(fs::is_directory(run.path()), "a run has a directory");
      run.finish();
    });
  };
  {
    // Of a run that is still going on.
    const UniqueFd held(::open((directory / "run.json").c_str(), O_RDWR | O_CLOEXEC));
    require(::flock(held.get(), LOCK_EX | LOCK_NB) == 0, "nobody else holds it");
    opened(true, nullptr);
    opened(false, nullptr);
    require(fs::is_regular_file(directory / "run.json"), "what another process uses stays");
  }
  for (const bool resume : {false, true}) opened(resume, nullptr);
  opened(true, &ranks);
}

void read_progress(Parts parts) {
  const fs::path directory = fresh_folder("progress");
  const Bytes message = parts.piece();
  put("progress/statistics-1", message);
  put("progress/statistics-2", as_byte_span(sealed(as_text(message))));
  const Bytes text = parts.rest();
  put("progress/progress.json", text);
  run::Checkpoints checkpoints(directory, 0);
  try_to([&] { checkpoints.load(); });
  if (const auto json = parse_json(as_text(text)); json && json->is_object())
    put("progress/progress.json", as_byte_span(sealed_json_text(*json)));
  try_to([&] {
    const auto progressed = checkpoints.load();
    require(progressed.has_value(), "there is progress where there is a file");
  });
  try_to([&] { checkpoints.save({}); });
}

void read_solved(Parts parts) {
  const fs::path directory = fresh_folder("solved");
  const std::string text(as_text(parts.piece()));
  const Bytes data = parts.rest();
  put("solved/solved-1", as_byte_span(solved_file(text, data)));
  const auto json = parse_json(text);
  const auto listed = json && json->is_object() ? json->value("layers", nlohmann::json()) : nlohmann::json();
  try_to([&] {
    const solve::SolvedLayers solved(directory);
    const auto layers = solved.load(1, listed.size());
    if (!layers) {
      require(!try_to([&] { solved.load_saved(1, listed.size()); }),
              "what is damaged ends a run that has just written it");
      return;
    }
    for (const auto& layer : *layers) {
      for (const auto* part : {&layer.integers, &layer.bias}) {
        std::size_t seen = 0;
        part->write_to([&](Bytes bytes) { seen += bytes.size(); });
        require(seen == part->size() && seen <= data.size(), "a part lies in the file");
      }
    }
  });
}

/// What is saved comes back, whatever it is.
void save_and_read(Parts parts) {
  const fs::path directory = fresh_folder("saved");
  const auto vector_of = [](Bytes bytes) { return std::vector<std::byte>(bytes.begin(), bytes.end()); };
  std::vector<solve::SolvedLayer> layers(1 + parts.byte() % 3);
  for (auto& layer : layers) {
    layer.integers = vector_of(parts.piece());
    layer.bias = vector_of(parts.piece());
    parts.byte();  // so that the corpus reads as before
  }
  const solve::SolvedLayers solved(directory);
  solved.save(2, layers);
  const auto found = solved.load(2, layers.size());
  require(found && found->size() == layers.size(), "saved layers are found");
  for (std::size_t i = 0; i < layers.size(); ++i)
    require(std::ranges::equal((*found)[i].integers.bytes(), layers[i].integers), "a saved layer comes back");
  quantization::BlockTensor shape;
  shape.rows = parts.byte() % 40;
  shape.columns = 1 + parts.byte() % 8;
  solve::BlockWriter writer(directory / "blocks", shape);
  writer.add(quantization::make_blocks(shape.rows, shape.columns, shape.format));
  writer.finish({"nearest", 0.5});
  const solve::StoredBlocks stored(directory / "blocks", shape);
  require(stored.verdict().method == "nearest", "saved blocks come back");
  const std::vector<float> columns(static_cast<std::size_t>(std::max<std::int64_t>(1, shape.rows)), 1.0F);
  require(stored.solver()(columns, 0).columns == 1, "a saved column comes back");
  const Bytes rest = parts.rest();
  solve::LayerState state(directory / "layer", 0);
  const Bytes both[] = {rest, rest};
  state.save(both);
  require(state.is_due() && state.load().bytes.size() == 2 * rest.size(), "a saved state comes back");
}

void read_blocks(Parts parts) {
  quantization::BlockTensor shape;
  shape.rows = parts.byte() % 40;
  shape.columns = parts.byte() % 8;
  shape.format.bits = 4;
  shape.format.block = parts.byte() % 2 == 0 ? 16 : 0;
  fresh_folder("blocks");
  const Bytes content = parts.rest();
  const fs::path file = put("blocks/solved", as_byte_span(sealed_file(std::string(as_text(content)))));
  try_to([&] {
    const solve::StoredBlocks blocks(file, shape);
    blocks.columns(0, shape.columns);
  });
}

void read_layer_state(Parts parts) {
  const bool sealed = parts.byte() % 2 == 1;
  const Bytes rest = parts.rest();
  fresh_folder("state");
  const std::string text(as_text(rest));
  const fs::path file = put("state/layer", as_byte_span(sealed ? sealed_file(text) : text));
  try_to([&] {
    const auto stored = solve::LayerState(file, 1).load();
    require(!sealed || stored.bytes.size() == rest.size(), "a state with its checksum is read");
  });
}

/// Another process holds the table, or it cannot be written.
void await_table(const fs::path& file) {
  const auto saved = [](const fs::path& path, const std::stop_token& stop) {
    return try_to([&] {
      speed::KernelTable table(path);
      table.add("Conv", {});
      table.save(stop);
    });
  };
  std::stop_source stopped;
  const UniqueFd held(::open(file.c_str(), O_RDWR | O_CLOEXEC));
  require(::flock(held.get(), LOCK_EX | LOCK_NB) == 0, "nobody else holds it");
  std::jthread stopping([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stopped.request_stop();
  });
  require(!saved(file, stopped.get_token()), "a table that is held is not written");
  require(!saved(fresh_folder("kernels/folder"), {}), "a folder is no table");
  fs::create_symlink(file, file.parent_path() / "link");
  require(!saved(file.parent_path() / "link", {}), "what a link leads to is not replaced");
  require(!saved(file.parent_path() / std::string(300, 'k'), {}), "no file has so long a name");
  fs::create_symlink("nowhere", file.parent_path() / "lost");
  require(!saved(file.parent_path() / "lost" / "table.json", {}), "no folder is made through a link");
  speed::KernelTable changed(file.parent_path() / "changed");
  put("kernels/changed", as_byte_span("{}"));
  require(!try_to([&] { changed.save({}); }), "what became something else is not replaced");
  std::map<const char*, std::optional<std::string>> before;
  for (const char* variable : {"HOME", "XDG_CACHE_HOME"}) {
    const char* const value = std::getenv(variable);
    before[variable] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
    ::setenv(variable, "not absolute", 1);
  }
  require(!speed::default_kernel_table("1.0"), "there is no table without a place for it");
  for (const auto& [variable, value] : before) value ? ::setenv(variable, value->c_str(), 1) : ::unsetenv(variable);
}

void read_kernels(Parts parts) {
  fresh_folder("kernels");
  const bool is_empty = parts.empty();
  const fs::path file = put("kernels/table.json", parts.rest());
  try_to([&] {
    speed::KernelTable table(file);
    table.find("Conv");
    table.add("Conv", {});
    table.add("MatMul", {1e-3, 1e-4, 1e-5, 1e-5, 0, 0});
    table.save({});
    speed::KernelTable(file).find("Conv");
    speed::default_kernel_table("1.0");
  });
  if (is_empty) await_table(file);
}

std::string field(int number, std::string_view payload) {
  std::string bytes{static_cast<char>(number << 3 | 2), static_cast<char>(payload.size())};
  return bytes.append(payload);
}

/// A model of an input that is a cache, and of a weight in a file beside it.
std::string model_with_cache() {
  const std::string weight = std::string("\x08\x01\x10\x01", 4) + field(8, "w") +
                             field(13, field(1, "location") + field(2, "model.onnx_data")) + "\x70\x01";
  const std::string type = field(2, field(1, "\x08\x0a"));
  const std::string graph = field(5, weight) + field(11, field(1, "past_key_values.0.key") + type);
  return "\x08\x08" + field(7, graph) + field(8, "\x10\x11");
}

/// Results that the folder of a model is not written to.
void refuse_places(const fs::path& root) {
  const auto refused = [](QuantizeOptions options) {
    require(!try_to([&] { run::FolderResult(options, {{}}); }), "what is no place for a folder is refused");
  };
  QuantizeOptions options;
  options.model = root;
  options.output = folder() / "result.onnx";
  refused(options);
  options.family = {"fp16"};
  refused(options);
  options.output = root / "result";
  refused(options);
}

// A name that is not UTF-8 stands in no config.json. transformers.js has no caches of integers.
void write_transformers(const fs::path& root) {
  QuantizeOptions options;
  options.model = root;
  options.output = fresh_folder("written") / "result";
  std::ofstream(root / "onnx/\xff.onnx") << "model";
  try_to([&] { run::FolderResult(options, {{}}); });
  fs::remove(root / "onnx/\xff.onnx");
  options.kv_cache.type = KvCacheType::int8;
  try_to([&] { run::FolderResult(options, {{}}); });
  try_to([&] {
    options.model = run::model_file(root);
    options.kv_cache = {};
    options.family = {"fp16"};
    run::FolderResult(options, {{"fp16", "_fp16"}});
  });
}

/// What goes with a model is copied, but nothing from elsewhere.
void write_folder(const fs::path& root, bool two, bool with_link, bool with_data) {
  constexpr std::string_view kEmptyGraph("\x08\x08\x3a\x00\x42\x02\x10\x11", 8);
  const auto model = with_data ? model_with_cache() : std::string(kEmptyGraph);
  const auto write_to = [&](const fs::path& path) {
    std::ofstream(path, std::ios::binary) << model;
    if (with_data) std::ofstream(path.parent_path() / "model.onnx_data", std::ios::binary) << "data";
  };
  const auto secret = fresh_folder("elsewhere") / "secret";
  put("elsewhere/secret", as_byte_span("PRIVATE"));
  if (with_link) fs::create_symlink(secret, root / "README.md");
  const fs::path target = fresh_folder("written") / "result";
  try_to([&] {
    write_to(run::model_file(root));
    QuantizeOptions options;
    options.model = root;
    options.output = target;
    std::vector<run::Variant> variants{{}};
    if (two) variants = {{"fp16", "_fp16"}, {"q4", "_q4"}};
    run::FolderResult result(options, variants);
    require(!with_link, "a link that leads outside is refused");
    for (std::size_t v = 0; v < variants.size(); ++v) write_to(result.options(v).output);
    std::vector<std::string> notes;
    result.finish(notes);
  });
  if (with_link) require(!fs::exists(target), "nothing is left of what was refused");
}

// Bits of `form`: no usual model; one of another name; two of them; what a download leaves; two models are written; the
// model has a cache and data, and stands where transformers.js has it.
void read_folder(Parts parts) {
  constexpr unsigned kIsTransformers = 1, kUnusual = 2, kOne = 4, kSecond = 8, kMore = 16, kTwoWritten = 32,
                     kHasCache = 64;
  const unsigned form = parts.byte();
  const auto is = [form](unsigned bit) { return (form & bit) != 0; };
  const fs::path root = fresh_folder("model");
  for (const char* file : {"model/model.onnx", "model/onnx/decoder.onnx"}) {
    if (!is(kUnusual)) put(file, {});
  }
  if (is(kOne)) put("model/a.onnx", {});
  if (is(kSecond)) put("model/b.onnx", {});
  for (const char* file :
       {"model/model.onnx_data", "model/model_q4.onnx", "model/model_q4.onnx_data_1", "model/.cache/x"}) {
    if (is(kMore)) put(file, {});
  }
  if (is(kHasCache)) put("model/onnx/model.onnx", {});
  put(is(kIsTransformers) ? "model/config.json" : "model/genai_config.json", parts.rest());
  try_to([&] {
    const auto found = run::read_model_folder(root);
    require(fs::is_regular_file(root / found.model), "the model is a file of the folder");
    require(!found.model.is_absolute() && *found.model.begin() != "..", "the model lies in the folder");
  });
  std::vector<run::WrittenModel> written{
      {.file = "decoder_q4.onnx", .dtype = "q4", .has_data = true, .half_cache = true}};
  if (is(kTwoWritten))
    written.push_back({.file = "decoder.onnx", .dtype = "fp32", .has_data = false, .half_cache = false});
  try_to([&] {
    run::correct_transformers_config(root / "config.json", written, {"other.onnx"});
    run::correct_transformers_config(root / "config.json", written, {"other.onnx"});
  });
  write_folder(root, is(kTwoWritten), is(kMore), is(kHasCache));
  if (!is(kHasCache)) return;
  write_transformers(root);
  refuse_places(root);
}

void run_state(Bytes input) {
  Parts parts(input);
  switch (parts.byte() % 8) {
    case 0: return read_run(parts.rest());
    case 1: return read_progress(parts);
    case 2: return read_solved(parts);
    case 3: return read_blocks(parts);
    case 4: return read_layer_state(parts);
    case 5: return read_kernels(parts);
    case 6: return save_and_read(parts);
    default: return read_folder(parts);
  }
}

const Registered state_target{{"state", run_state, {}, 0, 20}};

// Statistics files: what is read is consistent, writes back as the same bytes, merges, and every method finds a range.

using calibration::Statistics;
using calibration::Summary;

calibration::Grid grid_of(const calibration::Range& range) {
  const double step = std::max(1e-30, (static_cast<double>(range.max) - range.min) / 255);
  return {step, range.min, range.max};
}

void find_ranges(const std::string& name, const Summary& summary) {
  if (!summary.has_values()) return;  // nobody asks for its range
  const QuantConfig format = preset_config("plain");
  MethodConfig config;
  const calibration::Quantizer quantizer = grid_of;
  for (const auto* method : calibration::all_methods()) {
    config.method = method->id;
    try_to([&] {
      const auto range = calibration::find_range({name, summary, config, format, quantizer});
      require(range.min <= range.max, "a range is not empty");
    });
  }
  calibration::minmax_range(summary, true);
  if (!summary.histogram.empty()) calibration::best_power_of_two(summary, 8);
}

void check_others(const Statistics& statistics) {
  std::array<Statistics, 4> others{statistics, statistics, statistics, statistics};
  others[0].model.low ^= 1;
  others[1].has_histograms = !statistics.has_histograms;
  others[2].has_votes = !statistics.has_votes;
  others[3].tensors["\n"];
  if (statistics.tensors.contains("\n")) return;
  for (const Statistics& other : others)
    require(!try_to([&] { calibration::check_mergeable(statistics, other, "'z'"); }), "other statistics are refused");
}

void use(Bytes file) {
  try_to([&] {
    const Statistics statistics = calibration::decode(file, "'x'");
    const std::string once = calibration::encode(statistics);
    Statistics again;
    require(try_to([&] { again = calibration::decode(as_byte_span(once), "'y'"); }), "what was written can be read");
    require(calibration::encode(again) == once, "statistics read back as they were written");
    for (const auto& [name, summary] : statistics.tensors) find_ranges(name, summary);
    check_others(statistics);
    calibration::check_mergeable(statistics, again, "'y'");
    again.merge(statistics);
    calibration::encode(again);
  });
}

void run_statistics(Bytes input) {
  use(input);
  const std::string file = sealed(as_text(input));
  use(as_byte_span(file));
}

const Registered statistics_target{{"statistics", run_statistics, {&kStatistics}}};

// What other ranks send: whatever it is, a rank takes it, or says that it is no message of this program.

std::vector<std::string> messages_of(Parts& parts) {
  std::vector<std::string> messages;
  while (!parts.empty()) messages.push_back(parts.text());
  return messages;
}

void take_values(int rank, const std::vector<std::string>& messages) {
  std::vector<double> sizes;
  for (const auto& message : messages) sizes.push_back(static_cast<double>(message.size()));
  require(shim::owners_of(sizes, 2).size() == sizes.size(), "each item has an owner");
  for (const auto& message : messages) {
    try_to([&] {
      const auto share = pipeline::read_share(1, as_byte_span(message), std::vector<SearchPoint>(1));
      require(share.attempts.size() == (share.cut_off ? 0U : 1U), "each model that was asked for has figures");
    });
  }
  auto ranks = test::beside_peer(rank, messages);
  try_to([&] {
    pipeline::broadcast_points(&ranks, {}, {});
    shim::any_of(&ranks, false);
    shim::broadcast_names(&ranks, {"a", ""});
    shim::broadcast_value(&ranks, std::uint64_t{1});
    const auto all = shim::all_gather(&ranks, std::vector<std::byte>(3));
    require(all.size() == 2 && (rank != 0 || all[0].size() == 3), "what rank 0 has stays");
  });
}

void take_files(int rank, const std::vector<std::string>& messages) {
  const fs::path directory = fresh_folder("gathered/folder");
  put("gathered/folder/mine", as_byte_span("content"));
  auto ranks = test::beside_peer(rank, messages);
  try_to([&] {
    for (const auto& name : shim::gather_files(&ranks, directory, {"mine"}))
      require(fs::is_regular_file(fs::symlink_status(directory / name)), "what came is there");
  });
  require(std::distance(fs::directory_iterator(directory.parent_path()), {}) == 1, "nothing is written elsewhere");
}

// Bits of `form`: what was saved is damaged; nothing was saved, since this run goes on after another.
void take_solved(int rank, Parts& parts) {
  constexpr unsigned kDamaged = 1, kResumed = 2;
  const std::size_t layers = parts.byte() % 4U;
  const unsigned form = parts.byte();
  std::vector<std::string> messages;
  while (!parts.empty()) {
    if (parts.byte() % 2 == 0) {
      messages.push_back(parts.text());
    } else {
      const auto text = parts.text();
      messages.push_back(solved_file(text, parts.piece()));
    }
  }
  const fs::path directory = fresh_folder("shared");
  auto ranks = test::beside_peer(rank, messages);
  try_to([&] {
    const solve::SolvedLayers solved(directory, &ranks);
    if ((form & kResumed) == 0) solved.save(1, std::vector<solve::SolvedLayer>(layers));
    if ((form & kDamaged) != 0) put("shared/solved-1", as_byte_span("damaged"));
    const auto found = solved.load(1, layers);
    require(!found || found->size() == layers, "there is what was solved of each layer");
  });
}

void take_trials(int rank, const std::vector<std::string>& messages) {
  auto ranks = test::beside_peer(rank, messages);
  const std::vector<remedies::Trial> trials(2);
  try_to([&] {
    const auto all = remedies::share_trials(&ranks, trials, {}, [](std::span<const remedies::Trial> mine) {
      return std::vector<remedies::TrialResult>(mine.size());
    });
    require(all.size() == trials.size(), "each trial has a result");
  });
}

void take_statistics(int rank, Parts& parts) {
  calibration::Statistics statistics;
  std::vector<std::string> messages;
  while (!parts.empty()) {
    const auto text = parts.text();
    messages.push_back(sealed(text));
    try_to([&] { statistics = calibration::decode(as_byte_span(messages.back()), "it"); });
  }
  auto ranks = test::beside_peer(rank, messages);
  try_to([&] {
    run::merge_statistics(ranks, statistics, {});
    calibration::decode(as_byte_span(calibration::encode(statistics)), "what was merged");
  });
}

void run_ranks(Bytes input) {
  Parts parts(input);
  const auto form = parts.byte();
  const int rank = parts.byte() % 2;
  switch (form % 5) {
    case 0: return take_values(rank, messages_of(parts));
    case 1: return take_files(rank, messages_of(parts));
    case 2: return take_solved(rank, parts);
    case 3: return take_trials(rank, messages_of(parts));
    default: return take_statistics(rank, parts);
  }
}

const Registered ranks_target{{"ranks", run_ranks, {}, 0, 20}};

}  // namespace
}  // namespace detent::fuzz
