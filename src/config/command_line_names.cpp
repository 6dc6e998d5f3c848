#include "config/command_line_names.h"

namespace detent::config {
namespace {

template <class Enum>
constexpr EnumName word(std::string_view text, Enum value) {
  return {text, static_cast<int>(value)};
}

}  // namespace

template <>
std::span<const EnumName> enum_names<SummaryForm>() {
  static constexpr EnumName all[] = {word("text", SummaryForm::text), word("md", SummaryForm::md)};
  return all;
}

template <>
std::span<const EnumName> enum_names<data::ImagePreset>() {
  using data::ImagePreset;
  static constexpr EnumName all[] = {word("none", ImagePreset::none),      word("imagenet", ImagePreset::imagenet),
                                     word("01", ImagePreset::zero_to_one), word("11", ImagePreset::one_to_one),
                                     word("255", ImagePreset::bytes),      word("yolo", ImagePreset::letterbox)};
  return all;
}

}  // namespace detent::config
