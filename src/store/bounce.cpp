#include "store/bounce.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "store/payload_hash.h"

namespace detent::store {
namespace {

constexpr std::size_t kPiece = BounceBuffers::kPiece;
constexpr std::size_t kSlots = BounceBuffers::kSlots;

Error unreadable(const RecordOnDisk& record, const std::string& why) {
  return resource_error(fmt::format("cannot read '{}': {}", record.file.string(), why),
                        "choose a directory on another disk with --work-dir");
}

// One payload on its way. Pieces are read in any order and go on in their own: the checksum needs that.
class PayloadTransfer {
 public:
  PayloadTransfer(const RecordOnDisk& record, int fd, IoQueue& queue, BounceBuffers& buffers, void* to)
      : record_(record),
        fd_(fd),
        queue_(queue),
        buffers_(buffers),
        to_(static_cast<std::byte*>(to)),
        pieces_((record.size + kPiece - 1) / kPiece) {}
  PayloadTransfer(const PayloadTransfer&) = delete;
  PayloadTransfer& operator=(const PayloadTransfer&) = delete;
  // Reads and copies must not outlive it, whatever ended it.
  ~PayloadTransfer() {
    while (under_way_ > 0) finish_one();
    try {
      for (std::size_t slot = 0; slot < kSlots; ++slot) buffers_.wait(slot);
    } catch (const Error&) {  // the device failed, which has been told or will be by the next call
    }
  }

  void run() {
    while (passed_ < pieces_) {
      while (error_ == 0 && under_way_ < IoQueue::kDepth && started_ < std::min(pieces_, passed_ + kSlots)) start_one();
      finish_one();
      if (error_ != 0) throw unreadable(record_, errno_text(error_));
      if (cut_) throw unreadable(record_, "the file ends too soon");
      while (passed_ < started_ && arrived_[passed_ % kSlots]) pass_on();
    }
    for (std::size_t slot = 0; slot < kSlots; ++slot) buffers_.wait(slot);
    if (hash_.result() != record_.hash) throw unreadable(record_, "what was stored there is damaged");
  }

 private:
  std::size_t length(std::size_t piece) const {
    return static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, record_.size - piece * kPiece));
  }

  void start_one() {
    const std::size_t slot = started_ % kSlots;
    buffers_.wait(slot);
    arrived_[slot] = false;
    requests_[slot] = {fd_, false, record_.offset + started_ * kPiece, buffers_.slot(slot).first(length(started_))};
    queue_.start(requests_[slot]);
    ++under_way_;
    ++started_;
  }

  void finish_one() {
    const IoRequest& request = queue_.finish();
    --under_way_;
    if (request.error != 0) error_ = request.error;
    if (request.done < request.data.size()) cut_ = true;
    arrived_[static_cast<std::size_t>(&request - requests_.data())] = true;
  }

  void pass_on() {
    const std::size_t slot = passed_ % kSlots;
    hash_.add(requests_[slot].data);
    buffers_.upload(slot, length(passed_), to_ + passed_ * kPiece);
    ++passed_;
  }

  const RecordOnDisk& record_;
  const int fd_;
  IoQueue& queue_;
  BounceBuffers& buffers_;
  std::byte* const to_;
  const std::size_t pieces_;
  std::array<IoRequest, kSlots> requests_;
  std::array<bool, kSlots> arrived_{};
  std::size_t started_ = 0;  // pieces
  std::size_t passed_ = 0;   // pieces that went on to the device
  std::size_t under_way_ = 0;
  int error_ = 0;
  bool cut_ = false;
  PayloadHash hash_;
};

}  // namespace

BounceReader::BounceReader(DiskAccess access, BounceBuffers& buffers)
    : access_(access), buffers_(buffers), queue_(make_io_queue(access)) {}

void BounceReader::read(const RecordOnDisk& record, void* to) {
  if (record.size == 0) return;
  const UniqueFd file(::open(record.file.c_str(), O_RDONLY | O_CLOEXEC | open_flags(access_)));
  if (!file.valid()) throw unreadable(record, errno_text(errno));
  PayloadTransfer(record, file.get(), *queue_, buffers_, to).run();
}

}  // namespace detent::store
