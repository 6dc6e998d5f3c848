// To be preloaded: counts the calls that detent makes to the system, and lets the n-th one of a kind fail.
//
//   DETENT_FAULT=KIND@N     that call fails with the errno of its kind; KIND@N+: it and all after it (open@N+: from
//   there on
//                           the process may have no more descriptors than it has then)
//   DETENT_FAULT=KIND@N!    the process dies there, as by SIGKILL; KIND@N?: and what was written to files since they
//   were
//                           last brought to the disk (fsync) is zeros, as after a power failure
//   DETENT_FAULT_TRACE=1    shows where a process that fails so ends by SIGABRT or SIGSEGV, for addr2line
//   DETENT_FAULT_COUNTS=F   at the end of the process: a line "KIND COUNT N1,N2,..." for each kind, where N1, N2, ...
//   are the
//                           first calls from each place of the program (its innermost frames); or "failed" when one did
//
// Only what detent asks for is counted: the innermost frame that is in no helping library (the C and C++ libraries,
// fmt, libzip, yaml-cpp) is in the program or in a library of detent's. ONNX Runtime, RE2, oneDNN and Python are left
// alone: what they do without memory is theirs. Counting starts with main(), or with detent_start_faults() where the
// program is another one, such as Python.
#include <dirent.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <string_view>
#include <utility>

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* block, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
}

