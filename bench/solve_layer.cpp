// detent's solvers on one layer that a script wrote down: solve_layer PROBLEM OUT nearest|adaround|adaquant|gptq
// gram|streamed ITERATIONS BATCH THREADS. What the files hold: bench/adaround_reference.py. Prints the seconds it took.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "solve/algebra/kernels.h"
#include "solve/layers/input_form.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/solver.h"
#include "solve/layers/streamed.h"

namespace {

using namespace detent::solve;

class Reader {
 public:
  explicit Reader(const char* path) : file_(path, std::ios::binary) {
    if (!file_) throw std::runtime_error(std::string("cannot open ") + path);
  }
  std::int64_t integer() { return values<std::int64_t>(1)[0]; }
  template <class T>
  std::vector<T> values(std::int64_t count) {
    std::vector<T> found(static_cast<std::size_t>(count));
    file_.read(reinterpret_cast<char*>(found.data()), static_cast<std::streamsize>(found.size() * sizeof(T)));
    if (!file_) throw std::runtime_error("the problem ends too early");
    return found;
  }

 private:
  std::ifstream file_;
};

struct Samples : LayerSamples {
  Shape shape;
  std::vector<std::vector<float>> inputs, targets;
  std::size_t count() const override { return inputs.size(); }
  SampleRef get(std::size_t i) override { return {shape, inputs[i], {}, targets[i], {}}; }
};

std::int64_t elements(const Shape& shape) {
  std::int64_t count = 1;
  for (const auto d : shape) count *= d;
  return count;
}

struct Problem {
  LayerGeometry geometry;
  QuantizedWeights weights;
  std::vector<float> bias;
  Samples samples;
};

Problem read(const char* path) {
  Reader file(path);
  Problem p;
  auto& g = p.geometry;
  const std::int64_t rank = file.integer();  // spatial axes; 0: a product
  g.kind = rank == 0 ? LayerKind::product : LayerKind::convolution;
  g.inputs = file.integer();
  g.outputs = file.integer();
  g.groups = file.integer();
  for (auto* list : {&g.kernel, &g.strides, &g.dilations, &g.pads_begin, &g.pads_end})
    *list = file.values<std::int64_t>(rank);
  p.weights.lowest = static_cast<std::int32_t>(file.integer());
  p.weights.highest = static_cast<std::int32_t>(file.integer());
  const std::int64_t samples = file.integer();
  p.samples.shape = file.values<std::int64_t>(rank == 0 ? 2 : rank + 2);
  p.weights.rows = static_cast<std::size_t>(g.outputs);
  p.weights.fan_in = static_cast<std::size_t>(g.fan_in());
  p.weights.values = file.values<float>(g.outputs * g.fan_in());
  p.weights.scale = file.values<float>(g.outputs);
  p.weights.zero.assign(p.weights.rows, 0);
  p.bias = file.values<float>(g.outputs);
  const auto outputs = elements(g.output_shape(p.samples.shape));
  for (std::int64_t i = 0; i < samples; ++i) {
    p.samples.inputs.push_back(file.values<float>(elements(p.samples.shape)));
    p.samples.targets.push_back(file.values<float>(outputs));
  }
  return p;
}

Solution solve_with(Problem& p, const std::string& rounding, bool gram, const detent::FinetuneConfig& config,
                    const SolveControl& control) {
  if (rounding == "nearest") return nearest(p.weights, p.bias);
  if (!gram) return solve_streamed(p.weights, p.geometry, p.bias, p.samples, config, cpu_kernels(), control);
  FormAccumulator sums(p.geometry, cpu_kernels(), control.threads, config, p.samples.count());
  for (std::size_t i = 0; i < p.samples.count(); ++i)
    sums.add(p.samples.shape, p.samples.inputs[i], p.samples.targets[i]);
  return solve(p.weights, sums.take(), p.bias, config, cpu_kernels(), control);
}

int run(char** argv) {
  Problem p = read(argv[1]);
  const std::string rounding = argv[3];
  const std::map<std::string, detent::WeightSolver> roundings{{"nearest", detent::WeightSolver::nearest},
                                                              {"adaround", detent::WeightSolver::adaround},
                                                              {"adaquant", detent::WeightSolver::adaquant},
                                                              {"gptq", detent::WeightSolver::gptq}};
  detent::FinetuneConfig config;
  config.solver = roundings.at(rounding);
  config.num_iterations = std::stoul(argv[5]);
  config.batch_size = std::stoul(argv[6]);
  SolveControl control;
  control.threads = std::stoul(argv[7]);
  cpu_kernels();
  const auto start = std::chrono::steady_clock::now();
  const Solution solution = solve_with(p, rounding, std::string(argv[4]) == "gram", config, control);
  std::printf("%f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  std::ofstream out(argv[2], std::ios::binary);
  out.write(reinterpret_cast<const char*>(solution.integers.data()),
            static_cast<std::streamsize>(solution.integers.size() * sizeof(std::int32_t)));
  return out ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 8) return run(argv);
    std::fputs("solve_layer PROBLEM OUT ROUNDING FORM ITERATIONS BATCH THREADS\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 1;
}
