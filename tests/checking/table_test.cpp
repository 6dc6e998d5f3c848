// The tables: what is found for forms that stand in them, and for those next to them.
#include "checking/signature.h"

#include <gtest/gtest.h>

#include "config/targets.h"

namespace detent::checking {
namespace {

Signature forms(const std::string& first, const std::string& second, const std::string& output) {
  return {{first}, {second, second.find('/') != std::string::npos}, {output}};
}

std::string kernel(const Table& table, std::string_view op_type, const Signature& f) {
  const auto* row = table.find(op_type, f);
  return row == nullptr ? "" : std::string(row->kernel);
}

TEST(Table, RowsWithAlternativesAndAny) {
  const Table table("# comment\nConv|Gemm\tu8|s8=\ts8=/c\t*\tint8\twhy\n*\tf32\t*\t*\tfloat32\n");
  EXPECT_EQ(kernel(table, "Gemm", forms("s8=", "s8=/c", "f32")), "int8");
  EXPECT_EQ(table.find("Conv", forms("u8", "s8=/c", "u8"))->rule, "why");
  EXPECT_EQ(kernel(table, "Relu", forms("f32", "-", "f32")), "float32");
  EXPECT_EQ(kernel(table, "Conv", forms("u16", "s8=/c", "u16")), "");
}

TEST(Table, ZeroPointsThatNoRowTellsApart) {
  const Table table("MaxPool\tu8\t-\tu8\tint8\nAdd\tu8\tu8\tu8\tint8\n");
  EXPECT_EQ(kernel(table, "MaxPool", forms("u8=", "-", "u8")), "int8");
  EXPECT_EQ(kernel(table, "Add", forms("u8", "u8=", "u8")), "int8");
  EXPECT_EQ(kernel(table, "Add", forms("u8", "u8", "u8=")), "int8");
  EXPECT_EQ(kernel(table, "Add", forms("u8", "f32", "u8")), "int8");
  EXPECT_EQ(kernel(table, "Add", forms("u8=", "f32", "u8")), "int8");
}

TEST(Table, RowsOfWeightsAreNotOfFirstInputs) {
  const Table table("*\t*\ts8/t\t*\trefused\n");
  Signature both = forms("s8=/t", "-", "s8=");
  both.first.is_constant = true;
  EXPECT_EQ(kernel(table, "Gather", both), "");
}

TEST(Table, ConstantsOnTheLeftAndResultsOfAnotherWidth) {
  const Table table("Add\tu8\tu8/t\tu8\thtp\nConv\tu8\ts8=/c\tu16\tcpu\nConv\tu8\ts8=/c\tu8\thtp\n");
  Signature left = forms("u8/t", "u8", "u8");
  left.first.is_constant = true;
  EXPECT_EQ(kernel(table, "Add", left), "htp");
  EXPECT_EQ(kernel(table, "Conv", forms("u8", "s8=/c", "u16=")), "cpu");
  EXPECT_EQ(kernel(table, "Conv", forms("u8", "s8=/c", "u8=")), "htp");
}

TEST(Table, WhatUint8WeightsCostInOpenVino) {
  const auto* table = table_of("openvino");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(kernel(*table, "Conv", forms("u8", "u8=/t", "u8")), "float32");
  EXPECT_EQ(kernel(*table, "Conv", forms("u8", "s8=/c", "u8")), "int8");
  EXPECT_EQ(kernel(*table, "MatMul", forms("u8", "u8", "f32")), "float32");
  const auto* better = table->nearest_on_integers("Conv", forms("u8", "u8=/c", "u8"));
  ASSERT_NE(better, nullptr);
  EXPECT_EQ(better->first, "u8");
  EXPECT_TRUE(better->second.starts_with("s8="));
}

TEST(Table, WhatChoosesByValuesIsLeftToTheCpu) {
  for (const auto* target : {"amd-npu:a8w8", "amd-npu:a16w8", "qnn"}) {
    for (const auto* first : {"s8=", "s16=", "bf", "f32"}) {
      const auto found = kernel(*table_of(target), "NonMaxSuppression", forms(first, "f32", "-"));
      EXPECT_TRUE(found.empty() || found == "cpu") << target << ' ' << first << ' ' << found;
    }
  }
}

TEST(Table, EveryTargetButTheFloatOfAmdHasOne) {
  for (const auto& target : config::targets())
    EXPECT_NE(table_of(target.is_ort_cpu ? "ort-cpu" : target.name), nullptr) << target.name;
}

}  // namespace
}  // namespace detent::checking
