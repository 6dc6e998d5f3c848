// Results by their names in Python, as dicts for the classes of _results.py.
#pragma once

#include "detent/bench.h"
#include "detent/calibrate.h"
#include "detent/check.h"
#include "detent/compare.h"
#include "detent/inspect.h"
#include "detent/plan.h"
#include "detent/quantize.h"
#include "detent/search.h"
#include "detent/verify.h"
#include "fields.h"

namespace detent::python {

template <>
struct Fields<StageReport> {
  using S = StageReport;
  static constexpr Field<S> all[] = {shown<&S::name>("name"), shown<&S::seconds>("seconds"),
                                     shown<&S::peak_memory>("peak_memory")};
};
template <>
struct Fields<TensorParams> {
  using S = TensorParams;
  static constexpr Field<S> all[] = {shown<&S::scale>("scale"), shown<&S::zero_point>("zero_point"),
                                     shown<&S::range_min>("range_min"), shown<&S::range_max>("range_max"),
                                     shown<&S::method>("method")};
};
template <>
struct Fields<LayerTuning> {
  using S = LayerTuning;
  static constexpr Field<S> all[] = {
      shown<&S::name>("name"),      shown<&S::op_type>("op_type"),           shown<&S::streamed>("streamed"),
      shown<&S::tuned>("tuned"),    shown<&S::error_before>("error_before"), shown<&S::error_after>("error_after"),
      shown<&S::seconds>("seconds")};
};
template <>
struct Fields<BlockedWeight> {
  using S = BlockedWeight;
  static constexpr Field<S> all[] = {shown<&S::name>("name"),
                                     shown<&S::node>("node"),
                                     shown<&S::op_type>("op_type"),
                                     shown<&S::bits>("bits"),
                                     shown<&S::block_size>("block_size"),
                                     shown<&S::rows>("rows"),
                                     shown<&S::columns>("columns"),
                                     shown<&S::method>("method"),
                                     shown<&S::sqnr_db>("sqnr_db"),
                                     shown<&S::output_error>("output_error"),
                                     shown<&S::dense_error>("dense_error"),
                                     shown<&S::input_exponent>("input_exponent")};
};
template <>
struct Fields<PlannedWeight> {
  using S = PlannedWeight;
  static constexpr Field<S> all[] = {shown<&S::name>("name"), shown<&S::node>("node"), shown<&S::bits>("bits"),
                                     shown<&S::bytes>("bytes"), shown<&S::error>("error")};
};
template <>
struct Fields<MeasuredSize> {
  using S = MeasuredSize;
  static constexpr Field<S> all[] = {shown<&S::size>("size"), shown<&S::value>("value")};
};
template <>
struct Fields<BitsPlan> {
  using S = BitsPlan;
  static constexpr Field<S> all[] = {shown<&S::max_size>("max_size"), shown<&S::size>("size"),
                                     shown<&S::error>("error"),       shown<&S::weights>("weights"),
                                     shown<&S::reached>("reached"),   shown<&S::tried>("tried")};
};
template <>
struct Fields<Sensitivity> {
  using S = Sensitivity;
  static constexpr Field<S> all[] = {shown<&S::value>("value"), shown<&S::node>("node"),
                                     shown<&S::is_weight>("is_weight"), shown<&S::error>("error")};
};
template <>
struct Fields<EqualizedValue> {
  using S = EqualizedValue;
  static constexpr Field<S> all[] = {shown<&S::value>("value"), shown<&S::error_before>("error_before"),
                                     shown<&S::error_after>("error_after")};
};
template <>
struct Fields<MethodChoice> {
  using S = MethodChoice;
  static constexpr Field<S> all[] = {shown<&S::value>("value"), shown<&S::method>("method"),
                                     shown<&S::error_before>("error_before"), shown<&S::error_after>("error_after")};
};
template <>
struct Fields<FallbackNode> {
  using S = FallbackNode;
  static constexpr Field<S> all[] = {shown<&S::node>("node"), shown<&S::error_share>("error_share"),
                                     shown<&S::macs_share>("macs_share")};
};
template <>
struct Fields<TunedWeights> {
  using S = TunedWeights;
  static constexpr Field<S> all[] = {shown<&S::error_before>("error_before"), shown<&S::error_after>("error_after"),
                                     shown<&S::kept>("kept")};
};
template <>
struct Fields<ChannelGroup> {
  using S = ChannelGroup;
  static constexpr Field<S> all[] = {shown<&S::output>("output"), shown<&S::axis>("axis"), shown<&S::first>("first"),
                                     shown<&S::last>("last"), shown<&S::sqnr_db>("sqnr_db")};
};
template <>
struct Fields<AccuracyResult> {
  using S = AccuracyResult;
  static constexpr Field<S> all[] = {shown<&S::samples>("samples"),
                                     shown<&S::sample_names>("sample_names"),
                                     shown<&S::worst_sample_db>("worst_sample_db"),
                                     shown<&S::sqnr_db>("sqnr_db"),
                                     shown<&S::cosine>("cosine"),
                                     shown<&S::lost_channels>("lost_channels"),
                                     shown<&S::worst_channels>("worst_channels"),
                                     shown<&S::rounded_db>("rounded_db"),
                                     shown<&S::score>("score"),
                                     shown<&S::integer_macs>("integer_macs"),
                                     shown<&S::wide_macs>("wide_macs"),
                                     shown<&S::weights_share>("weights_share"),
                                     shown<&S::tuned>("tuned"),
                                     shown<&S::equalized>("equalized"),
                                     shown<&S::methods>("methods"),
                                     shown<&S::float_nodes>("float_nodes"),
                                     shown<&S::wide_nodes>("wide_nodes"),
                                     shown<&S::sensitivities>("sensitivities")};
};
template <>
struct Fields<Latency> {
  using S = Latency;
  static constexpr Field<S> all[] = {shown<&S::runs>("runs"),
                                     shown<&S::min>("min"),
                                     shown<&S::median>("median"),
                                     shown<&S::p90>("p90"),
                                     shown<&S::cpu>("cpu"),
                                     shown<&S::ratio>("ratio"),
                                     shown<&S::ratio_low>("ratio_low"),
                                     shown<&S::ratio_high>("ratio_high"),
                                     shown<&S::cpu_ratio>("cpu_ratio"),
                                     shown<&S::waiting>("waiting")};
};
template <>
struct Fields<LatencyChange> {
  using S = LatencyChange;
  static constexpr Field<S> all[] = {shown<&S::before>("before"), shown<&S::after>("after"),
                                     shown<&S::threads>("threads"), shown<&S::samples>("samples"),
                                     shown<&S::synthetic>("synthetic")};
};
template <>
struct Fields<OperatorTime> {
  using S = OperatorTime;
  static constexpr Field<S> all[] = {shown<&S::op_type>("op_type"), shown<&S::nodes>("nodes"),
                                     shown<&S::seconds>("seconds"), shown<&S::share>("share")};
};
template <>
struct Fields<BenchedModel> {
  using S = BenchedModel;
  static constexpr Field<S> all[] = {shown<&S::model>("model"),
                                     shown<&S::bytes>("bytes"),
                                     shown<&S::load_seconds>("load_seconds"),
                                     shown<&S::latency>("latency"),
                                     shown<&S::peak_memory>("peak_memory"),
                                     shown<&S::operators>("operators")};
};
template <>
struct Fields<BenchResult> {
  using S = BenchResult;
  static constexpr Field<S> all[] = {shown<&S::models>("models"),   shown<&S::threads>("threads"),
                                     shown<&S::samples>("samples"), shown<&S::synthetic>("synthetic"),
                                     shown<&S::runtime>("runtime"), shown<&S::notes>("notes")};
};
template <>
struct Fields<SearchPoint> {
  using S = SearchPoint;
  static constexpr Field<S> all[] = {shown<&S::name>("name"),
                                     shown<&S::single>("single"),
                                     shown<&S::node_formats>("node_formats"),
                                     shown<&S::command>("command"),
                                     shown<&S::sqnr_db>("sqnr_db"),
                                     shown<&S::error>("error"),
                                     shown<&S::expected_error>("expected_error"),
                                     shown<&S::value>("value"),
                                     shown<&S::seconds>("seconds"),
                                     shown<&S::expected_seconds>("expected_seconds"),
                                     shown<&S::bytes>("bytes"),
                                     shown<&S::on_front>("on_front"),
                                     shown<&S::chosen>("chosen"),
                                     shown<&S::written>("written")};
};
template <>
struct Fields<ServingMachine> {
  using S = ServingMachine;
  static constexpr Field<S> all[] = {shown<&S::machine>("machine"),   shown<&S::model>("model"),
                                     shown<&S::seconds>("seconds"),   shown<&S::instances>("instances"),
                                     shown<&S::requests>("requests"), shown<&S::peak_memory>("peak_memory"),
                                     shown<&S::price>("price"),       shown<&S::needed>("needed")};
};
template <>
struct Fields<SearchResult> {
  using S = SearchResult;
  static constexpr Field<S> all[] = {
      shown<&S::points>("points"),   shown<&S::machines>("machines"),     shown<&S::candidates>("candidates"),
      shown<&S::samples>("samples"), shown<&S::inferences>("inferences"), shown<&S::out_of_time>("out_of_time"),
      shown<&S::notes>("notes"),     shown<&S::stages>("stages"),         shown<&S::peak_memory>("peak_memory")};
};
template <>
struct Fields<FloatConversion> {
  using S = FloatConversion;
  static constexpr Field<S> all[] = {shown<&S::nodes>("nodes"), shown<&S::nodes_kept>("nodes_kept"),
                                     shown<&S::casts>("casts"), shown<&S::constants>("constants")};
};
template <>
struct Fields<RotatedStream> {
  using S = RotatedStream;
  static constexpr Field<S> all[] = {shown<&S::error_before>("error_before"), shown<&S::error_after>("error_after"),
                                     shown<&S::kept>("kept")};
};
template <>
struct Fields<KvScales> {
  using S = KvScales;
  static constexpr Field<S> all[] = {shown<&S::layer>("layer"), shown<&S::keys>("keys"), shown<&S::values>("values")};
};
template <>
struct Fields<FamilyMember> {
  using S = FamilyMember;
  static constexpr Field<S> all[] = {shown<&S::name>("name"), shown<&S::output>("output"), shown<&S::result>("result")};
};
template <>
struct Fields<Outcome> {
  using S = Outcome;
  static constexpr Field<S> all[] = {shown<&S::answer>("answer"), shown<&S::headline>("headline"),
                                     shown<&S::reasons>("reasons")};
};
template <>
struct Fields<QuantizeResult> {
  using S = QuantizeResult;
  static constexpr Field<S> all[] = {shown<&S::outcome>("outcome"),
                                     shown<&S::samples>("samples"),
                                     shown<&S::model_bytes_before>("model_bytes_before"),
                                     shown<&S::model_bytes_after>("model_bytes_after"),
                                     shown<&S::nodes_quantized>("nodes_quantized"),
                                     shown<&S::nodes_in_float>("nodes_in_float"),
                                     shown<&S::faster_in_float>("faster_in_float"),
                                     shown<&S::activations>("activations"),
                                     shown<&S::accuracy>("accuracy"),
                                     shown<&S::latency>("latency"),
                                     shown<&S::weights>("weights"),
                                     shown<&S::bits_plan>("bits_plan"),
                                     shown<&S::rotated>("rotated"),
                                     shown<&S::kv_scales>("kv_scales"),
                                     shown<&S::floats>("floats"),
                                     shown<&S::layers>("layers"),
                                     shown<&S::notes>("notes"),
                                     shown<&S::stages>("stages"),
                                     shown<&S::peak_memory>("peak_memory"),
                                     shown<&S::family>("family")};
};
template <>
struct Fields<CalibrateResult> {
  using S = CalibrateResult;
  static constexpr Field<S> all[] = {
      shown<&S::samples>("samples"), shown<&S::tensors>("tensors"), shown<&S::output_bytes>("output_bytes"),
      shown<&S::notes>("notes"),     shown<&S::stages>("stages"),   shown<&S::peak_memory>("peak_memory")};
};
template <>
struct Fields<Fidelity> {
  using S = Fidelity;
  static constexpr Field<S> all[] = {shown<&S::name>("name"),       shown<&S::made_by>("made_by"),
                                     shown<&S::sqnr_db>("sqnr_db"), shown<&S::cosine>("cosine"),
                                     shown<&S::max_abs>("max_abs"), shown<&S::worst_sample_db>("worst_sample_db"),
                                     shown<&S::reason>("reason"),   shown<&S::suggestion>("suggestion")};
};
template <>
struct Fields<NextTokens> {
  using S = NextTokens;
  static constexpr Field<S> all[] = {shown<&S::positions>("positions"), shown<&S::float_perplexity>("float_perplexity"),
                                     shown<&S::perplexity>("perplexity"), shown<&S::agreement>("agreement"),
                                     shown<&S::kl_divergence>("kl_divergence")};
};
template <>
struct Fields<Comparison> {
  using S = Comparison;
  static constexpr Field<S> all[] = {shown<&S::samples>("samples"),         shown<&S::sample_names>("sample_names"),
                                     shown<&S::next_tokens>("next_tokens"), shown<&S::outputs>("outputs"),
                                     shown<&S::layers>("layers"),           shown<&S::notes>("notes")};
};
template <>
struct Fields<ValueReport> {
  using S = ValueReport;
  static constexpr Field<S> all[] = {shown<&S::name>("name"), shown<&S::type>("type"), shown<&S::shape>("shape")};
};
template <>
struct Fields<LayerReport> {
  using S = LayerReport;
  static constexpr Field<S> all[] = {shown<&S::name>("name"),
                                     shown<&S::op_type>("op_type"),
                                     shown<&S::parameters>("parameters"),
                                     shown<&S::parameter_bytes>("parameter_bytes"),
                                     shown<&S::activation_bytes>("activation_bytes"),
                                     shown<&S::macs>("macs"),
                                     shown<&S::flops>("flops"),
                                     shown<&S::output_shape>("output_shape"),
                                     shown<&S::finetune_bytes>("finetune_bytes")};
};
template <>
struct Fields<QuantizedProduct> {
  using S = QuantizedProduct;
  static constexpr Field<S> all[] = {shown<&S::name>("name"), shown<&S::op_type>("op_type"),
                                     shown<&S::runs_as>("runs_as"), shown<&S::in_float>("in_float")};
};
template <>
struct Fields<CheckedNode> {
  using S = CheckedNode;
  static constexpr Field<S> all[] = {shown<&S::name>("name"),
                                     shown<&S::op_type>("op_type"),
                                     shown<&S::verdict>("verdict"),
                                     shown<&S::on_cpu>("on_cpu"),
                                     shown<&S::precision>("precision"),
                                     shown<&S::rule>("rule"),
                                     shown<&S::suggestion>("suggestion"),
                                     shown<&S::macs>("macs")};
};
template <>
struct Fields<CheckResult> {
  using S = CheckResult;
  static constexpr Field<S> all[] = {
      shown<&S::target>("target"),     shown<&S::target_reason>("target_reason"), shown<&S::nodes>("nodes"),
      shown<&S::accepted>("accepted"), shown<&S::falls_back>("falls_back"),       shown<&S::refused>("refused"),
      shown<&S::macs>("macs"),         shown<&S::integer_macs>("integer_macs"),   shown<&S::partitions>("partitions"),
      shown<&S::problems>("problems")};
};
template <>
struct Fields<VerifiedLayer> {
  using S = VerifiedLayer;
  static constexpr Field<S> all[] = {shown<&S::name>("name"),
                                     shown<&S::made_by>("made_by"),
                                     shown<&S::quantized>("quantized"),
                                     shown<&S::elements>("elements"),
                                     shown<&S::max_steps>("max_steps"),
                                     shown<&S::share>("share"),
                                     shown<&S::share_over_one>("share_over_one"),
                                     shown<&S::exact>("exact"),
                                     shown<&S::reason>("reason")};
};
template <>
struct Fields<VerifiedOutput> {
  using S = VerifiedOutput;
  static constexpr Field<S> all[] = {shown<&S::reference>("reference"), shown<&S::deployed>("deployed"),
                                     shown<&S::consumer_sqnr_db>("consumer_sqnr_db")};
};
template <>
struct Fields<Verification> {
  using S = Verification;
  static constexpr Field<S> all[] = {shown<&S::target>("target"),       shown<&S::target_reason>("target_reason"),
                                     shown<&S::consumer>("consumer"),   shown<&S::samples>("samples"),
                                     shown<&S::outputs>("outputs"),     shown<&S::layers>("layers"),
                                     shown<&S::max_steps>("max_steps"), shown<&S::latency>("latency"),
                                     shown<&S::notes>("notes")};
};
template <>
struct Fields<Inspection> {
  using S = Inspection;
  static constexpr Field<S> all[] = {shown<&S::ir_version>("ir_version"),
                                     shown<&S::opsets>("opsets"),
                                     shown<&S::inputs>("inputs"),
                                     shown<&S::outputs>("outputs"),
                                     shown<&S::op_types>("op_types"),
                                     shown<&S::layers>("layers"),
                                     shown<&S::heaviest>("heaviest"),
                                     shown<&S::parameters>("parameters"),
                                     shown<&S::parameter_bytes>("parameter_bytes"),
                                     shown<&S::activation_bytes>("activation_bytes"),
                                     shown<&S::macs>("macs"),
                                     shown<&S::peak_activation_bytes>("peak_activation_bytes"),
                                     shown<&S::peak_at>("peak_at"),
                                     shown<&S::products>("products"),
                                     shown<&S::runtime>("runtime"),
                                     shown<&S::notes>("notes")};
};
template <>
struct Fields<PlannedMemory> {
  using S = PlannedMemory;
  static constexpr Field<S> all[] = {shown<&S::what>("what"), shown<&S::bytes>("bytes")};
};
template <>
struct Fields<PlannedSegment> {
  using S = PlannedSegment;
  static constexpr Field<S> all[] = {shown<&S::first>("first"), shown<&S::last>("last"), shown<&S::nodes>("nodes")};
};
template <>
struct Fields<PlannedFinetune> {
  using S = PlannedFinetune;
  static constexpr Field<S> all[] = {shown<&S::only_if_needed>("only_if_needed"),
                                     shown<&S::layers>("layers"),
                                     shown<&S::streamed>("streamed"),
                                     shown<&S::heaviest>("heaviest"),
                                     shown<&S::heaviest_bytes>("heaviest_bytes"),
                                     shown<&S::seconds>("seconds")};
};
template <>
struct Fields<PlannedDeviceLayer> {
  using S = PlannedDeviceLayer;
  static constexpr Field<S> all[] = {shown<&S::name>("name"), shown<&S::streamed>("streamed"),
                                     shown<&S::bytes>("bytes")};
};
template <>
struct Fields<PlannedDevice> {
  using S = PlannedDevice;
  static constexpr Field<S> all[] = {shown<&S::devices>("devices"), shown<&S::budget>("budget"),
                                     shown<&S::calibration_counters>("calibration_counters"),
                                     shown<&S::layers>("layers")};
};
template <>
struct Fields<Plan> {
  using S = Plan;
  static constexpr Field<S> all[] = {shown<&S::samples>("samples"),
                                     shown<&S::inputs>("inputs"),
                                     shown<&S::nodes_quantized>("nodes_quantized"),
                                     shown<&S::nodes_in_float>("nodes_in_float"),
                                     shown<&S::nodes_with_gates>("nodes_with_gates"),
                                     shown<&S::nodes_may_change>("nodes_may_change"),
                                     shown<&S::floats>("floats"),
                                     shown<&S::tensors_observed>("tensors_observed"),
                                     shown<&S::macs>("macs"),
                                     shown<&S::flops>("flops"),
                                     shown<&S::observed_elements>("observed_elements"),
                                     shown<&S::memory>("memory"),
                                     shown<&S::stages>("stages"),
                                     shown<&S::peak_memory>("peak_memory"),
                                     shown<&S::work_bytes>("work_bytes"),
                                     shown<&S::output_bytes>("output_bytes"),
                                     shown<&S::memory_budget>("memory_budget"),
                                     shown<&S::disk_budget>("disk_budget"),
                                     shown<&S::segments>("segments"),
                                     shown<&S::waiting_bytes>("waiting_bytes"),
                                     shown<&S::waiting_on_disk>("waiting_on_disk"),
                                     shown<&S::finetune>("finetune"),
                                     shown<&S::device>("device"),
                                     shown<&S::calibration_seconds>("calibration_seconds"),
                                     shown<&S::measuring_seconds>("measuring_seconds"),
                                     shown<&S::measuring_inferences>("measuring_inferences"),
                                     shown<&S::notes>("notes"),
                                     shown<&S::name>("name"),
                                     shown<&S::family>("family")};
};

}  // namespace detent::python
