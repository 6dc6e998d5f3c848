// An option changes the identity of a run if and only if its row says so.
#include "config/validate.h"

#include <nlohmann/json.hpp>

#include "support.h"

namespace detent::config {
namespace {

template <class Options>
void expect_identity_follows_the_rows(unsigned command) {
  const Options fresh;
  std::size_t checked = 0;
  for (const auto& option : options()) {
    if ((option.commands & command) == 0) continue;
    Options changed;
    const auto member = option.member(changed);
    if (!member) continue;
    SCOPED_TRACE(option.name);
    test::change(*member);
    ASSERT_NE(json_of(*member), json_of(*read_only(option, fresh)));
    for (const auto what : {Affects::statistics, Affects::integers})
      EXPECT_EQ(identity(changed, what) != identity(fresh, what), option.affects == what);
    ++checked;
  }
  EXPECT_GT(checked, 20U);
}

TEST(Identity, ChangesWithTheOptionsThatAffectIt) {
  expect_identity_follows_the_rows<QuantizeOptions>(kQuantize);
  expect_identity_follows_the_rows<CalibrateOptions>(kCalibrate);
}

TEST(Identity, IntegersCountWhereLayersMayBeTuned) {
  QuantizeOptions options;
  options.finetune.rounding = WeightSolver::nearest;
  const auto plain = run_identity(options);
  options.finetune.damping = 0.5;
  EXPECT_EQ(run_identity(options), plain);
  options.finetune.rounding = WeightSolver::gptq;
  const auto tuned = run_identity(options);
  EXPECT_EQ(tuned.at("--set damping"), 0.5);
  options.config.per_channel = false;
  EXPECT_NE(run_identity(options), tuned);
}

TEST(Identity, ADeviceIsNotItsNumber) {
  QuantizeOptions one, other, two;
  one.device.cuda = {0};
  other.device.cuda = {3};
  two.device.cuda = {0, 3};
  EXPECT_EQ(identity(one, Affects::statistics), identity(other, Affects::statistics));
  EXPECT_NE(identity(one, Affects::statistics), identity(two, Affects::statistics));
  EXPECT_NE(identity(one, Affects::statistics), identity(QuantizeOptions(), Affects::statistics));
}

}  // namespace
}  // namespace detent::config