namespace {

struct Kind {
  const char* name;
  int error;
};
// In the order of `Which`.
constexpr std::array kKinds{
    Kind{"memory", ENOMEM}, Kind{"open", EMFILE},  Kind{"read", EIO},   Kind{"write", ENOSPC},
    Kind{"sync", EIO},      Kind{"rename", EIO},   Kind{"map", ENOMEM}, Kind{"thread", EAGAIN},
    Kind{"resize", ENOSPC}, Kind{"mkdir", ENOSPC}, Kind{"stat", EIO},   Kind{"list", EIO},
};
enum Which { memory, open_, read_, write_, sync_, rename_, map, thread, resize, mkdir_, stat_, list_ };

constexpr std::size_t kPlaces = 1 << 16;
constexpr int kFrames = 12;  // that tell a place

std::atomic<bool> started = false;
std::array<std::atomic<long>, kKinds.size()> counts;
int fails = -1;  // the kind
long fails_at = 0;
char fails_how = 0;  // '+': from then on; '!': dies; '?': dies and loses
std::atomic<bool> has_failed = false;
std::atomic<bool> dying = false;
const char* counts_file = nullptr;

struct Place {
  std::atomic<std::uint64_t> hash;
  int kind;
  long first;
};
Place* places = nullptr;

__attribute__((tls_model("initial-exec"))) thread_local bool within = false;

enum class Owner { detent, helper, other };

Owner owner_of(const void* address, std::uintptr_t& offset) {
  dl_find_object found;
  if (_dl_find_object(const_cast<void*>(address), &found) != 0) return Owner::other;
  offset = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(found.dlfo_map_start);
  std::string_view name = found.dlfo_link_map->l_name;
  if (name.empty()) name = program_invocation_short_name;
  if (name.find("detent/_core") != name.npos) return Owner::detent;  // the Python extension
  name.remove_prefix(name.rfind('/') + 1);
  const auto begins = [&](std::string_view with) { return name.substr(0, with.size()) == with; };
  if (begins("detent") || begins("libdetent") || begins("_detent")) return Owner::detent;
  for (const char* helper : {"libc.so", "libstdc++", "libgcc_s", "libm.so", "libfmt", "libzip", "libyaml-cpp"}) {
    if (begins(helper)) return Owner::helper;
  }
  return Owner::other;
}

struct Walk {
  const void* caller;
  bool begun = false, decided = false, mine = false;
  int frames = 0;
  std::uint64_t hash = 14695981039346656037ULL;
};

_Unwind_Reason_Code step(_Unwind_Context* context, void* data) {
  auto& walk = *static_cast<Walk*>(data);
  const auto* address = reinterpret_cast<const void*>(_Unwind_GetIP(context));
  walk.begun = walk.begun || address == walk.caller;
  if (!walk.begun) return _URC_NO_REASON;  // still in here
  std::uintptr_t offset = 0;
  const Owner owner = owner_of(address, offset);
  if (!walk.decided && owner != Owner::helper) {
    walk.decided = true;
    walk.mine = owner == Owner::detent;
  }
  if (walk.decided && (!walk.mine || places == nullptr)) return _URC_END_OF_STACK;
  walk.hash = (walk.hash ^ offset) * 1099511628211ULL;
  return ++walk.frames < kFrames ? _URC_NO_REASON : _URC_END_OF_STACK;
}

void note(int kind, long count, std::uint64_t hash) {
  hash = (hash ^ static_cast<std::uint64_t>(kind)) | 1;
  for (std::size_t i = hash % kPlaces;; i = (i + 1) % kPlaces) {
    std::uint64_t there = 0;
    if (places[i].hash.compare_exchange_strong(there, hash)) {
      places[i].kind = kind;
      places[i].first = count;
      return;
    }
    if (there == hash) return;
  }
}

template <class Function>
Function next(const char* name) {
  const bool before = std::exchange(within, true);
  const auto found = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
  within = before;
  return found;
}

// What of each open file is not on the disk yet: from the first to the last byte written since.
struct Unsaved {
  std::atomic<std::int64_t> begin = INT64_MAX, end = -1;
};
constexpr int kFiles = 1024;
std::array<Unsaved, kFiles> unsaved;

void note_written(int fd, std::int64_t at, std::int64_t size) {
  if (fails_how != '?' || fd < 0 || fd >= kFiles || size <= 0) return;
  Unsaved& file = unsaved[static_cast<std::size_t>(fd)];
  file.begin = std::min<std::int64_t>(file.begin, at);
  file.end = std::max<std::int64_t>(file.end, at + size);
}

void note_saved(int fd) {
  if (fd < 0 || fd >= kFiles) return;
  unsaved[static_cast<std::size_t>(fd)].begin = INT64_MAX;
  unsaved[static_cast<std::size_t>(fd)].end = -1;
}

// Also of files that were closed: their descriptors are still open, see close().
void lose_unsaved() {
  static std::array<char, 1 << 16> zeros;
  const auto write = next<ssize_t (*)(int, const void*, std::size_t, off64_t)>("pwrite64");
  for (int fd = 0; fd < kFiles; ++fd) {
    const Unsaved& file = unsaved[static_cast<std::size_t>(fd)];
    ::fcntl(fd, F_SETFL, 0);  // no O_DIRECT, no O_APPEND
    for (auto at = file.begin.load(); at < file.end; at += zeros.size())
      write(fd, zeros.data(), std::min<std::size_t>(zeros.size(), static_cast<std::size_t>(file.end - at)), at);
  }
}

[[noreturn]] void die() {
  dying = true;  // from here on no other thread changes a file: after a power failure nothing does
  if (fails_how == '?') lose_unsaved();
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

// As a limit does it: what is closed can be opened again.
void use_up_descriptors() {
  int highest = 1023;
  while (highest > 2 && ::fcntl(highest, F_GETFD) < 0) --highest;
  const auto count = static_cast<rlim_t>(highest) + 1;
  const rlimit limit{count, count};
  ::setrlimit(RLIMIT_NOFILE, &limit);
  while (::dup(STDIN_FILENO) >= 0) {
  }
}

// Whether this call is to fail.
bool fault(Which kind, const void* caller) {
  if (!started.load(std::memory_order_relaxed) || within) return false;
  while (dying) ::pause();
  if (places == nullptr && fails != kind) return false;
  within = true;
  Walk walk{caller};
  std::uintptr_t offset = 0;
  const Owner owner = owner_of(caller, offset);
  if (owner == Owner::detent && places == nullptr) {
    walk.mine = true;
  } else if (owner != Owner::other) {
    _Unwind_Backtrace(step, &walk);
  }
  bool hit = false;
  if (walk.mine) {
    const long count = ++counts[kind];
    if (places != nullptr) note(kind, count, walk.hash);
    hit = fails == kind && (fails_how == '+' ? count >= fails_at : count == fails_at);
    if (hit) has_failed = true;
  }
  if (hit && (fails_how == '!' || fails_how == '?')) die();
  if (hit && fails_how == '+' && kind == open_) {
    use_up_descriptors();
    fails_how = 0;
    hit = false;
  }
  within = false;
  if (hit) errno = kKinds[kind].error;
  return hit;
}

void write_counts() {
  started = false;
  if (counts_file == nullptr) return;
  std::FILE* file = std::fopen(counts_file, "w");
  if (file == nullptr) return;
  if (fails >= 0) std::fputs(has_failed ? "failed\n" : "not reached\n", file);
  for (std::size_t kind = 0; places != nullptr && kind < kKinds.size(); ++kind) {
    std::fprintf(file, "%s %ld ", kKinds[kind].name, counts[kind].load());
    bool first = true;
    for (std::size_t i = 0; i < kPlaces; ++i) {
      if (places[i].hash == 0 || places[i].kind != static_cast<int>(kind)) continue;
      std::fprintf(file, first ? "%ld" : ",%ld", places[i].first);
      first = false;
    }
    std::fputc('\n', file);
  }
  std::fclose(file);
}

void show_trace(int number) {
  within = true;
  std::array<void*, 40> frames{};
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), frames.size()), STDERR_FILENO);
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void read_settings() {
  if (std::getenv("DETENT_FAULT_TRACE") != nullptr) {
    for (const int number : {SIGABRT, SIGSEGV}) std::signal(number, show_trace);
  }
  counts_file = std::getenv("DETENT_FAULT_COUNTS");
  const char* fault = std::getenv("DETENT_FAULT");
  if (fault == nullptr) {
    if (counts_file == nullptr) return;
    places = static_cast<Place*>(
        ::mmap(nullptr, kPlaces * sizeof(Place), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    return;
  }
  const std::string_view text(fault);
  const auto at = text.find('@');
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    if (text.substr(0, at) == kKinds[i].name) fails = static_cast<int>(i);
  }
  if (fails < 0 || at == std::string_view::npos) std::abort();
  fails_at = std::atol(fault + at + 1);
  fails_how = std::strchr("+!?", text.back()) == nullptr ? 0 : text.back();
}

int (*real_main)(int, char**, char**) = nullptr;

int counted_main(int count, char** words, char** environment) {
  read_settings();
  started = fails >= 0 || places != nullptr;
  return real_main(count, words, environment);
}

__attribute__((destructor)) void at_end() { write_counts(); }

#define CALLER __builtin_return_address(0)

}  // namespace

