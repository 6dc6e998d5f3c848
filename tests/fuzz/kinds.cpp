#include "fuzz/kinds.h"

namespace detent::fuzz {
namespace {

const Kind kLeaf{};  // with fields that are no messages
const Kind kDimension{};
const Kind kShape{{{1, &kDimension}}};
extern const Kind kType;
const Kind kElements{{{1, &kType}}};
const Kind kTensorType{{{2, &kShape}}};
const Kind kType{{{1, &kTensorType}, {4, &kElements}, {5, &kElements}, {8, &kTensorType}, {9, &kElements}}};
const Kind kValueInfo{{{2, &kType}}};
const Kind kSummary{{{10, &kLeaf}, {11, &kLeaf}, {12, &kLeaf}, {13, &kLeaf}}};

}  // namespace

const Kind kTensor{{{3, &kLeaf}, {13, &kLeaf}}};
const Kind kSparseTensor{{{1, &kTensor}, {2, &kTensor}}};
const Kind kAttribute{{{5, &kTensor},
                       {6, &kGraph},
                       {10, &kTensor},
                       {11, &kGraph},
                       {14, &kType},
                       {15, &kType},
                       {22, &kSparseTensor},
                       {23, &kSparseTensor}}};
const Kind kNode{{{5, &kAttribute}, {9, &kLeaf}}};
const Kind kGraph{{{1, &kNode},
                   {5, &kTensor},
                   {11, &kValueInfo},
                   {12, &kValueInfo},
                   {13, &kValueInfo},
                   {14, &kLeaf},
                   {15, &kSparseTensor},
                   {16, &kLeaf}}};
const Kind kFunction{{{7, &kNode}, {9, &kLeaf}, {11, &kAttribute}, {12, &kValueInfo}}};
const Kind kTraining{{{1, &kGraph}, {2, &kGraph}, {3, &kLeaf}, {4, &kLeaf}}};
const Kind kModel{{{7, &kGraph}, {8, &kLeaf}, {14, &kLeaf}, {20, &kTraining}, {25, &kFunction}}};
const Kind kStatistics{{{6, &kSummary}}};

}  // namespace detent::fuzz
