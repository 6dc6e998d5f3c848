// Queues whose work is done at once, devices that count to eight, and graphs that remember what to call.
#include "cuda/stream.h"

#include <chrono>
#include <cstring>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/on_host/clock.h"

struct CUevent_st {
  double milliseconds = 0;
};

namespace detent::cuda {

Stream::Stream() = default;
Stream::~Stream() = default;
void Stream::wait() const {}
void Stream::upload(void* to, const void* from, std::size_t bytes) const { copy(to, from, bytes); }
void Stream::download(void* to, const void* from, std::size_t bytes) const { copy(to, from, bytes); }
void Stream::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void Stream::clear(void* at, std::size_t bytes) const {
  if (bytes > 0) std::memset(at, 0, bytes);
}

std::function<double()>& event_clock() {
  static std::function<double()> clock = [] {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  return clock;
}

Event::Event(bool) : handle_(std::make_unique<CUevent_st>().release()) {}
Event::~Event() { const std::unique_ptr<CUevent_st> gone(handle_); }
void Event::record(const Stream&) { handle_->milliseconds = event_clock()(); }
void Event::hold(const Stream&) const {}
void Event::wait() const {}
double Event::milliseconds_since(const Event& earlier) const {
  return handle_->milliseconds - earlier.handle_->milliseconds;
}

struct Graph::Recorded {
  std::function<void()> work;
};
Graph::Graph(const Stream&, const std::function<void()>& work) : recorded_(std::make_unique<Recorded>(work)) {}
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;
void Graph::launch(const Stream&) const { recorded_->work(); }

int device_count();  // for the tests
bool has_plain_products();

DeviceFacts facts_of(int number) {
  make_current(number);
  return {"host", 4, std::uint64_t{2} << 30, "CPUExecutionProvider", "Cpu"};
}
int device_count() { return 8; }
bool has_plain_products() { return true; }

void make_current(int number) {
  if (number >= 8) throw device_error("the GPU failed to be used: there are eight");
}

}  // namespace detent::cuda
