// Every pair of options, in every kind of run: what is refused is refused in words, and each row of the table is
// needed.
#include "config/validate.h"

#include <fmt/format.h>

#include <set>

#include "config/presets.h"
#include "support.h"

namespace detent::config {
namespace {

struct Setting {
  const Option* option;
  std::string text;
};

std::vector<std::string> texts_of(const Option& option) {
  QuantizeOptions none;
  const auto type = type_of(*option.member(none), option.form);
  if (type == "flag") return {"true", "false"};
  if (type == "choice") return words_of(option);
  if (type == "choices") return {words_of(option).front()};
  if (type == "devices") return {"cuda:0"};
  if (type == "overrides") return {option.form == Form::tensor_range ? "x=0,1" : "x=entropy"};
  if (type == "shapes") return {"x:1x2"};
  if (type == "size") return {"1MiB"};
  if (type == "pair") return {"20,2"};
  if (option.texts != nullptr) {
    std::vector<std::string> texts;
    for (const auto& [text, means] : option.texts()) texts.push_back(text);
    return texts;
  }
  if (type == "text" || type == "texts" || type == "path" || type == "paths") return {"x"};
  return {"0.5", "2", "4096"};
}

// All values that are worth a look, of all options of quantize.
const std::vector<Setting>& settings() {
  static const auto all = [] {
    std::vector<Setting> found;
    for (const auto& option : options()) {
      if ((option.commands & kQuantize) == 0 || option.at.quantize == nullptr || option.name == "family") continue;
      for (auto& text : texts_of(option)) found.push_back({&option, std::move(text)});
    }
    return found;
  }();
  return all;
}

// False: the text is no value of this option.
bool give(QuantizeOptions& options, const Setting& setting) {
  const auto member = *setting.option->member(options);
  try {
    assign(*setting.option, member, is_list(member) ? split_list(setting.text) : std::vector{setting.text}, "--x");
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The kinds of runs, each by the options that ask for it.
std::vector<QuantizeOptions> kinds_of_runs() {
  std::vector<QuantizeOptions> kinds(12);
  for (const int blocks : {1, 2, 3}) kinds[blocks].weights_only.enabled = true;
  kinds[2].config.weight_type = QuantType::float8e4m3fn;
  kinds[3].weights_only.form = WeightForm::qdq;
  kinds[4].config.preset = "none";
  kinds[5].config.preset = "none";
  kinds[5].kv_cache.type = KvCacheType::int8;
  for (const int plain : {6, 7, 8}) kinds[plain].config.preset = "plain";
  kinds[7].config.block_float = BlockFloat::bfp16;
  kinds[8].config.weight_type = kinds[8].config.activation_type = QuantType::float8e4m3fn;
  kinds[9].config.activations = Activations::dynamic;
  kinds[10].finetune.rounding = WeightSolver::adaround;
  kinds[11].node_formats = {"a=int8"};
  const auto without_samples = kinds;
  for (auto& kind : kinds) kind.calibration_data = "samples";
  kinds.insert(kinds.end(), without_samples.begin(), without_samples.end());
  return kinds;
}

std::string error_of(const QuantizeOptions& options, Command command) {
  try {
    validate(options, command);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    return e.what();
  }
  return {};
}

// The row that an error comes from, by the text around its values.
const Conflict* row_of(const std::string& error) {
  for (const auto& row : conflicts()) {
    const auto open = row.why.find('{');
    const auto close = row.why.rfind('}');
    const bool has_values = open != std::string_view::npos;
    if (!has_values && error == row.why) return &row;
    if (has_values && error.starts_with(row.why.substr(0, open)) && error.ends_with(row.why.substr(close + 1)))
      return &row;
  }
  return nullptr;
}

// Calls `see` with the error of each pair in each kind of run; empty where the pair is accepted.
template <class See>
void for_each_pair(See see) {
  const auto& all = settings();
  for (const auto& kind : kinds_of_runs()) {
    for (std::size_t a = 0; a < all.size(); ++a) {
      QuantizeOptions one = kind;
      if (!give(one, all[a])) continue;
      for (std::size_t b = a; b < all.size(); ++b) {
        QuantizeOptions both = one;
        if (!give(both, all[b])) continue;
        see(error_of(both, kQuantize));
        if (a == b) see(error_of(both, kPlan));
      }
    }
  }
}

TEST(Conflicts, EveryPairIsAcceptedOrRefusedInWordsAndEveryRowIsNeeded) {
  std::set<std::string> errors;
  for_each_pair([&](std::string error) { errors.insert(std::move(error)); });
  std::set<std::string_view> seen;
  for (const auto& error : errors) {
    EXPECT_EQ(error.find_first_of("{}"), std::string::npos) << error;
    if (const auto* row = row_of(error)) seen.insert(row->why);
  }
  for (const auto& row : conflicts()) EXPECT_TRUE(seen.contains(row.why)) << "no pair is refused with: " << row.why;
}

TEST(Conflicts, ValuesInErrorsAreOfOptionsThatThereAre) {
  for (const auto& row : conflicts()) {
    for (std::string_view rest = row.why; rest.find('{') != std::string_view::npos;) {
      const auto open = rest.find('{');
      const auto close = rest.find('}', open);
      const auto name = rest.substr(open + 1, close - open - 1);
      EXPECT_NE(find(name, kQuantize), nullptr) << name;
      rest.remove_prefix(close + 1);
    }
  }
}

}  // namespace
}  // namespace detent::config
