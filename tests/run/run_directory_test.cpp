#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <stop_token>
#include <thread>

#include "detent/error.h"
#include "detent/resources.h"
#include "run/context.h"
#include "run/files/run_directory.h"

namespace detent::run {
namespace {

// What a run leaves for a later one, and what is saved in it.

namespace fs = std::filesystem;
using Json = nlohmann::json;

class RunDirectories : public testing::Test {
 protected:
  RunDirectories() { resources_.work_dir = work_.path(); }

  Json identity(const std::string& output = "/q.onnx") const {
    return {{"output", output}, {"rank", 0}, {"--samples", 4}, {"model", "m"}};
  }
  bool is_empty() const { return fs::is_empty(work_.path()); }
  // A run that ends before its output is there; its directory.
  fs::path interrupted() {
    resources_.resume = true;
    return RunDirectory(resources_, identity()).path();
  }
  std::string refusal(const Json& wanted) {
    try {
      RunDirectory(resources_, wanted);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return {};
  }

  TempDir work_;
  Resources resources_;
};

TEST_F(RunDirectories, ArePrivateAndGoWithTheRun) {
  {
    const RunDirectory run(resources_, identity());
    EXPECT_EQ(fs::status(run.path()).permissions(), fs::perms::owner_all);
    EXPECT_EQ(run.path().parent_path(), work_.path());
    EXPECT_FALSE(run.resumed());
  }
  EXPECT_TRUE(is_empty());
}

TEST_F(RunDirectories, StayOnlyToBeResumed) {
  const auto path = interrupted();
  ASSERT_TRUE(fs::exists(path));
  EXPECT_EQ(std::distance(fs::directory_iterator(path), {}), 1) << "only what tells which run it was";
  {
    RunDirectory again(resources_, identity());
    EXPECT_TRUE(again.resumed());
    EXPECT_EQ(again.path(), path);
    again.finish();
  }
  EXPECT_TRUE(is_empty());
}

TEST_F(RunDirectories, OfAnotherOutputOrRankAreLeftAlone) {
  const auto path = interrupted();
  auto other = identity();
  other["rank"] = 1;
  for (const auto& wanted : {identity("/other.onnx"), other}) {
    RunDirectory run(resources_, wanted);
    EXPECT_FALSE(run.resumed());
    run.finish();
  }
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(RunDirectories, NameWhatHasChanged) {
  interrupted();
  auto changed = identity();
  changed["--samples"] = 5;
  EXPECT_NE(refusal(changed).find("its --samples was 4, now it is 5"), std::string::npos) << refusal(changed);
}

TEST_F(RunDirectories, OfARunThatGoesOnAreRefused) {
  resources_.resume = true;
  const RunDirectory run(resources_, identity());
  EXPECT_NE(refusal(identity()).find("is still going on"), std::string::npos);
}

TEST_F(RunDirectories, AreMentionedToARunThatDoesNotResume) {
  const auto path = interrupted();
  resources_.resume = false;
  const RunDirectory run(resources_, identity());
  ASSERT_EQ(run.notes().size(), 1U);
  EXPECT_NE(run.notes()[0].find(path.string()), std::string::npos);
}

TEST_F(RunDirectories, WithADamagedIdentityAreNotTakenUp) {
  std::ofstream(interrupted() / "run.json") << "{";
  EXPECT_FALSE(RunDirectory(resources_, identity()).resumed());
}

// A folder that only this user may look into, with files that nobody else may read.
fs::path private_folder(const fs::path& path, const std::vector<std::string>& files = {}) {
  EXPECT_EQ(::mkdir(path.c_str(), 0700), 0);
  for (const auto& name : files) {
    std::ofstream(path / name).flush();
    EXPECT_EQ(::chmod((path / name).c_str(), 0600), 0);
  }
  return path;
}

// By a process that was killed before it could say whose they are, or while it removed them.
TEST_F(RunDirectories, ThatWereAbandonedGoWithTheNextRunOfAnyOutput) {
  for (const bool resume : {false, true}) {
    const auto held = private_folder(work_.path() / "detent-run-held", {"run.json"});
    const UniqueFd file(::open((held / "run.json").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(file.get(), LOCK_EX | LOCK_NB), 0);
    const std::set<fs::path> stay{held,
                                  private_folder(work_.path() / "detent-other"),
                                  private_folder(work_.path() / "detent-named", {"run.json"}),
                                  private_folder(work_.path() / "another", {"run.json"}),
                                  private_folder(work_.path() / "detent-run-kept", {"b"}),
                                  private_folder(work_.path() / "detent-run-open")};
    fs::permissions(work_.path() / "detent-run-open", fs::perms::others_read, fs::perm_options::add);
    private_folder(work_.path() / "detent-run-empty");
    private_folder(work_.path() / "detent-run-half", {"run.json", "progress.json"});
    fs::create_directories(work_.path() / "detent-run-half/detent-scratch/deep");
    fs::resize_file(private_folder(work_.path() / "detent-run-zeros", {"run.json"}) / "run.json", 300);
    resources_.resume = resume;
    {
      RunDirectory run(resources_, identity("/another.onnx"));
      EXPECT_FALSE(run.resumed());
      run.finish();
    }
    EXPECT_EQ(std::set<fs::path>(fs::directory_iterator(work_.path()), {}), stay);
    for (const auto& path : stay) fs::remove_all(path);
  }
}

// Killed: the descriptor, and so the lock, is gone with the process.
TEST_F(RunDirectories, ThatAreNoRunsStayAsLongAsTheirProcess) {
  EXPECT_EXIT(
      {
        const PrivateDirectory killed(resources_);
        std::ofstream(killed.path() / "samples") << "1";
        std::_Exit(7);
      },
      testing::ExitedWithCode(7), "");
  EXPECT_FALSE(fs::is_empty(work_.path()));
  std::optional<PrivateDirectory> alive(resources_);
  std::ofstream(alive->path() / "samples") << "1";
  { const RunDirectory run(resources_, identity("/another.onnx")); }
  EXPECT_EQ(std::set<fs::path>(fs::directory_iterator(work_.path()), {}), std::set<fs::path>{alive->path()});
  EXPECT_TRUE(fs::exists(alive->path() / "samples"));
  alive.reset();
  EXPECT_TRUE(fs::is_empty(work_.path()));
}

// Each may find another's when it is just made, or just removed.
TEST_F(RunDirectories, OfManyAtATimeAreTheirOwn) {
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 300; ++i) {
        Resources resources = resources_;
        resources.resume = i % 2 == 0;
        RunDirectory run(resources, identity(fmt::format("/{}.onnx", thread)));
        EXPECT_FALSE(run.resumed());
        EXPECT_GT(fs::file_size(run.path() / "run.json"), 0U);
        run.finish();
      }
    });
  }
  threads.clear();
  EXPECT_TRUE(is_empty());
}

// In a directory like /tmp anybody can make something whose name begins with detent-.
TEST_F(RunDirectories, AreNotTrustedWhenSomebodyElseCouldHaveMadeThem) {
  const auto path = interrupted();
  const auto refused = [&](const char* why) {
    RunDirectory run(resources_, identity());
    EXPECT_FALSE(run.resumed()) << why;
    run.finish();
  };
  fs::permissions(path, fs::perms::others_read, fs::perm_options::add);
  refused("others may look into it");
  fs::permissions(path, fs::perms::owner_all);
  fs::permissions(path / "run.json", fs::perms::group_write, fs::perm_options::add);
  refused("others may write its identity");
  fs::permissions(path / "run.json", fs::perms::owner_read | fs::perms::owner_write);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
    refused("it is another user's");
    ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
    ASSERT_EQ(::chown((path / "run.json").c_str(), 12345, 12345), 0);
    refused("its identity is another user's");
    ASSERT_EQ(::chown((path / "run.json").c_str(), 0, 0), 0);
  }
  const fs::path real = work_.path() / "real";
  fs::rename(path, real);
  fs::create_directory_symlink(real, path);
  refused("a link");
  fs::remove(path);
  fs::rename(real, path);
  EXPECT_TRUE(RunDirectory(resources_, identity()).resumed());
}

