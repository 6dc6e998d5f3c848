// Sessions of this process, as where the program `detent` is not installed: no other process is started on Windows.
#include "exec/guarded_session.h"

#include <fmt/format.h>

#include "exec/emit.h"

namespace detent::exec {

struct GuardedSession::Impl {
  Session session;
  std::vector<Port> inputs;
};

GuardedSession::GuardedSession(const Runtime& runtime, const std::filesystem::path& model, const GuardOptions& options)
    : impl_(std::make_unique<Impl>(
          Impl{Session::of_file(
                   runtime, model,
                   {options.optimizes ? SessionMode::deployed : SessionMode::inspect, options.threads, options.stop}),
               {}})) {
  impl_->inputs = impl_->session.inputs();
}

GuardedSession::GuardedSession(GuardedSession&&) noexcept = default;
GuardedSession::~GuardedSession() = default;

const std::vector<Port>& GuardedSession::inputs() const { return impl_->inputs; }

std::vector<data::Array> GuardedSession::run(std::span<const data::Array> inputs, const std::string& where) {
  return impl_->session.run(inputs, where);
}

PortsOf guarded_ports(const Runtime& runtime, const GuardOptions&) {
  return [&runtime](const onnx::Model& model, const EmitOptions& emitted, SessionMode mode) {
    const Session session(runtime, emit(model, emitted), fmt::format("model '{}'", model.path.string()), {mode, 1, {}});
    return Ports{session.inputs(), session.outputs()};
  };
}

// Without another process the runtime would die in this one: loading it here tells no more.
void check_survives(const Runtime&, const std::filesystem::path&, const GuardOptions&) {}

std::optional<int> guarded_socket() { return std::nullopt; }
int serve_guarded_session(int) { return 1; }

}  // namespace detent::exec
