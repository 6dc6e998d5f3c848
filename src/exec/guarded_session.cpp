#include "exec/guarded_session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/paths.h"
#include "base/process.h"
#include "base/start_process.h"
#include "exec/emit.h"
#include "exec/runtime.h"
#include "onnx/model.h"
#include "shim/library.h"

namespace detent::exec {

// Private to exec/: what a GuardedSession and its process say to each other, over a socket of two processes of one
// version of detent.

enum class GuardMessage : std::uint64_t { hello, open, opened, run, results, ports, failed, close };

/// The other side is gone.
struct GuardClosed {};
/// Nothing came within the time.
struct GuardTimeout {};

/// Writes and reads numbers, texts and arrays. Throws GuardClosed, GuardTimeout and interrupted.
class GuardChannel {
 public:
  explicit GuardChannel(int socket, std::stop_token stop = {}) : socket_(socket), stop_(std::move(stop)) {}
  /// Of all that is read from now on, together; 0: no limit.
  void set_time(double seconds);

  void send(std::uint64_t number);
  void send(GuardMessage message) { send(static_cast<std::uint64_t>(message)); }
  void send(const std::string& text);
  void send(std::span<const data::Array> arrays);
  void send(std::span<const Port> ports);

  std::uint64_t number();
  GuardMessage message() { return static_cast<GuardMessage>(number()); }
  std::string text();
  std::vector<data::Array> arrays();
  std::vector<Port> ports();

 private:
  void write(const void* data, std::size_t size);
  void read(void* data, std::size_t size);
  int milliseconds_to_wait() const;
  std::vector<std::int64_t> numbers();

  int socket_;
  std::stop_token stop_;
  double until_ = 0;
};

namespace {

constexpr const char* kVariable = "DETENT_GUARDED";  // the parent's process id
constexpr int kSocket = 3;                           // in the process that serves
constexpr int kNoMemory = 4;                         // its status where it found none
constexpr double kIdleSeconds = 0.02;                // that it waits for another model, holding the runtime's memory

// What the runtime prints when it dies is not for the user: the error says what happened. The process ends when this
// side does.
pid_t start_server(const std::filesystem::path& program, int socket) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  const std::unique_ptr<posix_spawn_file_actions_t, int (*)(posix_spawn_file_actions_t*)> owned(
      &files, ::posix_spawn_file_actions_destroy);
  for (const int stream : {0, 1, 2})
    ::posix_spawn_file_actions_addopen(&files, stream, "/dev/null", stream == 0 ? O_RDONLY : O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, socket, kSocket);
  return start_process(program.c_str(), {program.string()}, fmt::format("{}={}", kVariable, ::getpid()), &files,
                       "cannot start a process to run the model in");
}

// The other process, ended when this goes.
class Server {
 public:
  Server(const std::filesystem::path& program, std::stop_token stop) : channel_(-1) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw failed_call(errno, "cannot start a process to run the model in", ErrorKind::resource);
    socket_ = UniqueFd(ends[0]);
    const UniqueFd other(ends[1]);
    channel_ = GuardChannel(socket_.get(), std::move(stop));
    child_ = start_server(program, other.get());
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() { end(); }

  GuardChannel& channel() { return channel_; }

  // Forgets its model, and ends unless it is asked again at once.
  void close_session() {
    try {
      channel_.send(GuardMessage::close);
    } catch (const GuardClosed&) {
    }
  }
  void serve_next(std::stop_token stop) { channel_ = GuardChannel(socket_.get(), std::move(stop)); }

  // Whether it serves, and is of this version.
  bool greets() {
    constexpr double kSeconds = 20;
    try {
      channel_.set_time(kSeconds);
      return channel_.message() == GuardMessage::hello && channel_.text() == DETENT_VERSION;
    } catch (const GuardClosed&) {
    } catch (const GuardTimeout&) {
    }
    return false;
  }

  // That it closed the socket, and why.
  [[noreturn]] void throw_death(const std::string& runtime, const char* doing) {
    const int status = end();
    if ((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) || (WIFEXITED(status) && WEXITSTATUS(status) == kNoMemory))
      throw resource_error(fmt::format("{} was killed, or found no memory, while it was {}", runtime, doing),
                           "memory ran out: close other programs, or give a smaller model");
    const auto how = WIFSIGNALED(status) ? fmt::format("ended by a signal ({})", ::strsignal(WTERMSIG(status)))
                                         : fmt::format("ended with status {}", WEXITSTATUS(status));
    throw SessionDied(fmt::format("{} {} while it was {}", runtime, how, doing),
                      "this is a fault of that ONNX Runtime: try another version of it");
  }

