// Written by scripts/generate_options.py from include/detent/; do not edit.
#pragma once

// clang-format off
namespace detent::config {

#define M(member) field(#member, &S::member)
#define N(member, json) field(#member, &S::member, json)

template <> struct Fields<Latency> { using S = Latency; static constexpr std::tuple all{M(runs), N(min, "min_seconds"),
  N(median, "median_seconds"), N(p90, "p90_seconds"), N(cpu, "cpu_seconds"), M(ratio), M(ratio_low), M(ratio_high),
  M(cpu_ratio), N(waiting, "waiting_share")}; };
template <> struct Fields<StageReport> { using S = StageReport; static constexpr std::tuple all{M(name), M(seconds),
  N(peak_memory, "peak_memory_bytes")}; };
template <> struct Fields<TransformerLayer> { using S = TransformerLayer; static constexpr std::tuple all{M(attention),
  M(kind), M(inputs), M(output), M(heads), M(kv_heads), M(head_size), M(mlp), M(inner), M(experts), M(mlp_nodes),
  M(attention_bytes), M(mlp_bytes)}; };
template <> struct Fields<VocabularyWeight> { using S = VocabularyWeight; static constexpr std::tuple all{M(node),
  M(weight), M(entries), M(width), M(bytes)}; };
template <> struct Fields<Transformer> { using S = Transformer; static constexpr std::tuple all{M(layers), M(hidden),
  M(embedding), M(head), N(is_tied, "tied")}; };
template <> struct Fields<TensorParams> { using S = TensorParams; static constexpr std::tuple all{M(scale),
  M(zero_point), N(range_min, "min"), N(range_max, "max"), M(method)}; };
template <> struct Fields<LayerTuning> { using S = LayerTuning; static constexpr std::tuple all{M(name), M(op_type),
  M(streamed), M(tuned), N(seen, ""), M(error_before), M(error_after), M(seconds)}; };
template <> struct Fields<BlockedWeight> { using S = BlockedWeight; static constexpr std::tuple all{M(name), M(node),
  M(op_type), M(bits), M(block_size), M(rows), M(columns), M(method), M(sqnr_db), M(output_error), M(dense_error),
  M(input_exponent)}; };
template <> struct Fields<PlannedWeight> { using S = PlannedWeight; static constexpr std::tuple all{M(name), M(node),
  M(bits), M(bytes), M(error)}; };
template <> struct Fields<MeasuredSize> { using S = MeasuredSize; static constexpr std::tuple all{M(size), M(value)}; };
template <> struct Fields<BitsPlan> { using S = BitsPlan; static constexpr std::tuple all{M(max_size), M(size),
  M(error), M(weights), M(reached), M(tried)}; };
template <> struct Fields<Sensitivity> { using S = Sensitivity; static constexpr std::tuple all{M(value), M(node),
  M(is_weight), M(error)}; };
template <> struct Fields<EqualizedValue> { using S = EqualizedValue; static constexpr std::tuple all{M(value),
  M(error_before), M(error_after)}; };
template <> struct Fields<MethodChoice> { using S = MethodChoice; static constexpr std::tuple all{M(value), M(method),
  M(error_before), M(error_after)}; };
template <> struct Fields<FallbackNode> { using S = FallbackNode; static constexpr std::tuple all{M(node),
  M(error_share), M(macs_share)}; };
template <> struct Fields<TunedWeights> { using S = TunedWeights; static constexpr std::tuple all{M(error_before),
  M(error_after), M(kept)}; };
template <> struct Fields<ChannelGroup> { using S = ChannelGroup; static constexpr std::tuple all{M(output), M(axis),
  M(first), M(last), M(sqnr_db)}; };
template <> struct Fields<AccuracyResult> { using S = AccuracyResult; static constexpr std::tuple all{M(samples),
  M(sample_names), M(sqnr_db), M(worst_sample_db), M(cosine), M(lost_channels), M(worst_channels), M(rounded_db),
  M(score), M(integer_macs), M(wide_macs), M(weights_share), M(tuned), M(equalized), M(methods), M(float_nodes),
  M(wide_nodes), M(sensitivities)}; };
template <> struct Fields<LatencyChange> { using S = LatencyChange; static constexpr std::tuple all{M(before), M(after),
  M(threads), M(samples), M(synthetic), M(of_target)}; };
template <> struct Fields<RotatedStream> { using S = RotatedStream; static constexpr std::tuple all{M(error_before),
  M(error_after), M(kept)}; };
template <> struct Fields<KvScales> { using S = KvScales; static constexpr std::tuple all{M(layer), M(keys), M(values)};
  };
template <> struct Fields<FloatConversion> { using S = FloatConversion; static constexpr std::tuple all{M(nodes),
  M(nodes_kept), M(casts), M(constants)}; };
template <> struct Fields<Outcome> { using S = Outcome; static constexpr std::tuple all{M(answer), M(headline),
  M(reasons)}; };
template <> struct Fields<QuantizeResult> { using S = QuantizeResult; static constexpr std::tuple all{M(outcome),
  M(samples), N(repeated_samples, ""), M(model_bytes_before), M(model_bytes_after), M(nodes_quantized),
  M(nodes_in_float), M(faster_in_float), M(activations), M(accuracy), M(latency), M(weights), M(bits_plan), M(rotated),
  M(kv_scales), M(floats), M(layers), M(notes), N(conditions, ""), M(stages), N(peak_memory, "peak_memory_bytes"),
  M(transformer), N(family, ""), N(rank, ""), N(ranks, ""), N(received_bytes, "")}; };
template <> struct Fields<FamilyMember> { using S = FamilyMember; static constexpr std::tuple all{M(name), M(output),
  M(result)}; };
template <> struct Fields<CalibrateResult> { using S = CalibrateResult; static constexpr std::tuple all{M(samples),
  M(tensors), M(output_bytes), N(rank, ""), M(ranks), M(notes), M(stages), N(peak_memory, "peak_memory_bytes")}; };
template <> struct Fields<Fidelity> { using S = Fidelity; static constexpr std::tuple all{M(name), M(made_by),
  M(sqnr_db), M(cosine), M(max_abs), N(worst_sample_db, ""), M(reason), M(suggestion)}; };
template <> struct Fields<NextTokens> { using S = NextTokens; static constexpr std::tuple all{M(positions),
  M(float_perplexity), M(perplexity), M(agreement), M(kl_divergence)}; };
template <> struct Fields<Comparison> { using S = Comparison; static constexpr std::tuple all{M(samples),
  M(sample_names), M(next_tokens), M(outputs), M(layers), M(notes)}; };
template <> struct Fields<ValueReport> { using S = ValueReport; static constexpr std::tuple all{M(name), M(type),
  M(shape)}; };
template <> struct Fields<LayerReport> { using S = LayerReport; static constexpr std::tuple all{M(name), M(op_type),
  M(parameters), M(parameter_bytes), M(activation_bytes), M(macs), M(flops), M(output_shape), M(finetune_bytes)}; };
template <> struct Fields<QuantizedProduct> { using S = QuantizedProduct; static constexpr std::tuple all{M(name),
  M(op_type), M(runs_as), M(in_float)}; };
template <> struct Fields<Inspection> { using S = Inspection; static constexpr std::tuple all{M(ir_version), M(opsets),
  M(inputs), M(outputs), M(op_types), M(layers), N(heaviest, ""), M(parameters), M(parameter_bytes),
  M(activation_bytes), M(macs), M(peak_activation_bytes), N(peak_at, ""), M(products), N(runtime, ""), M(transformer),
  M(notes)}; };
template <> struct Fields<CheckedNode> { using S = CheckedNode; static constexpr std::tuple all{M(name), M(op_type),
  M(verdict), M(on_cpu), M(precision), M(rule), M(suggestion), M(macs)}; };
template <> struct Fields<CheckResult> { using S = CheckResult; static constexpr std::tuple all{M(target),
  M(target_reason), M(nodes), M(accepted), M(falls_back), M(refused), M(macs), M(integer_macs), M(partitions),
  M(problems)}; };
template <> struct Fields<VerifiedLayer> { using S = VerifiedLayer; static constexpr std::tuple all{M(name), M(made_by),
  M(quantized), M(elements), M(max_steps), M(share), M(share_over_one), M(exact), M(reason)}; };
template <> struct Fields<VerifiedOutput> { using S = VerifiedOutput; static constexpr std::tuple all{M(reference),
  M(deployed), M(consumer_sqnr_db)}; };
template <> struct Fields<Verification> { using S = Verification; static constexpr std::tuple all{M(target),
  M(target_reason), M(consumer), M(samples), M(outputs), M(layers), M(max_steps), M(latency), M(notes)}; };
template <> struct Fields<OperatorTime> { using S = OperatorTime; static constexpr std::tuple all{M(op_type), M(nodes),
  M(seconds), M(share)}; };
template <> struct Fields<BenchedModel> { using S = BenchedModel; static constexpr std::tuple all{M(model), M(bytes),
  M(load_seconds), N(latency, ""), N(peak_memory, "peak_memory_bytes"), M(operators)}; };
template <> struct Fields<BenchResult> { using S = BenchResult; static constexpr std::tuple all{M(models), M(threads),
  M(samples), M(synthetic), M(runtime), M(notes)}; };
template <> struct Fields<SearchPoint> { using S = SearchPoint; static constexpr std::tuple all{M(name), M(single),
  M(node_formats), M(command), M(sqnr_db), M(error), M(expected_error), M(value), M(seconds), M(expected_seconds),
  M(bytes), M(on_front), M(chosen), M(written)}; };
template <> struct Fields<ServingMachine> { using S = ServingMachine; static constexpr std::tuple all{M(machine),
  M(model), M(seconds), M(instances), M(requests), N(peak_memory, "peak_memory_bytes"), M(price), M(needed)}; };
template <> struct Fields<SearchResult> { using S = SearchResult; static constexpr std::tuple all{M(points),
  M(machines), M(candidates), M(samples), M(inferences), M(out_of_time), M(notes), M(stages), N(peak_memory,
  "peak_memory_bytes"), N(rank, ""), N(ranks, "")}; };
template <> struct Fields<PlannedMemory> { using S = PlannedMemory; static constexpr std::tuple all{M(what), M(bytes)};
  };
template <> struct Fields<PlannedSegment> { using S = PlannedSegment; static constexpr std::tuple all{M(first), M(last),
  M(nodes)}; };
template <> struct Fields<PlannedFinetune> { using S = PlannedFinetune; static constexpr std::tuple
  all{M(only_if_needed), M(layers), M(streamed), M(heaviest), M(heaviest_bytes), M(seconds)}; };
template <> struct Fields<PlannedDeviceLayer> { using S = PlannedDeviceLayer; static constexpr std::tuple all{M(name),
  M(streamed), M(bytes)}; };
template <> struct Fields<PlannedDevice> { using S = PlannedDevice; static constexpr std::tuple all{M(devices),
  N(budget, "budget_bytes"), N(calibration_counters, "calibration_counters_bytes"), M(layers)}; };
template <> struct Fields<PlannedShare> { using S = PlannedShare; static constexpr std::tuple all{M(what),
  M(shared_seconds), M(own_seconds), M(parts), M(exchanged_bytes), M(gathered_bytes)}; };
template <> struct Fields<Plan> { using S = Plan; static constexpr std::tuple all{M(samples), N(inputs, ""),
  M(nodes_quantized), M(nodes_in_float), M(nodes_with_gates), M(nodes_may_change), M(floats), M(tensors_observed),
  M(macs), M(flops), M(observed_elements), M(memory), M(stages), N(peak_memory, "peak_memory_bytes"), N(work_bytes,
  "work_dir_bytes"), M(output_bytes), N(memory_budget, "memory_budget_bytes"), N(disk_budget, "disk_budget_bytes"),
  M(segments), M(waiting_bytes), N(waiting_on_disk, "waiting_on_disk_bytes"), M(finetune), M(device),
  M(calibration_seconds), M(measuring_seconds), M(measuring_inferences), N(shares, ""), M(notes), M(transformer),
  N(name, ""), N(family, "")}; };

#undef M
#undef N

}  // namespace detent::config
// clang-format on
