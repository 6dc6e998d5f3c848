#include "cli/model_to_stdout.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/error.h"
#include "base/failure.h"
#include "base/paths.h"
#include "cli/output/output.h"

namespace detent::cli {
namespace {

constexpr const char* kName = "model.onnx";
constexpr const char* kGiveFile = "give a file name";

void check(const QuantizeOptions& options) {
  if (::isatty(STDOUT_FILENO) == 1)
    throw usage_error("-o -: a model would fill the terminal", "send it to a file or a program, as in: > model.onnx");
  if (options.resources.resume) throw usage_error("--resume needs an output that a later run finds again", kGiveFile);
  if (options.external_data_threshold)
    throw usage_error("-o -: with --set external-data-threshold there would be two files to write", kGiveFile);
  if (!options.family.empty()) throw usage_error("-o -: --family writes a folder", "give the name of a new one");
  if (paths::is_folder(options.model))
    throw usage_error("-o -: the result of a folder is a folder", "give the name of a new one");
}

void write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) throw StdoutClosed();
    if (written < 0) throw resource_error("cannot write to standard output: " + errno_text(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

}  // namespace

ModelToStdout::ModelToStdout(QuantizeOptions& options) {
  if (options.output != "-") return;
  check(options);
  stdout_ = UniqueFd(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  if (!stdout_.valid() || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
    throw failed_call(errno, "-o -", ErrorKind::resource);
  directory_.emplace(options.resources.work_dir.value_or(""));
  options.output = directory_->path() / kName;
}

void ModelToStdout::send() {
  if (!is_wanted()) return;
  for (const auto& file : paths::entries_of(directory_->path())) {
    if (file.filename() != kName)
      throw bad_input("-o -: the model is larger than 2 GiB, so that its weights are in a file of their own",
                      kGiveFile);
  }
  const auto model = MappedFile::open(directory_->path() / kName, "model");
  write_all(stdout_.get(), model->bytes());
}

}  // namespace detent::cli