extern "C" {

// Python starts where a test says so.
void detent_start_faults() {
  read_settings();
  started = fails >= 0 || places != nullptr;
}

int __libc_start_main(int (*main)(int, char**, char**), int count, char** words, void (*init)(), void (*fini)(),
                      void (*loader)(), void* stack) {
  using Start = int (*)(int (*)(int, char**, char**), int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start = next<Start>("__libc_start_main");
  const std::string_view name = program_invocation_short_name;
  if (name.substr(0, 6) != "detent") return start(main, count, words, init, fini, loader, stack);
  real_main = main;
  return start(counted_main, count, words, init, fini, loader, stack);
}

void* malloc(std::size_t size) { return fault(memory, CALLER) ? nullptr : __libc_malloc(size); }
void* calloc(std::size_t count, std::size_t size) {
  return fault(memory, CALLER) ? nullptr : __libc_calloc(count, size);
}
void* realloc(void* block, std::size_t size) { return fault(memory, CALLER) ? nullptr : __libc_realloc(block, size); }
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return fault(memory, CALLER) ? nullptr : __libc_memalign(alignment, size);
}
int posix_memalign(void** block, std::size_t alignment, std::size_t size) {
  *block = fault(memory, CALLER) ? nullptr : __libc_memalign(alignment, size);
  return *block == nullptr ? ENOMEM : 0;
}

#define FAILING(kind, result, type, name, parameters, arguments) \
  type name parameters {                                         \
    static const auto real = next<type(*) parameters>(#name);    \
    if (fault(kind, CALLER)) return result;                      \
    return real arguments;                                       \
  }

FAILING(read_, -1, ssize_t, read, (int fd, void* data, std::size_t size), (fd, data, size))
FAILING(read_, -1, ssize_t, pread, (int fd, void* data, std::size_t size, off_t at), (fd, data, size, at))
FAILING(read_, -1, ssize_t, pread64, (int fd, void* data, std::size_t size, off64_t at), (fd, data, size, at))
FAILING(write_, -1, ssize_t, sendfile, (int out, int in, off_t* at, std::size_t size), (out, in, at, size))
FAILING(rename_, -1, int, rename, (const char* from, const char* to), (from, to))
FAILING(map, MAP_FAILED, void*, mmap, (void* address, std::size_t size, int protection, int flags, int fd, off_t at),
        (address, size, protection, flags, fd, at))
FAILING(map, MAP_FAILED, void*, mmap64,
        (void* address, std::size_t size, int protection, int flags, int fd, off64_t at),
        (address, size, protection, flags, fd, at))
FAILING(thread, EAGAIN, int, pthread_create,
        (pthread_t * thread_id, const pthread_attr_t* attributes, void* (*run)(void*), void* argument),
        (thread_id, attributes, run, argument))
FAILING(resize, -1, int, ftruncate, (int fd, off_t size), (fd, size))
FAILING(resize, -1, int, ftruncate64, (int fd, off64_t size), (fd, size))
FAILING(resize, -1, int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size))
FAILING(resize, -1, int, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size))
FAILING(mkdir_, -1, int, mkdir, (const char* path, mode_t mode), (path, mode))
FAILING(mkdir_, nullptr, char*, mkdtemp, (char* name), (name))
FAILING(open_, -1, int, mkostemp, (char* name, int flags), (name, flags))
FAILING(open_, -1, int, mkostemp64, (char* name, int flags), (name, flags))
FAILING(open_, -1, int, pipe2, (int* ends, int flags), (ends, flags))
FAILING(open_, nullptr, std::FILE*, fopen, (const char* path, const char* mode), (path, mode))
FAILING(open_, nullptr, std::FILE*, fopen64, (const char* path, const char* mode), (path, mode))
FAILING(open_, nullptr, DIR*, opendir, (const char* path), (path))
FAILING(list_, nullptr, dirent*, readdir, (DIR * folder), (folder))
FAILING(list_, nullptr, dirent64*, readdir64, (DIR * folder), (folder))
FAILING(stat_, -1, int, stat, (const char* path, struct stat* info), (path, info))
FAILING(stat_, -1, int, stat64, (const char* path, struct stat64* info), (path, info))
FAILING(stat_, -1, int, lstat, (const char* path, struct stat* info), (path, info))
FAILING(stat_, -1, int, lstat64, (const char* path, struct stat64* info), (path, info))
FAILING(stat_, -1, int, fstat, (int fd, struct stat* info), (fd, info))
FAILING(stat_, -1, int, fstat64, (int fd, struct stat64* info), (fd, info))
FAILING(stat_, -1, int, fstatat, (int fd, const char* path, struct stat* info, int flags), (fd, path, info, flags))
FAILING(stat_, -1, int, fstatat64, (int fd, const char* path, struct stat64* info, int flags), (fd, path, info, flags))

