// One row of the schema of options. Everything that knows of options (command line, YAML, Python, identity of a run,
// documentation, completions) iterates over these rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "config/enum_names.h"
#include "detent/options.h"

namespace detent::config {

/// A member that takes one of a few words.
struct Choice {
  std::span<const EnumName> words;
  void* at = nullptr;
  int (*get)(const void*) = nullptr;
  void (*set)(void*, int) = nullptr;
};

/// A member that takes several of them.
struct Choices {
  std::span<const EnumName> words;
  void* at = nullptr;
  std::vector<int> (*get)(const void*) = nullptr;
  void (*set)(void*, const std::vector<int>&) = nullptr;
};

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

static_assert(std::is_same_v<std::size_t, std::uint64_t>, "counts and sizes share an entry of Member");

/// Where an option's value is.
using Member = std::variant<bool*, std::optional<bool>*, int*, std::int64_t*, std::uint64_t*,
                            std::optional<std::uint64_t>*, double*, std::optional<double>*, std::string*,
                            std::filesystem::path*, std::optional<std::filesystem::path>*, std::vector<std::string>*,
                            std::vector<double>*, std::vector<int>*, std::vector<std::filesystem::path>*,
                            std::pair<double, double>*, std::vector<TensorOverride>*, Shapes*, Choice, Choices>;

template <class T>
Member member_of(T& at) {
  if constexpr (std::is_enum_v<T>) {
    return Choice{enum_names<T>(), &at, [](const void* p) { return static_cast<int>(*static_cast<const T*>(p)); },
                  [](void* p, int value) { *static_cast<T*>(p) = static_cast<T>(value); }};
  } else if constexpr (requires { requires std::is_enum_v<typename T::value_type>; }) {
    using Enum = typename T::value_type;
    return Choices{enum_names<Enum>(), &at,
                   [](const void* p) {
                     std::vector<int> values;
                     for (const Enum e : *static_cast<const T*>(p)) values.push_back(static_cast<int>(e));
                     return values;
                   },
                   [](void* p, const std::vector<int>& values) {
                     auto& list = *static_cast<T*>(p);
                     list.clear();
                     for (const int v : values) list.push_back(static_cast<Enum>(v));
                   }};
  } else {
    return &at;
  }
}

/// What to call for each of several types in std::visit.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;  // clang before 17 does not deduce it

/// What the command line takes beside the options of the library's calls.
struct CommandLine {
  bool json = false;
  bool json_members = false;
  bool quiet = false;
  bool verbose = false;
  bool isolate = false;
  SummaryForm summary = SummaryForm::text;
  std::size_t layers = 20;
  std::size_t ranks = 0;
  std::string network = "25Gbit";
  std::optional<double> max_steps;
  std::optional<double> min_sqnr;
  std::vector<std::filesystem::path> merge;
  std::optional<std::filesystem::path> options_file;
  std::vector<std::string> settings;
  std::optional<std::filesystem::path> save_config;
  std::string model_fingerprint;
  std::optional<std::filesystem::path> calibration_text;  // which the Python package's command makes token ids of
  std::size_t text_length = 512;
  std::optional<std::filesystem::path> tokenizer;
  std::optional<std::filesystem::path> images;
  data::ImagePreset image_preset = data::ImagePreset::none;
  std::size_t image_size = 0;
};

enum Command : unsigned {
  kQuantize = 1,
  kCalibrate = 2,
  kPlan = 4,
  kCompare = 8,
  kInspect = 16,
  kBench = 32,
  kCheck = 64,
  kVerify = 128,
  kSearch = 256
};

inline constexpr std::pair<Command, std::string_view> kCommands[] = {
    {kQuantize, "quantize"}, {kCalibrate, "calibrate"}, {kPlan, "plan"},
    {kCompare, "compare"},   {kInspect, "inspect"},     {kBench, "bench"},
    {kCheck, "check"},       {kVerify, "verify"},       {kSearch, "search"}};
/// 0: none has this name.
unsigned command_of(std::string_view name);

/// What changes when an option's value changes. A run resumes only with the same values of all options that affect what
/// it has done. Statistics affect the integers as well.
enum class Affects { undeclared, nothing, statistics, integers };

/// What a run of quantize makes: products of integers; weights in blocks (--weights-only); 16-bit floats; 32-bit
/// floats; products of integers whose scales are found while they run (--activations dynamic); the float model with
/// another cache (--kv-cache alone); floats with common exponents (--block-float); several of them in one model
/// (--node-formats).
enum Result : unsigned {
  kIntegers = 1,
  kBlocks = 2,
  kFloat16 = 4,
  kFloat32 = 8,
  kDynamic = 16,
  kCache = 32,
  kBlockFloats = 64,
  kMixed = 128,
  kAfterResults = 256
};
/// Results that are made from samples; all.
constexpr unsigned kSampled = kIntegers | kBlocks | kFloat16 | kCache | kMixed;
constexpr unsigned kAnyResult = kAfterResults - 1;

/// How texts become values where the type of the member does not tell.
enum class Form { by_type, bytes, duration, tensor_method, tensor_range };

/// Where an option's value is: in the options of the library's calls, or in those of the command line alone.
struct Access {
  std::string_view path;  // "config.per_channel"
  Member (*library)(Options&) = nullptr;
  Member (*command_line)(CommandLine&) = nullptr;
};

/// Access by a function that returns a reference to the member, for the struct that it can be called with.
template <class Function>
constexpr Access access(std::string_view path, Function) {
  if constexpr (std::is_invocable_v<Function, Options&>) {
    return {path, [](Options& o) { return member_of(Function{}(o)); }, nullptr};
  } else {
    return {path, nullptr, [](CommandLine& o) { return member_of(Function{}(o)); }};
  }
}

/// As in DETENT_AT(config.per_channel). A macro, since the path is wanted as text as well.
#define DETENT_AT(member) DETENT_AS(member, member)
/// The same by another path, which some commands have for the member in Python.
#define DETENT_AS(path, member) \
  ::detent::config::access(#path, [](auto& o) -> decltype((o.member)) { return o.member; })

/// Values that a number may have.
struct Bounds {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above = false;  // `min` itself is too small
};

struct Option {
  std::string_view name = {};  // on the command line without dashes, in YAML; of arguments without a name in capitals
  Access at = {};
  unsigned commands = 0;  // that take it
  Affects affects = Affects::undeclared;
  unsigned results = kAnyResult;  // that it has a meaning for; quantize refuses it for others
  std::string_view group = {};    // in help and documentation
  std::string_view help = {};
  std::string_view label = {};     // stands for the value in help
  std::string_view fallback = {};  // the default in words, where the value itself does not tell
  std::string_view only = {};      // methods that read it, as in "adaround, adaquant"
  std::string_view off = {};       // the name that says the opposite
  std::string_view off_help = {};
  std::string_view letter = {};  // "-o"
  unsigned required = 0;         // commands that cannot do without
  Form form = Form::by_type;
  Bounds bounds = {};
  /// What of the value counts for identity, where not all of it does.
  nlohmann::json (*identity)(const Member&) = nullptr;
  /// The texts that it may be, each with what it means, where they are not the words of an enumeration.
  std::vector<std::pair<std::string, std::string>> (*texts)() = nullptr;
  unsigned usual = 0;   // commands whose --help shows it; --help-all shows all
  bool detail = false;  // no help shows it, and documents give it as `--set NAME=VALUE`

  /// As a user types it, by its name or the opposite one: "--method", "--set damping", "MODEL".
  std::string spelled(std::string_view by) const;
  std::string spelled() const { return spelled(name); }
  bool positional() const noexcept { return name.front() >= 'A' && name.front() <= 'Z'; }
  bool of_library() const noexcept { return at.library != nullptr; }
  std::optional<Member> member(Options& o) const { return of_library() ? std::optional(at.library(o)) : std::nullopt; }
  std::optional<Member> member(CommandLine& o) const {
    return of_library() ? std::nullopt : std::optional(at.command_line(o));
  }
};

/// All options, in the order of help and documentation.
const std::vector<Option>& options();

/// The option of this name (or opposite name) that one of the commands takes; nullptr: there is none.
const Option* find(std::string_view name, unsigned commands);

/// Names and opposite names of the options that one of the commands takes.
std::vector<std::string_view> names(unsigned commands);

/// The member of an option of the library in options that are only read. (One function serves reading and writing.)
inline Member read_only(const Option& option, const Options& from) {
  return option.at.library(const_cast<Options&>(from));
}

/// The member of an option with its default. Not to be written to.
Member any_member(const Option& option);

/// What help says of a value: its words, its default.
std::vector<std::string> words_of(const Option& option);
std::string default_of(const Option& option);
/// Help with the methods that read the option in front, without the default.
std::string full_help(const Option& option);

/// Rows that have the commands, results, group and effect of `common` where they do not say their own.
std::vector<Option> table(const Option& common, std::span<const Option> rows);
std::vector<Option> joined(std::initializer_list<std::vector<Option>> tables);

// The rows, by file.
std::vector<Option> input_options();
std::vector<Option> format_options();
std::vector<Option> weights_only_options();
std::vector<Option> accuracy_options();
std::vector<Option> speed_options();
std::vector<Option> finetune_options();
std::vector<Option> running_options();
std::vector<Option> output_options();
std::vector<Option> search_options();

/// Sets a member. `texts` are the value, or the entries of a list; `name` is the option as the user wrote it, for
/// errors: "--set percentile". Throws usage for a text that is no value of the member.
void assign(const Option& option, const Member& member, const std::vector<std::string>& texts, std::string_view name);

/// Whether a text is a list of values with commas between them.
bool is_list(const Member& member);
/// Whether an option without a value means `true`.
bool is_flag(const Member& member);
std::vector<std::string> split_list(const std::string& text);

std::string text_of(const Member& member, Form form = Form::by_type);
nlohmann::json json_of(const Member& member);

/// Gives a member the value of another of the same type.
void copy(const Member& from, const Member& to);

/// The kind of value in one word, for the schema's readers: "flag", "integer", "number", "text", "path", "choice", …
std::string_view type_of(const Member& member, Form form);

}  // namespace detent::config
