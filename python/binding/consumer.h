// A runtime that Python hands over.
#pragma once

#include <nanobind/nanobind.h>

#include "detent/verify.h"
#include "host.h"

namespace detent::python {

/// A consumer over an object with `name` and load(path) -> None, or a function of a list of arrays that returns one.
/// Both run in the thread of the host.
class PythonConsumer final : public Consumer {
 public:
  /// `runtime` must outlive the consumer.
  PythonConsumer(Host& host, nanobind::handle runtime);

  std::string name() const override { return name_; }
  Run load(const std::filesystem::path& model) override;

 private:
  Host& host_;
  nanobind::handle runtime_;
  std::string name_;
};

}  // namespace detent::python
