#include "checking/table.h"

#include <array>
#include <map>
#include <span>

namespace detent::checking {

/// Name and text of each file in tables/, written by the build.
std::span<const std::pair<std::string_view, std::string_view>> table_files();

namespace {

std::string_view next(std::string_view& rest, char separator) {
  const auto end = rest.find(separator);
  const auto part = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return part;
}

bool matches(std::string_view alternatives, std::string_view text) {
  if (alternatives == "*") return true;
  while (!alternatives.empty()) {
    if (next(alternatives, '|') == text) return true;
  }
  return false;
}

// The same without what is said of the zero point.
std::string without_zero(std::string text) {
  std::erase(text, '=');
  return text;
}
std::string with_zero(const std::string& text) {
  if (text == "f32" || text == "-") return text;
  auto plain = without_zero(text);
  const auto slash = plain.find('/');
  return plain.insert(slash == std::string::npos ? plain.size() : slash, "=");
}

}  // namespace

Table::Table(std::string_view text) {
  while (!text.empty()) {
    auto line = next(text, '\n');
    if (line.empty() || line.front() == '#') continue;
    std::array<std::string_view, 6> fields;
    for (auto& field : fields) field = next(line, '\t');
    rows_.push_back({fields[0], fields[1], fields[2], fields[3], fields[4], fields[5]});
  }
}

const Row* Table::find(std::string_view op_type, std::string_view first, std::string_view second,
                       std::string_view output) const {
  for (const auto& row : rows_) {
    if (matches(row.op_types, op_type) && matches(row.first, first) && matches(row.second, second) &&
        matches(row.output, output))
      return &row;
  }
  return nullptr;
}

const Row* Table::find(std::string_view op_type, const Signature& forms) const {
  // Of two inputs the table has the constant as the second; an index is none of two.
  if (op_type != "Gather" && forms.first.is_constant && !forms.second.is_constant && forms.second.text != "-")
    return find(op_type, {forms.second, forms.first, forms.output});
  const auto& [first, second, output] = forms;
  std::string constant = second.text;
  if (constant == "f32" && !second.is_constant && first.text == "f32") constant = "f32";
  // Zero points of results decide nothing, and of most operators a table has results as the first input or in float.
  const std::string outputs[] = {output.text, without_zero(output.text), with_zero(output.text),
                                 output.text == "f32" ? "f32" : first.text, "f32"};
  const std::string firsts[] = {first.text, with_zero(first.text), without_zero(first.text)};
  // Types without a row for each channel have one for the tensor, and the other way round.
  const bool is_weight = constant.ends_with("/c") || constant.ends_with("/t");
  const auto other =
      is_weight ? constant.substr(0, constant.size() - 1) + (constant.ends_with("/c") ? "t" : "c") : constant;
  const std::string seconds[] = {constant,
                                 without_zero(constant),
                                 with_zero(constant),
                                 other,
                                 without_zero(other),
                                 with_zero(other),
                                 first.text,
                                 first.is_constant ? first.text : without_zero(first.text),
                                 "-"};
  for (const auto& s : seconds) {
    for (const auto& f : firsts) {
      for (const auto& o : outputs) {
        if (const auto* row = find(op_type, f, s, o)) return row;
      }
    }
  }
  return nullptr;
}

bool differs(std::string_view alternatives, const std::string& text) {
  return !matches(alternatives, text) && !matches(alternatives, without_zero(text)) &&
         !matches(alternatives, with_zero(text));
}

bool on_integers(const Row& row) {
  return row.kernel == "int8" || row.kernel == "int16" || row.kernel == "htp" || row.kernel == "block floats";
}

const Row* Table::nearest_on_integers(std::string_view op_type, const Signature& forms) const {
  const Row* best = nullptr;
  int fewest = 0;
  for (const auto& row : rows_) {
    if (!matches(row.op_types, op_type) || row.op_types == "*" || !on_integers(row) || matches(row.first, "f32"))
      continue;
    const bool second_of_a_kind = forms.second.is_constant == (row.second.find('/') != std::string_view::npos);
    const int differences = 2 * !matches(row.first, forms.first.text) + 2 * !matches(row.second, forms.second.text) +
                            differs(row.output, forms.output.text) + 4 * !second_of_a_kind +
                            3 * (matches(row.output, "f32") && forms.output.text != "f32");  // integers go on behind it
    if (best != nullptr && differences >= fewest) continue;
    best = &row;
    fewest = differences;
  }
  return best;
}

const Table* table_of(std::string_view target) {
  static const auto all = [] {
    std::map<std::string_view, Table> tables;
    for (const auto& [name, text] : table_files()) tables.emplace(name, Table(text));
    return tables;
  }();
  const auto found = all.find(target.substr(0, target.find(':')));
  return found == all.end() ? nullptr : &found->second;
}

}  // namespace detent::checking
