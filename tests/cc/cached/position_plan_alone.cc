// The consumer and a source that requests ahead agree on which elements are loaded from the store and which are read.
#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/cached/position_plan.h"
#include "tests/cc/refurbish/plain_samples.h"

namespace refurbish_tf {
namespace {

constexpr uint32_t kElements = 400;

class PositionPlanTest : public testing::Test {
 protected:
  PositionPlanTest() {
    const SampleTypes types = {{tensorflow::DT_INT64}, {tensorflow::PartialTensorShape({})}};
    EXPECT_TRUE(source_->Configure(kElements, "", std::make_shared<PlainSamples>(), types).ok());
  }

  void Keep(uint32_t index) {
    Sample element = {tensorflow::Tensor(int64_t{index})};
    source_->Put(index, 0, &element);
  }

  // Maps positions to the elements, last to first. Every fifth position belongs to another source.
  static bool IsElsewhere(size_t position) { return position % 5 == 4; }
  static absl::StatusOr<size_t> Map(size_t position) {
    if (position >= 5 * kElements / 4) return absl::OutOfRangeError("The end.");
    if (IsElsewhere(position)) return absl::NotFoundError("Another source has it.");
    return kElements - 1 - (position - position / 5);
  }

  std::unique_ptr<PositionPlan> Plan(size_t first = 0) { return std::make_unique<PositionPlan>(source_, Map, first); }

  const std::shared_ptr<CachedSource> source_ = std::make_shared<CachedSource>("alone");
};

TEST_F(PositionPlanTest, LoadsKeptElementsAndReadsTheOthers) {
  for (uint32_t index = 0; index < kElements; index += 3) Keep(index);
  const auto plan = Plan();
  size_t num_read = 0;
  PositionPlan::Next next;
  for (uint32_t expected = kElements; expected-- > 0;) {
    ASSERT_TRUE(plan->GetNext(&next).ok());
    ASSERT_EQ(next.index, expected);
    ASSERT_EQ(next.from == PositionPlan::From::kStore, expected % 3 == 0);
    if (next.from == PositionPlan::From::kStore) {
      EXPECT_TRUE(plan->Load(&next));
      EXPECT_EQ(*static_cast<const int64_t*>(next.element[0].data()), expected);
    } else {
      ++num_read;
    }
  }
  ASSERT_TRUE(plan->GetNext(&next).ok());
  EXPECT_EQ(next.from, PositionPlan::From::kEnd);
  // Requests that come after the consumer are told that it has read an element, or that there are no more.
  EXPECT_TRUE(absl::IsNotFound(plan->Request(num_read - 2).status()));
  EXPECT_TRUE(absl::IsOutOfRange(plan->Request(num_read).status()));
}

TEST_F(PositionPlanTest, ReadsARequestedElementEvenIfItIsStoredInTheMeantime) {
  const auto plan = Plan();
  EXPECT_EQ(*plan->Request(0), kElements - 1);
  Keep(kElements - 1);
  Keep(kElements - 2);
  PositionPlan::Next next;
  ASSERT_TRUE(plan->GetNext(&next).ok());
  EXPECT_EQ(next.from, PositionPlan::From::kSource);
  ASSERT_TRUE(plan->GetNext(&next).ok());
  EXPECT_EQ(next.from, PositionPlan::From::kStore);
  EXPECT_EQ(*plan->Request(1), kElements - 3);
  EXPECT_EQ(plan->position(), 2u);
  EXPECT_TRUE(plan->PassOver());  // Passes the element that was requested.
  EXPECT_FALSE(plan->PassOver());
}

TEST_F(PositionPlanTest, StartsAtAGivenPosition) {
  PositionPlan::Next next;
  ASSERT_TRUE(Plan(/*first=*/7)->GetNext(&next).ok());
  EXPECT_EQ(next.index, *Map(7));
}

// The source requests ahead, other threads put elements, and the consumer reads: they agree on each position.
TEST_F(PositionPlanTest, RequestsExactlyTheElementsThatAreRead) {
  for (int round = 0; round < 3; ++round) {
    const auto plan = Plan();
    std::vector<uint32_t> asked, taken, came;
    std::thread source([&] {
      for (size_t n = 0;; ++n) {
        const absl::StatusOr<size_t> index = plan->Request(n);
        // The consumer has already read this element.
        if (absl::IsNotFound(index.status())) continue;
        if (!index.ok()) break;
        asked.push_back(static_cast<uint32_t>(*index));
      }
    });
    std::thread other_job([&] {
      for (uint32_t index = round; index < kElements; index += 7) Keep(index);
    });
    PositionPlan::Next next;
    while (plan->GetNext(&next).ok() && next.from != PositionPlan::From::kEnd) {
      came.push_back(next.index);
      if (next.from == PositionPlan::From::kSource) {
        taken.push_back(next.index);
      } else {
        EXPECT_TRUE(plan->Load(&next));
      }
    }
    source.join();
    other_job.join();
    ASSERT_EQ(came.size(), kElements);
    for (uint32_t k = 0; k < kElements; ++k) EXPECT_EQ(came[k], kElements - 1 - k);
    // The source was asked for the elements that were read, in order, except those that the consumer decided first.
    EXPECT_TRUE(std::includes(taken.rbegin(), taken.rend(), asked.rbegin(), asked.rend()));
  }
}

}  // namespace
}  // namespace refurbish_tf