  int end() {
    if (child_ <= 0) return 0;
    const pid_t child = std::exchange(child_, 0);
    int status = 0;
    // One that died is left to tell why; one that runs is of no more use.
    for (int tries = 0; tries < 20 && socket_.valid(); ++tries) {
      const pid_t ended = ::waitpid(child, &status, WNOHANG);
      if (ended == child || (ended < 0 && errno != EINTR)) return status;
      if (tries == 0) ::shutdown(socket_.get(), SHUT_RDWR);
      ::usleep(10'000);
    }
    ::kill(child, SIGKILL);
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return status;
  }

 private:
  UniqueFd socket_;
  GuardChannel channel_;
  pid_t child_ = 0;
};

void answer(GuardChannel& channel, const Error& e) {
  channel.send(GuardMessage::failed);
  channel.send(static_cast<std::uint64_t>(e.kind()));
  channel.send(std::string(e.what()));
  channel.send(e.hint());
}

void load(std::optional<Runtime>& runtime, const std::string& library) {
  if (!runtime) runtime.emplace(library.empty() ? std::nullopt : std::optional<std::filesystem::path>(library));
}

Session open(GuardChannel& channel, std::optional<Runtime>& runtime) {
  const auto library = channel.text();
  const std::filesystem::path model = channel.text();
  const auto threads = static_cast<int>(channel.number());
  const auto mode = static_cast<SessionMode>(channel.number());
  load(runtime, library);
  failpoint("guarded.open");
  const LargeBlocksApart apart;
  // Weights that stand in the model's file are read as a whole, and then copied; others are mapped until they are
  // packed.
  constexpr std::uint64_t kReadAsAWhole = std::uint64_t{8} << 20;
  if (paths::size_of(model) < kReadAsAWhole) return Session::of_file(*runtime, model, {mode, threads, {}});
  const auto read = onnx::read_model(model);
  return {*runtime, emit(read), fmt::format("model '{}'", model.string()), {mode, threads, {}}};
}

Ports ports_of(const Runtime& runtime, const std::string& model, const std::string& where, SessionMode mode) {
  const Session session(runtime, model, where, {mode, 1, {}});
  return {session.inputs(), session.outputs()};
}

void tell_ports(GuardChannel& channel, std::optional<Runtime>& runtime) {
  const auto library = channel.text();
  const auto model = channel.text();
  const auto where = channel.text();
  const auto mode = static_cast<SessionMode>(channel.number());
  load(runtime, library);
  failpoint("guarded.ports");
  const auto found = ports_of(*runtime, model, where, mode);
  channel.send(GuardMessage::ports);
  channel.send(std::span<const Port>(found.inputs));
  channel.send(std::span<const Port>(found.outputs));
}

// Between runs nothing is kept: then the process that asks has its turn.
void serve(GuardChannel& channel) {
  std::optional<Runtime> runtime;
  std::optional<Session> session;
  while (true) {
    const auto asked = channel.message();
    channel.set_time(0);
    try {
      if (asked == GuardMessage::close) {
        session.reset();
        if (runtime) give_back_unused(*runtime);
        channel.set_time(kIdleSeconds);
      } else if (asked == GuardMessage::open) {
        session.emplace(open(channel, runtime));
        channel.send(GuardMessage::opened);
        channel.send(std::span<const Port>(session->inputs()));
      } else if (asked == GuardMessage::ports) {
        tell_ports(channel, runtime);
      } else {
        const auto where = channel.text();
        const auto inputs = channel.arrays();
        failpoint("guarded.run");
        const auto results = session.value().run(inputs, where);
        give_back_unused(*runtime);
        channel.send(GuardMessage::results);
        channel.send(std::span<const data::Array>(results));
      }
    } catch (const Error& e) {
      answer(channel, e);
    } catch (const std::bad_alloc&) {
      answer(channel, resource_error("out of memory"));
    } catch (const std::exception& e) {
      answer(channel, bad_input(e.what()));
    }
  }
}

constexpr const char* kRun = "run";
constexpr const char* kLoad = "loaded";

// ONNX Runtime's time grows with the bytes, and with the square of the nodes: 145 s for 8,000 outputs (SECURITY.md).
double load_limit(const GuardOptions& options, std::uint64_t bytes, std::size_t nodes) {
  constexpr double kBytesPerSecond = 10e6, kSecondsOfNodes = 300, kNodes = 8000;
  const double share = static_cast<double>(nodes) / kNodes;
  return options.load_seconds + static_cast<double>(bytes) / kBytesPerSecond + kSecondsOfNodes * share * share;
}

double load_limit(const GuardOptions& options, const std::filesystem::path& file) {
  try {
    const auto model = onnx::read_model(file);
    auto bytes = model.file->bytes().size();
    for (const auto& tensor : model.graph.initializers) bytes += tensor.is_external ? tensor.data.size() : 0;
    return load_limit(options, bytes, model.graph.nodes.size());
  } catch (const Error&) {  // the runtime tells what is wrong with it
    return options.load_seconds;
  }
}

}  // namespace

// A process that serves; none where there is no program to start. One that has served well is handed on to the next
// Guard, since most of what a process takes is to load the runtime.
class Guard {
 public:
  Guard(const Runtime& runtime, const GuardOptions& options)
      : runtime_(runtime), stop_(options.stop), hands_on_(!options.saves_memory) {
    auto& impl = *runtime_.impl();
    {
      const std::lock_guard lock(impl.idle_guard_lock);
      server_ = std::static_pointer_cast<Server>(std::exchange(impl.idle_guard, nullptr));
    }
    has_served_ = server_ != nullptr;
    if (has_served_)
      server_->serve_next(stop_);
    else
      start();
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() {
    if (!server_ || !is_well_ || !hands_on_) return;
    server_->close_session();
    auto& impl = *runtime_.impl();
    const std::lock_guard lock(impl.idle_guard_lock);
    impl.idle_guard = std::move(server_);
  }

  bool serves() const { return server_ != nullptr; }

  // What is said to the process and what it answers, in so many seconds. `doing` begins as in "it was loaded".
  template <class Talk>
  void talk(const std::string& where, double seconds, const char* doing, const Talk& what) {
    is_well_ = false;
    try {
      server_->channel().set_time(seconds);
      what(server_->channel());
    } catch (const GuardClosed&) {
      // It ends when it has nothing to do, and what it ran before may have harmed it: that says nothing of this model.
      if (std::exchange(has_served_, false)) {
        start();
        if (serves()) return talk(where, seconds, doing, what);
        throw resource_error("cannot start a process to run the model in");
      }
      server_->throw_death(fmt::format("{}: ONNX Runtime {}", where, runtime_.version()), doing);
    } catch (const GuardTimeout&) {
      server_->end();
      throw SessionDied(fmt::format("{}: ONNX Runtime {} took longer than {:.0f} s while it was {}", where,
                                    runtime_.version(), seconds, doing),
                        doing == kRun ? "raise --set sample-time-limit"
                        : doing == kLoad
                            ? "give more time with --time-limit"
                            : "this is a fault of that ONNX Runtime, or of the model: try another version of it");
    } catch (const Refused& refused) {
      is_well_ = true;
      throw Error(refused);
    }
    has_served_ = false;
    is_well_ = true;
  }

  static void expect(GuardChannel& channel, GuardMessage wanted) {
    const auto message = channel.message();
    if (message == wanted) return;
    if (message != GuardMessage::failed) throw GuardClosed{};
    const auto kind = static_cast<ErrorKind>(channel.number());
    const auto what = channel.text();
    throw Refused(kind, what, channel.text());
  }

 private:
  // What the process answered.
  struct Refused : Error {
    using Error::Error;
  };

  void start() {
    server_.reset();
    const auto program = shim::find_program();
    if (!program) return;
    server_ = std::make_shared<Server>(*program, stop_);
    if (!server_->greets()) server_.reset();
  }

  Runtime runtime_;
  std::stop_token stop_;
  bool hands_on_;
  std::shared_ptr<Server> server_;
  bool has_served_ = false;  // another Guard
  bool is_well_ = false;     // it has answered all that it was asked
};

struct GuardedSession::Impl {
  Impl(const Runtime& runtime, std::string name, const GuardOptions& given)
      : guard(runtime, given), where(std::move(name)), options(given) {}

