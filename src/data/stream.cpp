#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/buffer.h"
#include "data/formats/decoder.h"
#include "data/formats/text.h"
#include "data/units.h"

namespace detent::data {
namespace {

class StreamUnits final : public Units {
 public:
  StreamUnits(SampleStream& stream, std::vector<InputSpec> inputs) : stream_(stream), inputs_(std::move(inputs)) {}

  std::optional<LoadedFile> next() override {
    if (again_) {
      again_ = false;
      return first_;
    }
    first_.reset();
    auto arrays = stream_.next();
    if (!arrays) {
      counted_ = taken_;
      return std::nullopt;
    }
    LoadedFile unit = checked(std::move(*arrays), fmt::format("sample {}", ++taken_));
    if (taken_ == 1) first_ = unit;
    return unit;
  }

  void rewind() override {
    if (taken_ == 0) return;
    if (first_) {
      again_ = true;
      return;
    }
    if (!stream_.can_rewind()) {
      throw usage_error("the samples can be read only once, and are needed again",
                        "give something that can be iterated again, such as a list or files, or fewer segments");
    }
    stream_.rewind();
    taken_ = 0;
  }

  std::optional<LoadedFile> first() override {
    if (taken_ == 0) {
      auto unit = next();
      again_ = unit.has_value();
    }
    return first_;
  }

  std::size_t count() const override { return counted_ > 0 ? counted_ : stream_.size(); }
  std::string where() const override { return "the stream of samples"; }

 private:
  LoadedFile checked(std::vector<NamedArray> arrays, std::string origin) const {
    LoadedFile unit{std::move(origin), {}};
    if (arrays.size() == 1 && arrays.front().name.empty()) arrays.front().name = name_of_unnamed_array(inputs_);
    for (const NamedArray& array : arrays) {
      const auto same = [&](const auto& other) { return other.name == array.name; };
      if (std::none_of(inputs_.begin(), inputs_.end(), same))
        throw bad_input(fmt::format("{}: '{}' is not an input", unit.origin, printable(array.name, 120)),
                        describe_inputs(inputs_));
      if (std::count_if(arrays.begin(), arrays.end(), same) > 1)
        throw bad_input(fmt::format("{}: input '{}' appears twice", unit.origin, printable(array.name, 120)));
    }
    std::vector<std::string> names;
    for (const NamedArray& array : arrays) names.push_back(array.name);
    std::vector<InputSpec> given;
    for (const InputSpec& input : inputs_) {
      if (follows_from_ids(input, inputs_, names)) continue;
      given.push_back(input);
      const auto found =
          std::find_if(arrays.begin(), arrays.end(), [&](const auto& a) { return a.name == input.name; });
      if (found == arrays.end())
        throw bad_input(fmt::format("{}: the input '{}' is missing", unit.origin, printable(input.name, 120)),
                        describe_inputs(inputs_));
      unit.inputs.push_back(fitted(std::move(*found), input, unit.origin));
    }
    return with_token_inputs(std::move(unit), given, inputs_);
  }

  static LoadedArray fitted(NamedArray given, const InputSpec& input, const std::string& origin) {
    LoadedArray loaded;
    loaded.where = origin;
    Array array{static_cast<onnx::DataType>(given.type), std::move(given.shape), given.bytes, std::move(given.owner)};
    if (size_of(array.type, array.shape, origin) != array.bytes.size()) {
      throw bad_input(fmt::format("{}: input '{}' has {} bytes, which is not {}", origin, printable(input.name, 120),
                                  array.bytes.size(), describe(array.type, array.shape)));
    }
    loaded.fit = fit_to_input(input, array.type, array.shape, origin);
    loaded.array = aligned(std::move(array), origin);
    return loaded;
  }

  SampleStream& stream_;
  std::vector<InputSpec> inputs_;
  std::optional<LoadedFile> first_;
  bool again_ = false;  // the first is next
  std::size_t taken_ = 0;
  std::size_t counted_ = 0;  // in a whole pass
};

}  // namespace

std::unique_ptr<Units> stream_units(SampleStream& stream, std::vector<InputSpec> inputs) {
  return std::make_unique<StreamUnits>(stream, std::move(inputs));
}

}  // namespace detent::data
