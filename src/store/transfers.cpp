#include "store/transfers.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/error.h"

namespace detent::store {

PrefetchOrder::PrefetchOrder(std::vector<std::size_t> lanes, std::size_t first, std::size_t end)
    : lanes_(std::move(lanes)), sample_(first), end_(lanes_.empty() ? first : end), behind_(first) {}

std::optional<PrefetchOrder::Place> PrefetchOrder::next(std::size_t ahead) const {
  if (ahead == 0 || sample_ >= end_) return std::nullopt;
  if (sample_ >= behind_ && sample_ - behind_ >= ahead) return std::nullopt;
  return Place{lanes_[lane_], sample_};
}

void PrefetchOrder::advance() {
  if (++lane_ < lanes_.size()) return;
  lane_ = 0;
  ++sample_;
}

void PrefetchOrder::asked_for(Place place) {
  const auto [lane, sample] = place;
  const auto index = index_of(lane);
  if (!index || sample >= end_) return;
  behind_ = std::max(behind_, sample + 1);
  if (std::pair(sample, *index) < std::pair(sample_, lane_)) return;
  sample_ = sample;
  lane_ = *index;
  advance();
}

bool PrefetchOrder::holds(Place place) const {
  const auto index = index_of(place.first);
  return index && place.second < end_ && std::pair(place.second, *index) >= std::pair(sample_, lane_);
}

std::optional<std::size_t> PrefetchOrder::index_of(std::size_t lane) const {
  const auto found = std::find(lanes_.begin(), lanes_.end(), lane);
  if (found == lanes_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - lanes_.begin());
}

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

namespace {

// One chunk is being filled, one may wait for its header, the others are on their way.
constexpr std::size_t kChunks = 8;
constexpr std::uint64_t kSmallestChunk = std::uint64_t{16} << 10;
constexpr std::uint64_t kLargestChunk = std::uint64_t{1} << 20;
constexpr std::size_t kLent = std::size_t{1} << 20;  // of a large array, at a time

}  // namespace

Writer::Writer(Options options, Gauge& memory)
    : options_(std::move(options)),
      memory_(memory),
      chunk_size_(whole_blocks(std::clamp(options_.buffer_bytes / (2 * kChunks), kSmallestChunk, kLargestChunk))),
      no_memory_(std::make_exception_ptr(resource_error("no memory for writing intermediate tensors to disk",
                                                        "free some memory, or lower --memory-budget"))),
      thread_([this] { run(); }) {}

Writer::~Writer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Writer::push(std::shared_ptr<WriteJob> job) {
  const std::uint64_t bytes = byte_count(job->record);
  const std::uint64_t staging = kChunks * chunk_size_;
  const std::uint64_t limit = options_.buffer_bytes > staging ? options_.buffer_bytes - staging : 0;
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] { return failure_ || waiting_bytes_ == 0 || waiting_bytes_ + bytes <= limit; });
  if (failure_) std::rethrow_exception(failure_);
  job->charge = Charge(memory_, bytes);
  waiting_bytes_ += bytes;
  ++unfinished_;
  jobs_.push_back(std::move(job));
  wake_.notify_one();
}

void Writer::drain() {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] { return unfinished_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

void Writer::rethrow() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

bool Writer::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

void Writer::fail(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
  room_.notify_all();
}

void Writer::run() {
  while (const std::shared_ptr<WriteJob> job = next()) {
    try {
      if (job->dropped || failed()) {
        job->failed = true;
      } else {
        write(job);
      }
    } catch (const std::bad_alloc&) {
      job->failed = true;
      fail(no_memory_);
    } catch (...) {
      job->failed = true;
      fail(std::current_exception());
    }
    job->copied = true;
    if (held_ != nullptr) submit(held_);
    if (job->chunks == 0) complete(job);
  }
}

// The next job; null at the end. While there is none, what was begun is brought to its end.
std::shared_ptr<WriteJob> Writer::next() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const bool idle = current_ == nullptr && in_flight_ == 0;
      if (idle) wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (!jobs_.empty()) {
        std::shared_ptr<WriteJob> job = std::move(jobs_.front());
        jobs_.pop_front();
        return job;
      }
      if (idle) return nullptr;
    }
    if (current_ != nullptr) {
      submit(current_);
    } else {
      finish_one();
    }
  }
}

void Writer::prepare() {
  if (queue_) return;
  access_ = options_.access();
  auto queue = make_io_queue(access_);
  std::vector<Chunk> chunks(kChunks);
  for (Chunk& chunk : chunks) chunk.buffer = AlignedBuffer(chunk_size_);
  staging_ = Charge(memory_, kChunks * chunk_size_);
  free_.reserve(kChunks);
  chunks_ = std::move(chunks);
  for (Chunk& chunk : chunks_) free_.push_back(&chunk);
  queue_ = std::move(queue);
}

// Hands a record on in chunks, with its hash taken on the way, while earlier chunks go to disk. Its header is the last
// that is handed on: whoever finds it finds the rest.
void Writer::write(const std::shared_ptr<WriteJob>& job) {
  prepare();
  PayloadHash hash;
  const RecordLayout& layout = job->layout;
  job->file->descriptor(access_);
  if (current_ != nullptr && current_->file != job->file) submit(current_);
  const std::uint64_t offset = job->file->append(layout.size());
  job->extent = {offset, layout.size(), layout.header_size};
  if (current_ != nullptr && current_->buffer.size() - current_->filled < layout.header_size) submit(current_);
  if (current_ == nullptr) {
    open_chunk(job, offset, layout.header_size);
  } else {
    current_->jobs.push_back(job);
    ++job->chunks;
  }
  const std::span<std::byte> header = current_->buffer.bytes().subspan(current_->filled, layout.header_size);
  std::fill(header.begin(), header.end(), std::byte{0});
  current_->filled += layout.header_size;
  position_ = offset + layout.header_size;
  copy_payload(job, hash);
  write_header(header, job->record, layout, job->sample, offset, hash.result());
}

