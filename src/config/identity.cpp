#include "config/identity.h"

#include <nlohmann/json.hpp>

#include "config/derived.h"
#include "config/value.h"

namespace detent::config {
namespace {

template <class Options>
nlohmann::json values(const Options& given, Affects what, unsigned command) {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& option : options()) {
    if (option.affects != what || (option.commands & command) == 0) continue;
    const auto member = read_only(option, given);
    if (!member) continue;
    all[option.spelled()] = option.identity == nullptr ? json_of(*member) : option.identity(*member);
  }
  return all;
}

}  // namespace

nlohmann::json identity(const QuantizeOptions& options, Affects what) { return values(options, what, kQuantize); }
nlohmann::json identity(const CalibrateOptions& options, Affects what) { return values(options, what, kCalibrate); }
nlohmann::json identity(const SearchOptions& options, Affects what) { return values(options, what, kSearch); }

nlohmann::json run_identity(const QuantizeOptions& options) {
  auto all = identity(options, Affects::statistics);
  all["--finetune"] = word_of(enum_names<WeightSolver>(), static_cast<int>(WeightSolver::nearest));
  if (tunes(options.finetune.rounding) || may_tune(options)) all.update(identity(options, Affects::integers));
  return all;
}

}  // namespace detent::config
