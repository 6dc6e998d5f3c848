// Work queued on a device: streams, events, and graphs that repeat a piece of it without the host's part.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "cuda/memory.h"

struct CUstream_st;
struct CUevent_st;

namespace detent::cuda {

/// A queue of the device that was current when it was made. Work of one stream runs in order. All calls throw device.
class Stream {
 public:
  Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  CUstream_st* handle() const noexcept { return handle_; }
  /// Returns when all queued work is done; errors of that work come out here.
  void wait() const;

  /// Queues a copy. The host's bytes must stay until it is done; without pinned memory the host waits, too.
  void upload(void* to, const void* from, std::size_t bytes) const;
  void download(void* to, const void* from, std::size_t bytes) const;
  void copy(void* to, const void* from, std::size_t bytes) const;  // within the device
  void clear(void* at, std::size_t bytes) const;                   // zeros

 private:
  CUstream_st* handle_ = nullptr;
};

template <class T>
void upload(const Stream& stream, const DeviceArray<T>& to, std::span<const T> from, std::size_t at = 0) {
  stream.upload(to.data() + at, from.data(), from.size_bytes());
}
template <class T>
void download(const Stream& stream, std::span<T> to, const DeviceArray<T>& from, std::size_t at = 0) {
  stream.download(to.data(), from.data() + at, to.size_bytes());
}
template <class T>
void clear(const Stream& stream, const DeviceArray<T>& array) {
  stream.clear(array.data(), array.size() * sizeof(T));
}

/// A moment in a stream.
class Event {
 public:
  /// `timed`: milliseconds_since() works.
  explicit Event(bool timed = false);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  void record(const Stream& stream);
  /// Work queued in `stream` from now on waits for the moment recorded last; nothing if none was.
  void hold(const Stream& stream) const;
  /// The host waits for it.
  void wait() const;
  /// Both were recorded and waited for.
  double milliseconds_since(const Event& earlier) const;

 private:
  CUevent_st* handle_ = nullptr;
};

/// Work that is queued many times. `work` is called once and queues it in the stream that it is given; nothing of it
/// runs before launch().
class Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& work);
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  ~Graph();

  void launch(const Stream& stream) const;

 private:
  struct Recorded;
  std::unique_ptr<Recorded> recorded_;
};

}  // namespace detent::cuda
