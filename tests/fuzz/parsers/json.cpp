// JSON of other programs and of earlier runs: what is read is bounded and comes out as it went in.
#include "base/json.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "fuzz/fuzz.h"

namespace detent::fuzz {
namespace {

template <class Json>
void read_and_write(std::string_view text) {
  const auto read = parse_json<Json>(text);
  const auto library = Json::parse(text, nullptr, false);
  require(!read || *read == library, "JSON is what the library reads");
  if (!read) return;
  for (const int indent : {-1, 2}) {
    const auto again = parse_json<Json>(json_text(*read, indent));
    require(again && *again == *read, "JSON that is written reads back");
  }
}

void run_json(Bytes input) {
  const std::string_view text = as_text(input);
  read_and_write<nlohmann::json>(text);
  read_and_write<nlohmann::ordered_json>(text);
  const auto name = json_of_name(text);
  require(name_of_json(name) == text, "a name comes back as it was");
  const auto again = parse_json(json_text(name));
  require(again && name_of_json(*again) == text, "a name comes back from a file");
  if (const auto read = parse_json(text)) name_of_json(*read);
}

const Registered json{{"json", run_json}};

}  // namespace
}  // namespace detent::fuzz
