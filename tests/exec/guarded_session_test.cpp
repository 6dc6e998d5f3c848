// Sessions in a process of their own. Where the program is not built, they are of this process, with the same results.
#include "exec/guarded_session.h"

#include "exec/support.h"

namespace detent::exec::test {
namespace {

class GuardedSessionTest : public onnx::test::ModelTest {
 protected:
  GuardedSessionTest() {
    const Model made = make_model({{"Mul", "", {"x", "w"}, {"y"}}, {"Shape", "", {"y"}, {"z"}}},
                                  {floats("w", {1000}, Floats(1000, 2.5F))}, 13, {value("x", {-1, 1000})},
                                  {value("y", {-1, 1000}), value("z", {2}, DataType::int64)});
    onnx::write_model(made, at("model.onnx"), {100});
  }
};

TEST_F(GuardedSessionTest, ComputesWhatASessionComputes) {
  GuardedSession guarded(runtime(), at("model.onnx"), {});
  auto plain =
      Session::of_file(runtime(), at("model.onnx"), {.tuning = SessionMode::deployed, .threads = 0, .stop = {}});
  ASSERT_EQ(guarded.inputs().size(), 1U);
  EXPECT_EQ(guarded.inputs()[0].name, "x");
  EXPECT_EQ(guarded.inputs()[0].type.type, DataType::float32);
  for (const std::int64_t rows : {1, 7, 0}) {
    const std::vector<Array> inputs{random_floats({rows, 1000})};
    const auto found = guarded.run(inputs, "a sample"), wanted = plain.run(inputs, "a sample");
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].type, wanted[i].type);
      EXPECT_EQ(found[i].shape, wanted[i].shape);
      EXPECT_EQ(bytes_of(found[i]), bytes_of(wanted[i]));
    }
  }
}

TEST_F(GuardedSessionTest, ErrorsComeThrough) {
  GuardedSession guarded(runtime(), at("model.onnx"), {});
  expect_error([&] { guarded.run(std::vector<Array>{random_floats({3})}, "sample 'a'"); }, "sample 'a'");
  expect_error([&] { GuardedSession(runtime(), at("missing.onnx"), {}); }, "missing.onnx");
  check_survives(runtime(), at("model.onnx"));
  check_survives(runtime(), at("missing.onnx"));  // loading it tells more
}

TEST_F(GuardedSessionTest, StopsWhenAsked) {
  std::stop_source source;
  source.request_stop();
  expect_error([&] { GuardedSession(runtime(), at("model.onnx"), {.stop = source.get_token()}).run({}, ""); },
               "interrupted", ErrorKind::interrupted);
}

}  // namespace
}  // namespace detent::exec::test