  Guard guard;
  const std::string where;
  const GuardOptions options;
  std::optional<Session> here;  // where nothing serves
  std::vector<Port> inputs;
};

GuardedSession::GuardedSession(const Runtime& runtime, const std::filesystem::path& model, const GuardOptions& options)
    : impl_(std::make_unique<Impl>(runtime, fmt::format("model '{}'", model.string()), options)) {
  const auto mode = options.optimizes ? SessionMode::deployed : SessionMode::inspect;
  if (!impl_->guard.serves()) {
    const LargeBlocksApart apart;
    impl_->here.emplace(Session::of_file(runtime, model, {mode, options.threads, options.stop}));
    impl_->inputs = impl_->here->inputs();
    return;
  }
  impl_->guard.talk(impl_->where, load_limit(options, model), kLoad, [&](GuardChannel& channel) {
    channel.send(GuardMessage::open);
    channel.send(runtime.impl()->library);
    channel.send(paths::absolute(model).string());
    channel.send(static_cast<std::uint64_t>(options.threads));
    channel.send(static_cast<std::uint64_t>(mode));
    Guard::expect(channel, GuardMessage::opened);
    impl_->inputs = channel.ports();
  });
}

GuardedSession::GuardedSession(GuardedSession&&) noexcept = default;
GuardedSession::~GuardedSession() = default;

const std::vector<Port>& GuardedSession::inputs() const { return impl_->inputs; }

std::vector<data::Array> GuardedSession::run(std::span<const data::Array> inputs, const std::string& where) {
  if (impl_->here) return impl_->here->run(inputs, where);
  std::vector<data::Array> results;
  impl_->guard.talk(impl_->where, impl_->options.run_seconds, kRun, [&](GuardChannel& channel) {
    channel.send(GuardMessage::run);
    channel.send(where);
    channel.send(inputs);
    Guard::expect(channel, GuardMessage::results);
    results = channel.arrays();
  });
  return results;
}

PortsOf guarded_ports(const Runtime& runtime, const GuardOptions& options) {
  const auto guard = std::make_shared<Guard>(runtime, options);
  return [=](const onnx::Model& model, EmitOptions emitted, SessionMode mode) {
    const auto where = fmt::format("model '{}'", model.path.string());
    if (!guard->serves()) return ports_of(runtime, emit(model, emitted), where, mode);
    emitted.descriptors = fmt::format("proc/{}/fd", ::getpid());
    const auto message = emit(model, emitted);
    const double limit = load_limit(options, message.size(), model.graph.nodes.size());
    Ports found;
    guard->talk(where, limit, "asked for types", [&](GuardChannel& channel) {
      channel.send(GuardMessage::ports);
      channel.send(runtime.impl()->library);
      channel.send(message);
      channel.send(where);
      channel.send(static_cast<std::uint64_t>(mode));
      Guard::expect(channel, GuardMessage::ports);
      found.inputs = channel.ports();
      found.outputs = channel.ports();
    });
    return found;
  };
}

void check_survives(const Runtime& runtime, const std::filesystem::path& model, const GuardOptions& options) {
  try {
    const GuardedSession loaded(runtime, model, options);
  } catch (const SessionDied&) {
    throw;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input) throw;
  }
}

std::optional<int> guarded_socket() {
  const char* const value = std::getenv(kVariable);
  if (value == nullptr) return std::nullopt;
  const std::string_view text(value);
  int parent = 0;
  const bool known = std::from_chars(text.data(), text.data() + text.size(), parent).ec == std::errc();
  ::unsetenv(kVariable);  // not for what this process starts
  if (!known || ::getppid() != parent) return std::nullopt;
  // What else a test asks for concerns the process that asks this one.
  const char* const point = std::getenv("DETENT_FAILPOINT");
  if (point != nullptr && !std::string_view(point).starts_with("guarded.")) ::unsetenv("DETENT_FAILPOINT");
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);  // a crash is an answer here
  return kSocket;
}

