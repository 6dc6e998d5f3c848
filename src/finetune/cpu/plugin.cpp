// The CPU's kernels in terms of oneDNN: a library of its own. All that differs between its versions 2 and 3 is here.
#include <fmt/format.h>
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <utility>

#include "base/error.h"
#include "finetune/kernels.h"

namespace detent::finetune {
namespace {

using dnnl::memory;

/// oneDNN would start threads of its own; ours each run it alone. The setting belongs to the calling thread.
void stay_on_this_thread() noexcept { omp_set_num_threads(1); }

Error failed(const char* doing, const std::string& reason) {
  return device_error(fmt::format("oneDNN failed to {}: {}", doing, reason));
}

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

memory::desc plain(const memory::dims& dims) {
  memory::dims strides(dims.size(), 1);
  for (std::size_t d = dims.size() - 1; d > 0; --d) strides[d - 1] = strides[d] * dims[d];
  return {dims, memory::data_type::f32, strides};
}

memory::desc any(const memory::dims& dims) { return {dims, memory::data_type::f32, memory::format_tag::any}; }

memory::desc scratchpad_of(const dnnl::primitive_desc_base& made) {
#if DNNL_VERSION_MAJOR >= 3
  return made.scratchpad_desc();
#else
  return made.query_md(dnnl::query::scratchpad_md);
#endif
}

/// What both kinds of convolution are described by.
struct Shapes {
  memory::dims source, weights, target, strides, dilations, pads_begin, pads_end;

  Shapes(const LayerGeometry& g, const std::vector<std::int64_t>& input)
      : source(input),
        target(g.output_shape(input)),
        strides(g.strides),
        pads_begin(g.pads_begin),
        pads_end(g.pads_end) {
    if (g.groups > 1) weights.push_back(g.groups);
    weights.insert(weights.end(), {g.outputs / g.groups, g.inputs / g.groups});
    weights.insert(weights.end(), g.kernel.begin(), g.kernel.end());
    for (const std::int64_t d : g.dilations) dilations.push_back(d - 1);  // oneDNN counts the gaps
    // oneDNN has no output padding; it is as if that much less were cut off.
    for (std::size_t a = 0; a < g.output_padding.size(); ++a) pads_end[a] -= g.output_padding[a];
  }
};

/// One direction of a convolution: the primitive, and what it needs in memory beside the caller's tensors.
struct Direction {
  dnnl::primitive primitive;
  memory::desc source, weights, target;  // the layouts that it asked for
  memory scratchpad;

  template <class Made>
  static Direction of(const Made& made, const memory::desc& weights, const memory::desc& target) {
    return {dnnl::primitive(made), made.src_desc(), weights, target, memory(scratchpad_of(made), engine())};
  }
};

template <class Forward, class Backward>
class DnnlConvolution final : public Convolution {
 public:
  DnnlConvolution(const Shapes& shapes, dnnl::algorithm algorithm)
      : plain_source_(plain(shapes.source)),
        plain_weights_(plain(shapes.weights)),
        plain_target_(plain(shapes.target)) {
    const auto source = any(shapes.source);
    const auto weights = any(shapes.weights);
    const auto target = any(shapes.target);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(
        dnnl::scratchpad_mode::user);  // the library's own belongs to the thread that made it
    constexpr auto kTraining = dnnl::prop_kind::forward_training;
#if DNNL_VERSION_MAJOR >= 3
    const typename Forward::primitive_desc forward(engine(), kTraining, algorithm, source, weights, target,
                                                   shapes.strides, shapes.dilations, shapes.pads_begin, shapes.pads_end,
                                                   attributes);
    const typename Backward::primitive_desc backward(engine(), algorithm, source, weights, target, shapes.strides,
                                                     shapes.dilations, shapes.pads_begin, shapes.pads_end, forward,
                                                     attributes);
#else
    const typename Forward::primitive_desc forward(
        typename Forward::desc(kTraining, algorithm, source, weights, target, shapes.strides, shapes.dilations,
                               shapes.pads_begin, shapes.pads_end),
        attributes, engine());
    const typename Backward::primitive_desc backward(
        typename Backward::desc(algorithm, source, weights, target, shapes.strides, shapes.dilations, shapes.pads_begin,
                                shapes.pads_end),
        attributes, engine(), forward);
#endif
    forward_ = Direction::of(forward, forward.weights_desc(), forward.dst_desc());
    backward_ = Direction::of(backward, backward.diff_weights_desc(), backward.diff_dst_desc());
  }