TEST_F(RunDirectories, PlantedOnesHurtNobody) {
  const fs::path path = work_.path() / "detent-x";
  ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
  const auto starts = [&](const char* what) {
    for (const bool resume : {false, true}) {
      resources_.resume = resume;
      RunDirectory run(resources_, identity());
      EXPECT_FALSE(run.resumed()) << what;
      run.finish();
    }
    fs::remove_all(path / "run.json");
  };
  ASSERT_EQ(::mkfifo((path / "run.json").c_str(), 0600), 0);
  starts("a FIFO");
  fs::create_directory(path / "run.json");
  starts("a folder");
  fs::create_symlink("/dev/zero", path / "run.json");
  starts("a link to a device");
  for (const char* text : {"[1]", "7", "{}", R"({"output": 5, "rank": "0"})", R"({"output": "/q.onnx", "rank": [0]})",
                           R"({"output": {"a": 1}})", "\xff\xfe"}) {
    std::ofstream(path / "run.json") << text;
    ASSERT_EQ(::chmod((path / "run.json").c_str(), 0600), 0);
    starts(text);
  }
  { std::ofstream(path / "run.json") << std::string(1 << 20, '['); }
  ASSERT_EQ(::chmod((path / "run.json").c_str(), 0600), 0);
  fs::resize_file(path / "run.json", std::uintmax_t{1} << 40);  // takes no room on the disk
  starts("a terabyte");
}