int serve_guarded_session(int socket) {
  // The runtime may be busy for ever when the process that asks ends. A signal at its death (PR_SET_PDEATHSIG) would
  // come at the end of the thread that started this process, while other threads use it.
  std::thread([socket] {
    pollfd closed{socket, 0, 0};
    while (::poll(&closed, 1, -1) <= 0) continue;
    ::_exit(0);
  }).detach();
  std::set_terminate([] {
    try {
      std::rethrow_exception(std::current_exception());
    } catch (const std::bad_alloc&) {
      ::_exit(kNoMemory);
    } catch (...) {
      std::abort();
    }
  });
  GuardChannel channel(socket);
  try {
    channel.send(GuardMessage::hello);
    channel.send(std::string(DETENT_VERSION));
    serve(channel);
  } catch (const GuardClosed&) {
  } catch (const GuardTimeout&) {  // it was handed on, and nobody asks it any more
  }
  ::_exit(0);  // nothing of a model may run any more
}

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr std::uint64_t kUnknownRank = ~std::uint64_t{0};
constexpr int kLookMilliseconds = 50;  // for a stop

}  // namespace

int GuardChannel::milliseconds_to_wait() const {
  if (until_ <= 0) return stop_.stop_possible() ? kLookMilliseconds : -1;
  const double left = std::ceil(1e3 * (until_ - now()));
  return static_cast<int>(std::clamp(left, 0.0, static_cast<double>(kLookMilliseconds)));
}