  void forward(const float* input, const float* weights, float* output) override {
    stay_on_this_thread();
    try {
      const memory result = place(plain_target_, output, forward_.target, target_);
      forward_.primitive.execute(stream_,
                                 {{DNNL_ARG_SRC, arranged(plain_source_, input, forward_.source, source_)},
                                  {DNNL_ARG_WEIGHTS, arranged(plain_weights_, weights, forward_.weights, weights_)},
                                  {DNNL_ARG_DST, result},
                                  {DNNL_ARG_SCRATCHPAD, forward_.scratchpad}});
      give_back(result, plain_target_, output);
    } catch (const dnnl::error& e) {
      throw failed("run a convolution", e.what());
    }
  }

  void backward_weights(const float* input, const float* output_gradient, float* weight_gradient) override {
    stay_on_this_thread();
    try {
      const memory result = place(plain_weights_, weight_gradient, backward_.weights, weights_);
      backward_.primitive.execute(
          stream_, {{DNNL_ARG_SRC, arranged(plain_source_, input, backward_.source, source_)},
                    {DNNL_ARG_DIFF_DST, arranged(plain_target_, output_gradient, backward_.target, target_)},
                    {DNNL_ARG_DIFF_WEIGHTS, result},
                    {DNNL_ARG_SCRATCHPAD, backward_.scratchpad}});
      give_back(result, plain_weights_, weight_gradient);
    } catch (const dnnl::error& e) {
      throw failed("run a convolution's gradient", e.what());
    }
  }

 private:
  static memory wrap(const memory::desc& layout, const float* values) {
    return {layout, engine(), const_cast<float*>(values)};  // oneDNN's type for inputs, too
  }

  /// The caller's values in the layout that was asked for: themselves, or a copy in `kept`.
  memory arranged(const memory::desc& given, const float* values, const memory::desc& wanted, memory& kept) {
    memory from = wrap(given, values);
    if (given == wanted) return from;
    const memory to = place(given, nullptr, wanted, kept);
    reorder(from, to);
    return to;
  }

  /// Where a result in the wanted layout goes.
  static memory place(const memory::desc& given, float* values, const memory::desc& wanted, memory& kept) {
    if (given == wanted) return wrap(given, values);
    if (!kept || kept.get_desc() != wanted) kept = memory(wanted, engine());
    return kept;
  }

  void give_back(const memory& result, const memory::desc& given, float* values) {
    stream_.wait();
    if (result.get_desc() == given) return;
    reorder(result, wrap(given, values));
    stream_.wait();
  }

  void reorder(const memory& from, const memory& to) {
    dnnl::reorder(from, to).execute(stream_, const_cast<memory&>(from), const_cast<memory&>(to));
  }

  memory::desc plain_source_, plain_weights_, plain_target_;
  Direction forward_, backward_;
  memory source_, weights_, target_;  // copies in the layout last asked for
  dnnl::stream stream_{engine()};
};

class DnnlKernels final : public Kernels {
 public:
  void gemm(const Gemm& shape, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
            std::int64_t ldc) const override {
    if (shape.m == 0 || shape.n == 0) return;
    stay_on_this_thread();
    const auto status = dnnl_sgemm(shape.transpose_a ? 'T' : 'N', shape.transpose_b ? 'T' : 'N', shape.m, shape.n,
                                   shape.k, shape.alpha, a, lda, b, ldb, shape.beta, c, ldc);
    if (status != dnnl_success) throw failed("multiply matrices", fmt::format("status {}", static_cast<int>(status)));
  }

  std::unique_ptr<Convolution> convolution(const LayerGeometry& geometry,
                                           const std::vector<std::int64_t>& input_shape) const override {
    stay_on_this_thread();
    try {
      const Shapes shapes(geometry, input_shape);
      if (geometry.kind == LayerKind::transposed) {
        return std::make_unique<DnnlConvolution<dnnl::deconvolution_forward, dnnl::deconvolution_backward_weights>>(
            shapes, dnnl::algorithm::deconvolution_direct);
      }
      return std::make_unique<DnnlConvolution<dnnl::convolution_forward, dnnl::convolution_backward_weights>>(
          shapes, dnnl::algorithm::convolution_direct);
    } catch (const dnnl::error& e) {
      throw failed("prepare a convolution", e.what());
    }
  }
};

}  // namespace
}  // namespace detent::finetune

extern "C" __attribute__((visibility("default"))) const detent::finetune::Kernels* detent_kernels(int version) {
  static const detent::finetune::DnnlKernels kernels;
  return version == detent::finetune::kKernelsVersion ? &kernels : nullptr;
}
