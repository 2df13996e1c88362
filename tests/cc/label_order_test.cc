#include "refurbish_tf/cc/schedule/label_order.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/schedule/random.h"

namespace refurbish_tf {
namespace {

bool IsSorted(const std::vector<int64_t>& labels) {
  LabelOrder order;
  for (const int64_t label : labels) order.Add(label);
  EXPECT_EQ(order.count(), static_cast<int64_t>(labels.size()));
  return order.IsSorted();
}

// Of class 0 so many, then of class 1, ...
std::vector<int64_t> Sorted(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> labels;
  for (size_t label = 0; label < sizes.size(); ++label) {
    labels.insert(labels.end(), sizes[label], label);
  }
  return labels;
}

std::vector<int64_t> Shuffled(std::vector<int64_t> labels, uint64_t seed) {
  RandomStream random(seed);
  ShuffleRange(labels.begin(), labels.end(), random);
  return labels;
}

TEST(LabelOrderTest, WholeClassesAreSorted) {
  EXPECT_TRUE(IsSorted(Sorted({20, 20})));
  EXPECT_TRUE(IsSorted(Sorted(std::vector<int64_t>(10, 30))));
  EXPECT_TRUE(IsSorted(Sorted(std::vector<int64_t>(1000, 20))));
  EXPECT_TRUE(IsSorted(Sorted({9000, 1000})));
  // In an order of their own, and down.
  EXPECT_TRUE(IsSorted({7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
                        3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}));
}

TEST(LabelOrderTest, FilesThatAreSortedEachAreSorted) {
  std::vector<int64_t> labels;
  for (int file = 0; file < 5; ++file) {
    const std::vector<int64_t> sorted = Sorted({40, 40, 40});
    labels.insert(labels.end(), sorted.begin(), sorted.end());
  }
  EXPECT_TRUE(IsSorted(labels));
}

TEST(LabelOrderTest, RandomOrderIsNotSorted) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{20, 20}, {500, 500}, {990, 10}, {999, 1},
          std::vector<int64_t>(100, 5)}) {
      ASSERT_FALSE(IsSorted(Shuffled(Sorted(sizes), seed)));
    }
  }
}

TEST(LabelOrderTest, ClassesInTurnAreNotSorted) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 1000; ++i) labels.push_back(i % 10);
  EXPECT_FALSE(IsSorted(labels));
}

TEST(LabelOrderTest, WhatIsNoClassIsNotSorted) {
  EXPECT_FALSE(IsSorted({}));
  EXPECT_FALSE(IsSorted({1}));
  EXPECT_FALSE(IsSorted(Sorted({1000})));
  // Positions, and more of them than there can be classes.
  EXPECT_FALSE(IsSorted(Sorted(std::vector<int64_t>(1000, 1))));
  EXPECT_FALSE(IsSorted(Sorted(std::vector<int64_t>(100'000, 20))));
}

TEST(LabelOrderTest, FewSamplesAreNotSorted) {
  EXPECT_FALSE(IsSorted(Sorted({3, 3})));
  EXPECT_FALSE(IsSorted(Sorted({8, 8})));
  EXPECT_FALSE(IsSorted(Sorted({5, 5, 5, 5})));
}

}  // namespace
}  // namespace refurbish_tf