void GuardChannel::set_time(double seconds) { until_ = seconds > 0 ? now() + seconds : 0; }

void GuardChannel::write(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  while (size > 0) {
    const auto count = ::send(socket_, bytes, size, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw GuardClosed{};
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
}

void GuardChannel::read(void* data, std::size_t size) {
  auto* bytes = static_cast<std::byte*>(data);
  while (size > 0) {
    pollfd waiting{socket_, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, milliseconds_to_wait());
    if (stop_.stop_requested()) throw interrupted();
    if (ready <= 0) {
      if (until_ > 0 && now() > until_) throw GuardTimeout{};
      continue;
    }
    const auto count = ::recv(socket_, bytes, size, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw GuardClosed{};
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
}

void GuardChannel::send(std::uint64_t number) { write(&number, sizeof number); }

std::uint64_t GuardChannel::number() {
  std::uint64_t number = 0;
  read(&number, sizeof number);
  return number;
}

void GuardChannel::send(const std::string& text) {
  send(text.size());
  write(text.data(), text.size());
}

std::string GuardChannel::text() {
  std::string text(number(), '\0');
  read(text.data(), text.size());
  return text;
}

std::vector<std::int64_t> GuardChannel::numbers() {
  std::vector<std::int64_t> all(number());
  read(all.data(), all.size() * sizeof(std::int64_t));
  return all;
}

void GuardChannel::send(std::span<const data::Array> arrays) {
  send(arrays.size());
  for (const auto& array : arrays) {
    send(static_cast<std::uint64_t>(array.type));
    send(array.shape.size());
    write(array.shape.data(), array.shape.size() * sizeof(std::int64_t));
    send(array.bytes.size());
    write(array.bytes.data(), array.bytes.size());
  }
}

std::vector<data::Array> GuardChannel::arrays() {
  std::vector<data::Array> all(number());
  for (auto& array : all) {
    array.type = static_cast<onnx::DataType>(number());
    array.shape = numbers();
    const auto size = number();
    const auto buffer = data::allocate(size, "an array of a model that runs in a process of its own");
    read(buffer.bytes.data(), size);
    array.bytes = buffer.bytes.first(size);
    array.owner = buffer.memory;
  }
  return all;
}

void GuardChannel::send(std::span<const Port> ports) {
  send(ports.size());
  for (const auto& port : ports) {
    send(port.name);
    send(static_cast<std::uint64_t>(port.type.type));
    send(port.type.shape ? port.type.shape->size() : kUnknownRank);
    if (!port.type.shape) continue;
    for (const auto& dim : *port.type.shape) send(static_cast<std::uint64_t>(dim.value));
  }
}

std::vector<Port> GuardChannel::ports() {
  std::vector<Port> all(number());
  for (auto& port : all) {
    port.name = text();
    port.type.type = static_cast<onnx::DataType>(number());
    const auto rank = number();
    if (rank == kUnknownRank) continue;
    auto& dims = port.type.shape.emplace();
    for (std::uint64_t i = 0; i < rank; ++i) dims.push_back({static_cast<std::int64_t>(number()), ""});
  }
  return all;
}

}  // namespace detent::exec
