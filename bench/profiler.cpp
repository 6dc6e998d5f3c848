// What measuring costs a run: CPU time of the sampling thread (CPU beside time), and the wait for that thread at the
// end.
#include "profile/profiler.h"

#include <benchmark/benchmark.h>

#include <chrono>
#include <thread>

namespace {

using detent::profile::Profiler;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

void sampling(benchmark::State& state) {
  Profiler profiler;
  for (auto _ : state) std::this_thread::sleep_for(400ms);
}
BENCHMARK(sampling)->MeasureProcessCPUTime()->UseRealTime()->Iterations(5)->Unit(benchmark::kMillisecond);

void finish(benchmark::State& state) {
  for (auto _ : state) {
    Profiler profiler;
    std::this_thread::sleep_for(2ms);
    const auto begin = Clock::now();
    profiler.finish();
    state.SetIterationTime(std::chrono::duration<double>(Clock::now() - begin).count());
  }
}
BENCHMARK(finish)->UseManualTime()->Iterations(30)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
