// Requests through io_uring: one thread keeps many under way and hardly uses the processor.
#include "store/io_queue.h"

#ifdef DETENT_HAS_URING

#include <fmt/format.h>
#include <liburing.h>

#include <cerrno>

#include "base/error.h"
#include "store/buffers.h"

namespace detent::store {
namespace {

class UringQueue : public IoQueue {
 public:
  UringQueue() : refusal_(-::io_uring_queue_init(kDepth, &ring_, 0)) {}
  ~UringQueue() override {
    if (refusal_ == 0) ::io_uring_queue_exit(&ring_);
  }
  int refusal() const noexcept { return refusal_; }  // errno, or 0

  void start(IoRequest& request) override {
    request.error = injected_error(request);
    if (request.error == 0) {
      submit(request);
    } else {
      refused_.push(request);
    }
  }

  IoRequest& finish() override {
    if (!refused_.empty()) return refused_.pop();
    for (;;) {
      io_uring_cqe* completion = nullptr;
      const int code = -::io_uring_wait_cqe(&ring_, &completion);
      if (code == EINTR || code == EAGAIN) continue;
      if (code != 0) throw internal_error(fmt::format("io_uring failed: {}", errno_text(code)));
      auto* const request = static_cast<IoRequest*>(::io_uring_cqe_get_data(completion));
      const int result = completion->res;
      ::io_uring_cqe_seen(&ring_, completion);
      if (request == nullptr) continue;  // one that submit() made harmless
      if (add_result(*request, result)) return *request;
      submit(*request);
      if (request->error != 0) return refused_.pop();
    }
  }

 private:
  // Whether the request has ended. What is left of one that was done in part is asked for again.
  static bool add_result(IoRequest& request, int result) {
    if (result == -EINTR || result == -EAGAIN) return false;
    if (result < 0) {
      request.error = -result;
      return true;
    }
    request.done += static_cast<std::size_t>(result);
    return result == 0 || request.done == request.data.size() || request.done % kBlock != 0;
  }

  void submit(IoRequest& request) {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    if (entry == nullptr) throw internal_error("more requests under way than io_uring was asked for");
    const auto rest = request.data.subspan(request.done);
    const auto size = static_cast<unsigned>(rest.size());
    if (request.write) {
      ::io_uring_prep_write(entry, request.fd, rest.data(), size, request.offset + request.done);
    } else {
      ::io_uring_prep_read(entry, request.fd, rest.data(), size, request.offset + request.done);
    }
    ::io_uring_sqe_set_data(entry, &request);
    int code = 0;
    do {
      code = ::io_uring_submit(&ring_);
    } while (code == -EINTR || code == -EAGAIN || code == -EBUSY);
    if (code >= 0) return;
    // The entry stays in the ring: it must not touch memory when it is taken up later.
    ::io_uring_prep_nop(entry);
    ::io_uring_sqe_set_data(entry, nullptr);
    request.error = -code;
    refused_.push(request);
  }

  io_uring ring_{};
  int refusal_;
  RequestList refused_;
};

}  // namespace

std::unique_ptr<IoQueue> make_uring_queue(std::string& refusal) {
  auto queue = std::make_unique<UringQueue>();
  if (queue->refusal() == 0) return queue;
  refusal = errno_text(queue->refusal());
  return nullptr;
}

}  // namespace detent::store

#else

namespace detent::store {

std::unique_ptr<IoQueue> make_uring_queue(std::string& refusal) {
  refusal = "detent was built without liburing";
  return nullptr;
}

}  // namespace detent::store

#endif