#define WRITING(name, parameters, arguments, position)           \
  ssize_t name parameters {                                      \
    static const auto real = next<ssize_t(*) parameters>(#name); \
    if (fault(write_, CALLER)) return -1;                        \
    const ssize_t done = real arguments;                         \
    if (fails_how == '?') note_written(fd, position, done);      \
    return done;                                                 \
  }

WRITING(write, (int fd, const void* data, std::size_t size), (fd, data, size), ::lseek(fd, 0, SEEK_CUR) - done)
WRITING(pwrite, (int fd, const void* data, std::size_t size, off_t at), (fd, data, size, at), at)
WRITING(pwrite64, (int fd, const void* data, std::size_t size, off64_t at), (fd, data, size, at), at)

#define SAVING(name)                                    \
  int name(int fd) {                                    \
    static const auto real = next<int (*)(int)>(#name); \
    if (fault(sync_, CALLER)) return -1;                \
    const int done = real(fd);                          \
    if (done == 0) note_saved(fd);                      \
    return done;                                        \
  }

SAVING(fsync)
SAVING(fdatasync)
SAVING(syncfs)

// What is not saved yet stays open under another number.
int close(int fd) {
  static const auto real = next<int (*)(int)>("close");
  if (fails_how == '?' && fd >= 0 && fd < kFiles && unsaved[static_cast<std::size_t>(fd)].end >= 0) {
    Unsaved& file = unsaved[static_cast<std::size_t>(fd)];
    const int kept = ::dup(fd);
    if (kept >= 0 && kept < kFiles) {
      unsaved[static_cast<std::size_t>(kept)].begin = file.begin.load();
      unsaved[static_cast<std::size_t>(kept)].end = file.end.load();
    }
    note_saved(fd);
  }
  return real(fd);
}

// These take a mode only where they create.
#define MODE(flags)                               \
  mode_t mode = 0;                                \
  if (((flags) & (O_CREAT | __O_TMPFILE)) != 0) { \
    std::va_list rest;                            \
    va_start(rest, flags);                        \
    mode = va_arg(rest, mode_t);                  \
    va_end(rest);                                 \
  }

int open(const char* path, int flags, ...) {
  MODE(flags)
  static const auto real = next<int (*)(const char*, int, ...)>("open");
  return fault(open_, CALLER) ? -1 : real(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  MODE(flags)
  static const auto real = next<int (*)(const char*, int, ...)>("open64");
  return fault(open_, CALLER) ? -1 : real(path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  MODE(flags)
  static const auto real = next<int (*)(int, const char*, int, ...)>("openat");
  return fault(open_, CALLER) ? -1 : real(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  MODE(flags)
  static const auto real = next<int (*)(int, const char*, int, ...)>("openat64");
  return fault(open_, CALLER) ? -1 : real(folder, path, flags, mode);
}

}  // extern "C"

namespace {

void* make(std::size_t size, std::size_t alignment, const void* caller) noexcept {
  if (fault(memory, caller)) return nullptr;
  return alignment == 0 ? __libc_malloc(std::max<std::size_t>(size, 1)) : __libc_memalign(alignment, size);
}

void* made(void* block) {
  if (block != nullptr) return block;
  if (const auto handler = std::get_new_handler()) handler();
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return made(make(size, 0, CALLER)); }
void* operator new[](std::size_t size) { return made(make(size, 0, CALLER)); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return make(size, 0, CALLER); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return make(size, 0, CALLER); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return made(make(size, static_cast<std::size_t>(alignment), CALLER));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return made(make(size, static_cast<std::size_t>(alignment), CALLER));
}
