#include "config/family.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/formats.h"
#include "config/presets.h"
#include "config/value.h"

namespace detent::config {
namespace {

constexpr FamilyRow kRows[] = {
    {"fp32", "", ""},
    {"fp16", "_fp16", "fp16"},
    {"q8", "_quantized", "int8-dynamic"},
    {"int8", "_int8", "int8-dynamic"},
    {"uint8", "_uint8", "uint8-dynamic"},
    {"q4", "_q4", "q4"},
    {"q4f16", "_q4f16", "q4f16"},
};

constexpr std::string_view kSaid[] = {"format",
                                      "config.preset",
                                      "config.float_type",
                                      "config.block_float",
                                      "config.activations",
                                      "config.weight_type",
                                      "weights_only.enabled",
                                      "weights_only.bits",
                                      "weights_only.scale_type",
                                      "weights_only.max_size",
                                      "accuracy.target",
                                      "kv_cache.type",
                                      "kv_cache.per_channel",
                                      "kv_cache.scale_file",
                                      "statistics",
                                      "prepared_output",
                                      "profile",
                                      "report",
                                      "trace"};

const FamilyRow& row_of(const std::string& name) {
  std::vector<std::string_view> all;
  for (const auto& row : kRows) {
    if (row.name == name) return row;
    all.push_back(row.name);
  }
  if (name == "bnb4")
    throw usage_error("--family bnb4: detent writes no MatMulBnb4 (codebooks of 4-bit floats)",
                      "give q4, which has a scale and a zero point for each block");
  throw not_one_of("--family", name, all);
}

}  // namespace

std::vector<const FamilyRow*> family_of(const QuantizeOptions& options) {
  std::vector<const FamilyRow*> members;
  for (const auto& name : options.family) {
    const auto* row = &row_of(name);
    if (std::find(members.begin(), members.end(), row) != members.end())
      throw usage_error(fmt::format("--family names '{}' twice", name), "give each member once");
    members.push_back(row);
  }
  return members;
}

std::vector<std::pair<std::string, std::string>> family_names() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& row : kRows)
    names.emplace_back(row.name,
                       row.format.empty() ? "the float model as it is" : fmt::format("--format {}", row.format));
  return names;
}

QuantizeOptions options_of(const FamilyRow& member, QuantizeOptions options) {
  options.family.clear();
  if (!member.format.empty()) apply(format(member.format), options);
  if (options.config.float_type == FloatType::keep) options.config.keep_io_types = true;  // it is about the others
  return options;
}

std::span<const std::string_view> options_set_by_member() { return kSaid; }

Error refused_beside_family(const Option& option) {
  return usage_error(
      fmt::format("{} does not go with --family, whose members are results of their own", option.spelled()),
      "leave it out, or make that result alone");
}

}  // namespace detent::config
