// Runs of several models in turns.
#include "exec/timing.h"

#include "exec/support.h"

namespace detent::exec::test {
namespace {

Session product(std::int64_t size) {
  const Model model =
      make_model({{"MatMul", "", {"x", "x"}, {"y"}}}, {}, 17, {value("x", {size, size})}, {value("y", {size, size})});
  return {runtime(), emit(model), "the model", {SessionMode::deployed, 1, {}}};
}

TEST(Turns, AreAsManyForEachModel) {
  const std::vector<std::vector<Array>> few{{random_floats({16, 16})}}, many{{random_floats({256, 256})}};
  const std::vector<Timed> models{{[] { return product(16); }, "small", few},
                                  {[] { return product(256); }, "large", many}};
  const auto turns = time_interleaved(models, {.seconds = 0, .least_rounds = 2});
  ASSERT_EQ(turns.size(), 2U);
  ASSERT_EQ(turns[0].size(), 2U);
  ASSERT_EQ(turns[1].size(), 2U);
  for (std::size_t t = 0; t < 2; ++t) EXPECT_EQ(turns[0][t].size(), turns[1][t].size());
  const auto& runs = turns[1].front();
  for (const auto& run : runs) {
    EXPECT_GT(run.wall, 0);
    EXPECT_GT(run.cpu, 0);
  }
  // Two clocks, read one after the other: of a machine that halts in between, only some run tells.
  EXPECT_TRUE(std::any_of(runs.begin(), runs.end(), [](const auto& r) { return r.own <= r.wall * 1.05 + 1e-3; }));
}

TEST(Turns, KeepToTheNumberOfRuns) {
  const std::vector<std::vector<Array>> samples{{random_floats({16, 16})}};
  const std::vector<Timed> models{{[] { return product(16); }, "m", samples}};
  std::size_t runs = 0;
  const auto turns = time_interleaved(models, {.runs = 1234});
  for (const auto& turn : turns.front()) runs += turn.size();
  EXPECT_EQ(runs, 1234U);
}

TEST(Turns, OfOneAtATimeOpenEachModelForTwoTurns) {
  std::string opened;
  const auto opener = [&](char name) {
    return [&opened, name] {
      opened += name;
      return product(16);
    };
  };
  const std::vector<std::vector<Array>> samples{{random_floats({16, 16})}};
  const std::vector<Timed> models{{opener('a'), "a", samples}, {opener('b'), "b", samples}};
  const auto turns = time_interleaved(models, {.seconds = 0, .least_rounds = 4, .one_open = true});
  EXPECT_EQ(opened, "ababab");  // each once to see its pace, then b a, a b, b a, a b
  for (const auto& of_model : turns) EXPECT_EQ(of_model.size(), 4U);
  opened.clear();
  time_interleaved(models, {.seconds = 0, .least_rounds = 4});
  EXPECT_EQ(opened, "ab");
}

}  // namespace
}  // namespace detent::exec::test
