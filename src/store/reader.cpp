#include "store/reader.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/failure.h"

namespace detent::store {
namespace {

constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;

std::shared_ptr<const Error> shared(Error error) { return std::make_shared<const Error>(std::move(error)); }

}  // namespace

Reader::Reader(std::function<DiskAccess()> access, BufferPool& buffers)
    : access_choice_(std::move(access)),
      buffers_(buffers),
      pieces_(IoQueue::kDepth),
      no_memory_(shared(resource_error("no memory for reading intermediate tensors from disk",
                                       "free some memory, or lower --memory-budget"))) {
  for (Piece& piece : pieces_) free_.push_back(&piece);
  thread_ = std::thread([this] { run(); });
}

Reader::~Reader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Reader::push(std::shared_ptr<ReadJob> job, bool urgent) {
  {
    const std::lock_guard lock(mutex_);
    if (urgent) {
      jobs_.push_front(std::move(job));
    } else {
      jobs_.push_back(std::move(job));
    }
  }
  wake_.notify_one();
}

void Reader::hurry(const std::shared_ptr<ReadJob>& job) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(jobs_.begin(), jobs_.end(), job);
  if (found != jobs_.end()) std::rotate(jobs_.begin(), found, found + 1);
}

void Reader::run() {
  while (wait_for_work()) {
    start_some();
    if (free_.size() < pieces_.size()) finish_one();
  }
}

// False at the end, when nothing is under way.
bool Reader::wait_for_work() {
  if (current_ || free_.size() < pieces_.size()) return true;
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
  return !stopping_;
}

void Reader::start_some() {
  while (!free_.empty()) {
    if (!current_) {
      const std::lock_guard lock(mutex_);
      if (stopping_ || jobs_.empty()) return;
      current_ = std::move(jobs_.front());
      jobs_.pop_front();
    }
    const std::shared_ptr<ReadJob> job = current_;
    if (job->started == 0 && !begin(job)) {
      current_.reset();
      continue;
    }
    Piece& piece = *free_.back();
    const std::uint64_t length = std::min(kPiece, job->extent.size - job->started);
    piece.job = job;
    piece.index = job->started / kPiece;
    piece.request = {job->file->descriptor(access_), false, job->extent.offset + job->started,
                     job->buffer->bytes().subspan(job->started, length)};
    free_.pop_back();
    ++job->in_flight;
    job->started += length;
    if (job->started == job->extent.size) current_.reset();
    queue_->start(piece.request);
  }
}

// False when the job has come to its end already.
bool Reader::begin(const std::shared_ptr<ReadJob>& job) {
  if (job->dropped) {
    job->result.set_value(std::nullopt);
    return false;
  }
  try {
    if (!queue_) {
      access_ = access_choice_();
      queue_ = make_io_queue(access_);
    }
    const int fd = job->file->descriptor(access_);
    if (access_ == DiskAccess::buffered) {
      // All of it may come at once; by itself the system reads ahead in small steps.
      ::posix_fadvise(fd, static_cast<off_t>(job->extent.offset), static_cast<off_t>(job->extent.size),
                      POSIX_FADV_WILLNEED);
    }
    job->buffer = buffers_.take(job->extent.size);
    job->arrived.resize((job->extent.size + kPiece - 1) / kPiece);
    job->hash.emplace();
    return true;
  } catch (...) {  // no threads among them
    note_failure(*job);
  }
  job->result.set_value(std::nullopt);
  return false;
}

// Of the exception that is being handled.
void Reader::note_failure(ReadJob& job) const noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    job.failure = no_memory_;
  } catch (...) {
    try {
      job.failure = shared(as_error(std::current_exception()));
    } catch (const std::bad_alloc&) {  // not even for saying what it was
      job.failure = no_memory_;
    }
  }
}

void Reader::finish_one() {
  const IoRequest& request = queue_->finish();
  bytes_read_ += request.done;
  Piece& piece = *std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& p) { return &p.request == &request; });
  const std::shared_ptr<ReadJob> job = std::move(piece.job);
  --job->in_flight;
  if (request.error != 0) job->error = request.error;
  if (request.done < request.data.size()) job->cut = true;
  job->arrived[piece.index] = true;
  free_.push_back(&piece);
  const bool hopeless = job->error != 0 || job->cut;
  if (hopeless) {
    job->started = job->extent.size;
    if (current_ == job) current_.reset();
  } else {
    hash_arrived(*job);
  }
  if (job->in_flight == 0 && job->started == job->extent.size) complete(*job);
}

void Reader::hash_arrived(ReadJob& job) {
  while (job.hashed < job.extent.size && job.arrived[job.hashed / kPiece]) {
    const std::uint64_t end = std::min(job.extent.size, (job.hashed / kPiece + 1) * kPiece);
    const std::uint64_t begin = std::clamp(job.extent.header_size, job.hashed, end);
    job.hash->add(job.buffer->bytes().subspan(begin, end - begin));
    job.hashed = end;
  }
}

void Reader::complete(ReadJob& job) {
  std::optional<Record> record;
  try {
    if (job.error != 0) {
      throw resource_error(
          fmt::format("cannot read '{}' (sample {}): {}", job.file->path().string(), job.sample, errno_text(job.error)),
          "choose a directory on another disk with --work-dir");
    } else if (!job.cut) {
      const auto header = read_header(job.buffer->bytes().first(job.extent.header_size), job.extent.offset);
      const bool right = header && header->sample == job.sample && header->extent.size == job.extent.size &&
                         header->payload_hash == job.hash->result();
      if (right) record = to_record(*header, job.buffer);
    }
  } catch (...) {
    note_failure(job);
  }
  job.buffer.reset();
  job.result.set_value(std::move(record));
}

}  // namespace detent::store
