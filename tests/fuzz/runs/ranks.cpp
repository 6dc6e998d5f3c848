// What other ranks send: whatever it is, a rank takes it, or says that it is no message of this program.
#include <cmath>

#include "calibration/statistics_file.h"
#include "fuzz/fuzz.h"
#include "fuzz/runs/sealed.h"
#include "mpi/peer.h"
#include "pipeline/search_points.h"
#include "remedies/trials.h"
#include "run/collect.h"
#include "shim/shared_work.h"
#include "solve/sweep/solved_layers.h"

namespace detent::fuzz {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> messages_of(Parts& parts) {
  std::vector<std::string> messages;
  while (!parts.empty()) messages.push_back(parts.text());
  return messages;
}

void take_values(int rank, const std::vector<std::string>& messages) {
  std::vector<double> sizes;
  for (const auto& message : messages) sizes.push_back(static_cast<double>(message.size()));
  require(shim::owners_of(sizes, 2).size() == sizes.size(), "each item has an owner");
  for (const auto& message : messages) {
    try_to([&] {
      const auto share = pipeline::read_share(1, as_byte_span(message), std::vector<SearchPoint>(1));
      require(share.attempts.size() == (share.cut_off ? 0U : 1U), "each model that was asked for has figures");
    });
  }
  auto ranks = test::beside_peer(rank, messages);
  try_to([&] {
    pipeline::broadcast_points(&ranks, {}, {});
    shim::any_of(&ranks, false);
    shim::broadcast_names(&ranks, {"a", ""});
    shim::broadcast_value(&ranks, std::uint64_t{1});
    const auto all = shim::all_gather(&ranks, std::vector<std::byte>(3));
    require(all.size() == 2 && (rank != 0 || all[0].size() == 3), "what rank 0 has stays");
  });
}

void take_files(int rank, const std::vector<std::string>& messages) {
  const fs::path directory = fresh_folder("gathered/folder");
  put("gathered/folder/mine", as_byte_span("content"));
  auto ranks = test::beside_peer(rank, messages);
  try_to([&] {
    for (const auto& name : shim::gather_files(&ranks, directory, {"mine"}))
      require(fs::is_regular_file(fs::symlink_status(directory / name)), "what came is there");
  });
  require(std::distance(fs::directory_iterator(directory.parent_path()), {}) == 1, "nothing is written elsewhere");
}

// Bits of `form`: what was saved is damaged; nothing was saved, since this run goes on after another.
void take_solved(int rank, Parts& parts) {
  constexpr unsigned kDamaged = 1, kResumed = 2;
  const std::size_t layers = parts.byte() % 4U;
  const unsigned form = parts.byte();
  std::vector<std::string> messages;
  while (!parts.empty()) {
    if (parts.byte() % 2 == 0) {
      messages.push_back(parts.text());
    } else {
      const auto text = parts.text();
      messages.push_back(solved_file(text, parts.piece()));
    }
  }
  const fs::path directory = fresh_folder("shared");
  auto ranks = test::beside_peer(rank, messages);
  try_to([&] {
    const solve::SolvedLayers solved(directory, &ranks);
    if ((form & kResumed) == 0) solved.save(1, std::vector<solve::SolvedLayer>(layers));
    if ((form & kDamaged) != 0) put("shared/solved-1", as_byte_span("damaged"));
    const auto found = solved.load(1, layers);
    require(!found || found->size() == layers, "there is what was solved of each layer");
  });
}

void take_trials(int rank, const std::vector<std::string>& messages) {
  auto ranks = test::beside_peer(rank, messages);
  const std::vector<remedies::Trial> trials(2);
  try_to([&] {
    const auto all = remedies::share_trials(&ranks, trials, {}, [](std::span<const remedies::Trial> mine) {
      return std::vector<remedies::TrialResult>(mine.size());
    });
    require(all.size() == trials.size(), "each trial has a result");
  });
}

void take_statistics(int rank, Parts& parts) {
  calibration::Statistics statistics;
  std::vector<std::string> messages;
  while (!parts.empty()) {
    const auto text = parts.text();
    messages.push_back(sealed(text));
    try_to([&] { statistics = calibration::decode(as_byte_span(messages.back()), "it"); });
  }
  auto ranks = test::beside_peer(rank, messages);
  try_to([&] {
    run::merge_statistics(ranks, statistics, {});
    calibration::decode(as_byte_span(calibration::encode(statistics)), "what was merged");
  });
}

void run_ranks(Bytes input) {
  Parts parts(input);
  const auto form = parts.byte();
  const int rank = parts.byte() % 2;
  switch (form % 5) {
    case 0: return take_values(rank, messages_of(parts));
    case 1: return take_files(rank, messages_of(parts));
    case 2: return take_solved(rank, parts);
    case 3: return take_trials(rank, messages_of(parts));
    default: return take_statistics(rank, parts);
  }
}

const Registered ranks{{"ranks", run_ranks, {}, 0, 20}};

}  // namespace
}  // namespace detent::fuzz