void Writer::copy_payload(const std::shared_ptr<WriteJob>& job, PayloadHash& hash) {
  const RecordLayout& layout = job->layout;
  for (std::size_t i = 0; i < job->record.size(); ++i) {
    const data::Array& array = job->record[i];
    const std::uint64_t next = i + 1 < layout.begins.size() ? layout.begins[i + 1] : layout.payload_size;
    const std::size_t lent = lendable(array);
    if (lent > 0) write_in_place(job, array.bytes.first(lent), hash);
    copy(job, array.bytes.subspan(lent), next - layout.begins[i] - array.bytes.size(), hash);
  }
}

// How much of the array, from its beginning, can go to disk from where it is.
std::size_t Writer::lendable(const data::Array& array) const {
  if (array.bytes.size() < kLargeArray) return 0;
  const bool aligned = reinterpret_cast<std::uintptr_t>(array.bytes.data()) % kBlock == 0;
  return aligned || access_ == DiskAccess::buffered ? array.bytes.size() / kBlock * kBlock : 0;
}

void Writer::write_in_place(const std::shared_ptr<WriteJob>& job, std::span<const std::byte> bytes, PayloadHash& hash) {
  if (current_ != nullptr) close_chunk(*job);
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kLent));
    hash.add(part);
    // Requests that write take their memory as it comes, and leave it as it is.
    send(take_chunk(job, position_, 0), {const_cast<std::byte*>(part.data()), part.size()});
    position_ += part.size();
    bytes = bytes.subspan(part.size());
  }
}

void Writer::copy(const std::shared_ptr<WriteJob>& job, std::span<const std::byte> bytes, std::size_t zeros,
                  PayloadHash& hash) {
  while (!bytes.empty() || zeros > 0) {
    if (current_ != nullptr && current_->filled == current_->buffer.size()) close_chunk(*job);
    if (current_ == nullptr) open_chunk(job, position_, 0);
    const auto room = current_->buffer.bytes().subspan(current_->filled);
    const std::size_t count = std::min(room.size(), bytes.empty() ? zeros : bytes.size());
    if (bytes.empty()) {
      std::memset(room.data(), 0, count);
      zeros -= count;
    } else {
      std::memcpy(room.data(), bytes.data(), count);
      bytes = bytes.subspan(count);
    }
    hash.add(room.first(count));
    current_->filled += count;
    position_ += count;
  }
}

// Nothing more goes into the current chunk. The one with this record's header still has to wait for that.
void Writer::close_chunk(const WriteJob& job) {
  if (current_->offset <= job.extent.offset) {
    held_ = std::exchange(current_, nullptr);
  } else {
    submit(current_);
  }
}

Writer::Chunk& Writer::take_chunk(const std::shared_ptr<WriteJob>& job, std::uint64_t offset, std::size_t needed) {
  while (free_.empty()) finish_one();
  Chunk& chunk = *free_.back();
  // The header of a record with very many arrays.
  if (chunk.buffer.size() < needed) chunk.buffer = AlignedBuffer(needed);
  chunk.jobs.assign(1, job);
  free_.pop_back();
  chunk.filled = 0;
  chunk.offset = offset;
  chunk.file = job->file;
  ++job->chunks;
  return chunk;
}

void Writer::open_chunk(const std::shared_ptr<WriteJob>& job, std::uint64_t offset, std::size_t needed) {
  current_ = &take_chunk(job, offset, needed);
}

void Writer::submit(Chunk*& chunk) {
  Chunk& ready = *std::exchange(chunk, nullptr);
  send(ready, ready.buffer.bytes().first(ready.filled));
}

void Writer::send(Chunk& chunk, std::span<std::byte> data) {
  chunk.request = {chunk.file->descriptor(access_), true, chunk.offset, data};
  ++in_flight_;
  queue_->start(chunk.request);
}

void Writer::finish_one() {
  const IoRequest& request = queue_->finish();
  --in_flight_;
  bytes_written_ += request.done;
  Chunk& chunk = *std::find_if(chunks_.begin(), chunks_.end(), [&](const Chunk& c) { return &c.request == &request; });
  const int code = request.error != 0 ? request.error : request.done < request.data.size() ? EIO : 0;
  if (code != 0) {
    try {
      chunk.file->throw_write_error(code, request.data.size());
    } catch (const std::bad_alloc&) {
      fail(no_memory_);
    } catch (...) {
      fail(std::current_exception());
    }
  } else if (access_ == DiskAccess::buffered) {
    // Lets the disk begin now, not when sync() waits for it.
    ::sync_file_range(request.fd, static_cast<off_t>(request.offset), static_cast<off_t>(request.data.size()),
                      SYNC_FILE_RANGE_WRITE);
  }
  for (const std::shared_ptr<WriteJob>& job : chunk.jobs) {
    job->failed = job->failed || code != 0;
    if (--job->chunks == 0 && job->copied) complete(job);
  }
  chunk.jobs.clear();
  chunk.file.reset();
  free_.push_back(&chunk);
}

void Writer::complete(const std::shared_ptr<WriteJob>& job) {
  const std::uint64_t bytes = byte_count(job->record);
  options_.done(job);
  job->charge.reset();
  const std::lock_guard lock(mutex_);
  waiting_bytes_ -= bytes;
  --unfinished_;
  room_.notify_all();
}

}  // namespace detent::store
