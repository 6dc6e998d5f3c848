// What AdaRound and AdaQuant in Gram form have in common on devices.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cuda/gram_rows.h"
#include "cuda/launch.h"
#include "cuda/step_kernels.h"

namespace detent::cuda {

/// A method's iterations for the rows of one device: recorded once as a graph, which is launched for each.
template <class Numbers>
class RecordedIterations {
 public:
  /// `numbers` of all iterations; they have to stay until the stream has been waited for.
  RecordedIterations(GramRows& rows, std::span<const Numbers> numbers)
      : rows_(rows), numbers_(rows.array<Numbers>(numbers.size())), iteration_(rows.array<unsigned>(1)) {
    upload<Numbers>(rows.device().stream(), numbers_, numbers);
  }

  const Numbers* numbers() const noexcept { return numbers_.data(); }
  /// Which iteration it is, on the device.
  const unsigned* iteration() const noexcept { return iteration_.data(); }

  /// Iterations [first, last), each of which is what `queue` queues. For `what` and `arrays` see GramRows::repeat().
  template <class Queue>
  void run(std::size_t first, std::size_t last, const char* what, std::size_t arrays,
           const solve::SolveControl& control, const Queue& queue) {
    const Stream& stream = rows_.device().stream();
    const auto number = static_cast<unsigned>(first);
    upload<unsigned>(stream, iteration_, std::span(&number, 1));
    stream.wait();
    const auto one = [this, queue, &stream] {
      queue();
      launch(stream, AdvanceKernel{iteration_.data()}, 1);
    };
    if (!graph_ && first < last) {
      one();  // not recorded: libraries load code when they are first used, which no graph can record
      stream.wait();
      graph_.emplace(stream, one);
      ++first;
    }
    if (first < last) rows_.repeat(*graph_, last - first, what, arrays, control);
  }

 private:
  GramRows& rows_;
  DeviceArray<Numbers> numbers_;
  DeviceArray<unsigned> iteration_;
  std::optional<Graph> graph_;
};

/// Calls copy(the host's values, array) for each of the four arrays of a method's variables, in the order of their
/// visit_state(), for the rows of one device.
template <class Variables, class Copy>
void copy_variables(Variables& variables, const GramRows& rows, const DeviceArray<float>* const (&arrays)[4],
                    const Copy& copy) {
  std::size_t i = 0;
  const auto visit = [&](std::vector<float>& all) {
    copy(std::span(all).subspan(rows.range().first * rows.fan_in(), rows.values()), *arrays[i++]);
  };
  variables.visit_state(visit);
}

/// A method's variables on the host and, as `Part`, the rows of each device. `Iterations` is the method's interface in
/// solve/layers/iterations.h.
template <class Iterations, class Variables, class Part>
class VariablesOnDevices : public Iterations {
 public:
  Variables& variables() final {
    if (!std::exchange(on_device_, false)) return variables_;
    for (const auto& part : parts_) {  // one after another: all write to the same variables
      part->rows().device().current();
      part->get(variables_);
    }
    return variables_;
  }
  void changed() final {
    for (const auto& part : parts_) {
      part->rows().device().current();
      part->put(variables_);
    }
    on_device_ = false;
  }

 protected:
  explicit VariablesOnDevices(const solve::QuantizedWeights& weights) : variables_(weights) {}

  /// `make(rows)` gives the part of a device. Afterwards it has the variables.
  template <class Make>
  void make_parts(std::span<const std::unique_ptr<GramRows>> rows, const Make& make) {
    parts_.resize(rows.size());
    for_each_device(rows.size(), [&](std::size_t i) {
      rows[i]->device().current();
      parts_[i] = make(*rows[i]);
    });
    changed();
  }
  /// Calls fn(part, its number) on a thread of each device.
  template <class Fn>
  void on_each(const Fn& fn) {
    for_each_device(parts_.size(), [&](std::size_t i) {
      parts_[i]->rows().device().current();
      fn(*parts_[i], i);
    });
  }
  void changed_on_device() noexcept { on_device_ = true; }
  /// As the host has them: the latest only after variables().
  Variables& on_host() noexcept { return variables_; }
  std::span<const std::unique_ptr<Part>> parts() const noexcept { return parts_; }

 private:
  Variables variables_;
  bool on_device_ = false;  // where the latest variables are
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace detent::cuda
