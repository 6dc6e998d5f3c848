// Options by their names in Python. A new member of an option struct needs one line here, and one in _config.py.
#pragma once

#include "detent/calibrate.h"
#include "detent/compare.h"
#include "detent/inspect.h"
#include "detent/quantize.h"
#include "fields.h"

namespace detent::python {

template <class Enum>
using Word = std::pair<std::string_view, Enum>;

template <>
struct Words<QuantType> {
  static constexpr Word<QuantType> all[] = {{"int8", QuantType::int8},   {"uint8", QuantType::uint8},
                                            {"int16", QuantType::int16}, {"uint16", QuantType::uint16},
                                            {"int4", QuantType::int4},   {"uint4", QuantType::uint4}};
};
template <>
struct Words<Preset> {
  static constexpr Word<Preset> all[] = {{"balanced", Preset::balanced}, {"plain", Preset::plain}};
};
template <>
struct Words<SensitivityMode> {
  static constexpr Word<SensitivityMode> all[] = {
      {"auto", SensitivityMode::automatic}, {"off", SensitivityMode::off}, {"report", SensitivityMode::report}};
};
template <>
struct Words<EqualizeMode> {
  static constexpr Word<EqualizeMode> all[] = {{"auto", EqualizeMode::automatic}, {"off", EqualizeMode::off}};
};
template <>
struct Words<AccuracyFallback> {
  static constexpr Word<AccuracyFallback> all[] = {{"float32", AccuracyFallback::float32},
                                                   {"int16", AccuracyFallback::int16}};
};
template <>
struct Words<AccuracyMetric> {
  static constexpr Word<AccuracyMetric> all[] = {
      {"cosine", AccuracyMetric::cosine}, {"sqnr", AccuracyMetric::sqnr}, {"command", AccuracyMetric::command}};
};
template <>
struct Words<CalibrationMethod> {
  static constexpr Word<CalibrationMethod> all[] = {{"minmax", CalibrationMethod::minmax},
                                                    {"percentile", CalibrationMethod::percentile},
                                                    {"layerwise-percentile", CalibrationMethod::layerwise_percentile},
                                                    {"mse", CalibrationMethod::mse},
                                                    {"entropy", CalibrationMethod::entropy}};
};
template <>
struct Words<ErrorMetric> {
  static constexpr Word<ErrorMetric> all[] = {{"mae", ErrorMetric::mae}, {"mse", ErrorMetric::mse}};
};
template <>
struct Words<Rounding> {
  static constexpr Word<Rounding> all[] = {{"auto", Rounding::automatic},
                                           {"nearest", Rounding::nearest},
                                           {"adaround", Rounding::adaround},
                                           {"adaquant", Rounding::adaquant},
                                           {"gptq", Rounding::gptq}};
};
template <>
struct Words<FinetuneForm> {
  static constexpr Word<FinetuneForm> all[] = {
      {"auto", FinetuneForm::automatic}, {"gram", FinetuneForm::gram}, {"streamed", FinetuneForm::streamed}};
};
template <>
struct Words<DevicePrecision> {
  static constexpr Word<DevicePrecision> all[] = {
      {"float32", DevicePrecision::float32}, {"tf32", DevicePrecision::tf32}, {"bfloat16", DevicePrecision::bfloat16}};
};
template <>
struct Words<GdsMode> {
  static constexpr Word<GdsMode> all[] = {{"auto", GdsMode::automatic}, {"on", GdsMode::on}, {"off", GdsMode::off}};
};
template <>
struct Words<DeviceLayout> {
  static constexpr Word<DeviceLayout> all[] = {
      {"auto", DeviceLayout::automatic}, {"nchw", DeviceLayout::nchw}, {"nhwc", DeviceLayout::nhwc}};
};
template <>
struct Words<MemoryLevel> {
  static constexpr Word<MemoryLevel> all[] = {
      {"0", MemoryLevel::memory}, {"1", MemoryLevel::budget}, {"2", MemoryLevel::disk}};
};
template <>
struct Words<SpoolAccess> {
  static constexpr Word<SpoolAccess> all[] = {{"auto", SpoolAccess::automatic},
                                              {"buffered", SpoolAccess::buffered},
                                              {"direct", SpoolAccess::direct},
                                              {"uring", SpoolAccess::uring}};
};

template <>
struct Fields<QuantConfig> {
  using S = QuantConfig;
  static constexpr Field<S> all[] = {field<&S::preset>("preset"),
                                     field<&S::activation_type>("activation_type"),
                                     field<&S::weight_type>("weight_type"),
                                     field<&S::activation_symmetric>("activation_symmetric"),
                                     field<&S::weight_symmetric>("weight_symmetric"),
                                     field<&S::per_channel>("per_channel"),
                                     field<&S::reduce_range>("reduce_range"),
                                     field<&S::power_of_two_scale>("power_of_two_scale"),
                                     field<&S::op_types>("op_types"),
                                     field<&S::exclude_op_types>("exclude_op_types"),
                                     field<&S::nodes>("nodes"),
                                     field<&S::exclude_nodes>("exclude_nodes"),
                                     field<&S::passthrough_op_types>("passthrough_op_types")};
};

template <>
struct Fields<MethodConfig> {
  using S = MethodConfig;
  static constexpr Field<S> all[] = {field<&S::method>("method"),
                                     field<&S::average>("average"),
                                     field<&S::percentile>("percentile"),
                                     field<&S::two_sided>("two_sided"),
                                     field<&S::candidates>("candidates"),
                                     field<&S::metric>("metric"),
                                     field<&S::most_common>("most_common"),
                                     field<&S::entropy_bins>("entropy_bins"),
                                     field<&S::entropy_levels>("entropy_levels")};
};

template <>
struct Fields<TensorOverride> {
  using S = TensorOverride;
  static constexpr Field<S> all[] = {field<&S::tensor>("tensor"), field<&S::method>("method"),
                                     field<&S::range>("range")};
};

template <>
struct Fields<AccuracyConfig> {
  using S = AccuracyConfig;
  static constexpr Field<S> all[] = {field<&S::sensitivity>("sensitivity"),
                                     field<&S::equalize>("equalize"),
                                     field<&S::fallback>("fallback"),
                                     field<&S::target>("target"),
                                     field<&S::metric>("metric"),
                                     field<&S::command>("command"),
                                     field<&S::score>("score")};
};

template <>
struct Fields<FinetuneConfig> {
  using S = FinetuneConfig;
  static constexpr Field<S> all[] = {field<&S::rounding>("rounding"),
                                     field<&S::form>("form"),
                                     field<&S::op_types>("op_types"),
                                     field<&S::nodes>("nodes"),
                                     field<&S::only_heaviest_layer>("only_heaviest_layer"),
                                     field<&S::num_iterations>("num_iterations"),
                                     field<&S::learning_rate>("learning_rate"),
                                     field<&S::batch_size>("batch_size"),
                                     field<&S::early_stop>("early_stop"),
                                     field<&S::drop_ratio>("drop_ratio"),
                                     field<&S::reg_param>("reg_param"),
                                     field<&S::beta_range>("beta_range"),
                                     field<&S::warm_start>("warm_start"),
                                     field<&S::update_bias>("update_bias"),
                                     field<&S::update_scale>("update_scale"),
                                     field<&S::damping>("damping"),
                                     field<&S::activation_order>("activation_order"),
                                     field<&S::coordinate_sweeps>("coordinate_sweeps"),
                                     field<&S::seed>("seed")};
};

template <>
struct Fields<DeviceConfig> {
  using S = DeviceConfig;
  static constexpr Field<S> all[] = {field<&S::cuda>("cuda"), field<&S::memory_budget>("memory_budget"),
                                     field<&S::precision>("precision"), field<&S::layout>("layout"),
                                     field<&S::gds>("gds")};
};

template <>
struct Fields<Resources> {
  using S = Resources;
  static constexpr Field<S> all[] = {field<&S::memory_budget>("memory_budget"),
                                     field<&S::disk_budget>("disk_budget"),
                                     field<&S::work_dir>("work_dir"),
                                     field<&S::memory_level>("memory_level"),
                                     field<&S::segments>("segments"),
                                     field<&S::prefetch>("prefetch"),
                                     field<&S::spool_access>("spool_access"),
                                     field<&S::spool_bfloat16>("spool_bfloat16"),
                                     field<&S::resume>("resume"),
                                     field<&S::checkpoint_seconds>("checkpoint_seconds")};
};

// The members of QuantConfig go beside those of the calls that take one: read_options() looks in both.
template <>
struct Fields<QuantizeOptions> {
  using S = QuantizeOptions;
  static constexpr Field<S> all[] = {field<&S::model>("model"),
                                     field<&S::output>("output"),
                                     field<&S::calibration_data>("calibration_data"),
                                     field<&S::statistics>("statistics"),
                                     field<&S::method>("method"),
                                     field<&S::overrides>("overrides"),
                                     field<&S::accuracy>("accuracy"),
                                     field<&S::finetune>("finetune"),
                                     field<&S::device>("device"),
                                     field<&S::allow_nonfinite>("allow_nonfinite"),
                                     field<&S::max_samples>("max_samples"),
                                     field<&S::batch_size>("batch_size"),
                                     field<&S::threads>("threads"),
                                     field<&S::workers>("workers"),
                                     field<&S::external_data_threshold>("external_data_threshold"),
                                     field<&S::prepared_output>("prepared_output"),
                                     field<&S::profile>("profile"),
                                     field<&S::report>("report"),
                                     field<&S::trace>("trace"),
                                     field<&S::command>("command"),
                                     field<&S::runtime>("runtime"),
                                     field<&S::resources>("resources")};
};

template <>
struct Fields<CalibrateOptions> {
  using S = CalibrateOptions;
  static constexpr Field<S> all[] = {field<&S::model>("model"),
                                     field<&S::output>("output"),
                                     field<&S::calibration_data>("calibration_data"),
                                     field<&S::histograms>("histograms"),
                                     field<&S::most_common>("most_common"),
                                     field<&S::allow_nonfinite>("allow_nonfinite"),
                                     field<&S::max_samples>("max_samples"),
                                     field<&S::batch_size>("batch_size"),
                                     field<&S::threads>("threads"),
                                     field<&S::workers>("workers"),
                                     field<&S::device>("device"),
                                     field<&S::profile>("profile"),
                                     field<&S::report>("report"),
                                     field<&S::trace>("trace"),
                                     field<&S::command>("command"),
                                     field<&S::runtime>("runtime"),
                                     field<&S::resources>("resources")};
};

template <>
struct Fields<CompareOptions> {
  using S = CompareOptions;
  static constexpr Field<S> all[] = {field<&S::float_model>("float_model"),
                                     field<&S::quantized_model>("quantized_model"),
                                     field<&S::calibration_data>("calibration_data"),
                                     field<&S::max_samples>("max_samples"),
                                     field<&S::batch_size>("batch_size"),
                                     field<&S::threads>("threads"),
                                     field<&S::outputs_only>("outputs_only"),
                                     field<&S::pending_limit>("pending_limit"),
                                     field<&S::runtime>("runtime")};
};

template <>
struct Fields<InspectOptions> {
  using S = InspectOptions;
  static constexpr Field<S> all[] = {field<&S::model>("model"), field<&S::input_shapes>("input_shapes"),
                                     field<&S::runtime>("runtime")};
};

/// Options from a dict of names and values. Throws usage for a name that is none.
template <class Options>
Options read_options(const nb::dict& given) {
  Options options;
  // A preset is what the other options start from; its weights give way together, as on the command line.
  if constexpr (requires { options.config; }) {
    Preset preset = options.config.preset;
    if (given.contains("preset")) read(given["preset"], preset, "preset");
    const bool own_weights = given.contains("weight_type") || given.contains("reduce_range");
    options.config = preset_config(own_weights ? Preset::plain : preset);
    options.config.preset = preset;
    if constexpr (requires { options.method; }) options.method = preset_method(preset);
    if constexpr (requires { options.accuracy; }) {
      if (given.contains("method")) options.accuracy.other_methods.clear();
    }
  }
  for (const auto& [key, value] : given) {
    const auto name = nb::cast<std::string>(key);
    bool known = set_field(options, name, value);
    if constexpr (requires { options.config; }) known = known || set_field(options.config, name, value);
    if (!known) throw usage_error(fmt::format("there is no option '{}'", name));
  }
  return options;
}

/// All names that read_options() takes.
template <class Options>
std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const auto& f : Fields<Options>::all) names.emplace_back(f.name);
  if constexpr (requires(Options o) { o.config; }) {
    for (const auto& f : Fields<QuantConfig>::all) names.emplace_back(f.name);
  }
  return names;
}

}  // namespace detent::python