TEST_F(RunDirectories, LoseTheScratchOfAKilledProcess) {
  const auto path = interrupted();
  fs::create_directories(path / "detent-killed" / "deep");
  std::ofstream(path / "progress.json") << "{}";
  const RunDirectory again(resources_, identity());
  EXPECT_FALSE(fs::exists(path / "detent-killed"));
  EXPECT_TRUE(fs::exists(path / "progress.json"));
}

CalibrationProgress progress(std::size_t done) {
  CalibrationProgress made;
  made.cuts = {3, 7};
  made.segment = 1;
  made.done = done;
  made.samples = 9;
  return made;
}

TEST(Checkpoint, TheLastOneCounts) {
  const TempDir directory;
  EXPECT_FALSE(Checkpoints(directory.path(), 10).load());
  Checkpoints first(directory.path(), 10);
  first.save(progress(1));
  first.save(progress(2));
  Checkpoints(directory.path(), 10).save(progress(5));  // of a later process
  const auto loaded = Checkpoints(directory.path(), 10).load();
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->cuts, (std::vector<int>{3, 7}));
  EXPECT_EQ(loaded->segment, 1U);
  EXPECT_EQ(loaded->done, 5U);
  EXPECT_EQ(loaded->samples, 9U);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 2) << "earlier ones are gone";
}

TEST(Checkpoint, DamageIsABadInput) {
  const TempDir directory;
  for (const char* text :
       {"", "{", "{}", R"({"cuts": 3})", R"({"cuts": [], "segment": 0, "done": 0, "samples": 0, "save": 8})"}) {
    std::ofstream(directory.path() / "progress.json") << text;
    try {
      Checkpoints(directory.path(), 10).load();
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input) << text;
    }
  }
}

TEST(Checkpoint, IsDueAfterSoManySeconds) {
  const TempDir directory;
  const auto now = std::chrono::steady_clock::now();
  const Checkpoints always(directory.path(), 0);
  EXPECT_LE(always.due(), std::chrono::steady_clock::now());
  EXPECT_GT(Checkpoints(directory.path(), 100).due(), now + std::chrono::seconds(90));
}

TEST(Checkpoints, SayThatProgressIsDamaged) {
  const TempDir folder;
  for (const char* text : {"7", "[]", "{}", "null", R"({"save":"1"})", R"({"save":-1,"cuts":7})", "{"}) {
    std::ofstream(folder.path() / "progress.json") << text;
    Checkpoints checkpoints(folder.path(), 0);
    for (const bool saves : {false, true}) {
      try {
        saves ? checkpoints.save({}) : static_cast<void>(checkpoints.load());
        EXPECT_TRUE(saves) << text;  // a number is enough to save the next one
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::bad_input) << text;
      }
    }
  }
}

// A limit on time: it ends a run, and only when it has passed.

// Runs until it is stopped.
int endless(const Options& options) {
  while (!options.stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  throw interrupted();
}

Error end_of(const Options& options) {
  try {
    within_time(options, endless, hint_to_resume(options.resources));
  } catch (const Error& e) {
    return e;
  }
  return internal_error("no error");
}

TEST(Deadline, EndsARunAndTellsHowToGoOn) {
  Options options;
  options.resources.time_limit = 0.05;
  EXPECT_EQ(end_of(options).kind(), ErrorKind::resource);
  EXPECT_STREQ(end_of(options).what(), "the time limit of 0.05 s has passed");
  EXPECT_NE(end_of(options).hint().find("--resume"), std::string::npos);
  options.resources.resume = true;
  EXPECT_NE(end_of(options).hint().find("the same command"), std::string::npos);
}

TEST(Deadline, LeavesTheUsersStopWhatItIs) {
  std::stop_source user;
  Options options;
  options.stop = user.get_token();
  options.resources.time_limit = 1e300;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    user.request_stop();
  });
  EXPECT_EQ(end_of(options).kind(), ErrorKind::interrupted);
}

TEST(Deadline, OfARunThatEndsBeforeIsNotWaitedFor) {
  Options options;
  options.resources.time_limit = 1000;
  EXPECT_EQ(within_time(options, [](const Options&) { return 7; }), 7);
}

}  // namespace
}  // namespace detent::run
