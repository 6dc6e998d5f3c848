// A limit on time: it ends a run, and only when it has passed.
#include "run/context.h"

#include <gtest/gtest.h>

#include <stop_token>
#include <thread>

#include "detent/resources.h"

namespace detent::run {
namespace {

struct Options {
  Resources resources;
  std::stop_token stop;
};

// Runs until it is stopped.
int endless(const Options& options) {
  while (!options.stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  throw interrupted();
}

Error end_of(const Options& options) {
  try {
    within_time(options, endless);
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
  Options options{{}, user.get_token()};
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
