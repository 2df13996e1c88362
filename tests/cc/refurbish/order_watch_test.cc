#include "refurbish_tf/cc/refurbish/order_watch.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/plan/random.h"

namespace refurbish_tf {
namespace {

// A checksum for each element.
uint32_t SumOf(uint32_t element) { return static_cast<uint32_t>(Mix(element)); }

std::vector<uint32_t> Numbers(uint32_t size) {
  std::vector<uint32_t> elements(size);
  std::iota(elements.begin(), elements.end(), 0);
  return elements;
}

std::vector<uint32_t> Shuffled(uint32_t size, uint64_t seed) {
  std::vector<uint32_t> elements = Numbers(size);
  RandomStream random(seed);
  ShuffleRange(elements.begin(), elements.end(), random);
  return elements;
}

// Notes an epoch. Returns the result for the last element.
OrderWatch::Noted NoteAll(OrderWatch& watch, uint64_t epoch, const std::vector<uint32_t>& elements) {
  OrderWatch::Noted noted;
  for (uint32_t i = 0; i < elements.size(); ++i) noted = watch.Note(epoch, i, SumOf(elements[i]));
  return noted;
}

TEST(OrderWatchTest, AnOrderThatChangesIsNoticedInTheSecondEpoch) {
  for (const uint32_t size : {30u, 1000u, 20'000u}) {
    OrderWatch watch;
    const std::vector<uint32_t> first = Numbers(size), second = Shuffled(size, 3);
    EXPECT_FALSE(NoteAll(watch, 0, first).moved.has_value());
    const std::optional<OrderWatch::Moved> moved = NoteAll(watch, 1, second).moved;
    ASSERT_TRUE(moved.has_value()) << size;
    EXPECT_NE(moved->from, moved->to);
    EXPECT_EQ(second[moved->to], first[moved->from]);
  }
}

TEST(OrderWatchTest, TheSameOrderIsNotRefused) {
  OrderWatch watch;
  const std::vector<uint32_t> elements = Shuffled(5000, 1);
  for (uint64_t epoch = 0; epoch < 5; ++epoch) {
    const OrderWatch::Noted noted = NoteAll(watch, epoch, elements);
    EXPECT_FALSE(noted.moved.has_value());
    EXPECT_FALSE(noted.period.has_value());
  }
}

TEST(OrderWatchTest, EqualElementsAndNewOnesAreNoOtherOrder) {
  OrderWatch twice, drawn;
  for (uint64_t epoch = 0; epoch < 5; ++epoch) {
    std::vector<uint32_t> elements = Numbers(2000), fresh = elements;
    for (uint32_t& element : elements) element /= 2;
    for (uint32_t& element : fresh) element += 2000 * epoch;
    EXPECT_FALSE(NoteAll(twice, epoch, elements).moved.has_value());
    EXPECT_FALSE(NoteAll(drawn, epoch, fresh).moved.has_value());
  }
}

TEST(OrderWatchTest, ASourceThatDoesNotEndIsNoticedOnce) {
  constexpr uint32_t kPeriod = 50;
  OrderWatch watch;
  int told = 0;
  for (uint32_t i = 0; i < 20 * kPeriod; ++i) {
    const std::optional<uint32_t> period = watch.Note(0, i, SumOf(i % kPeriod)).period;
    if (!period.has_value()) continue;
    ++told;
    EXPECT_EQ(*period, kPeriod);
    EXPECT_GT(i, 10 * kPeriod);
  }
  EXPECT_EQ(told, 1);
}

TEST(OrderWatchTest, ThreadsNoteElementsInAnyOrder) {
  constexpr uint32_t kSize = 2000, kThreads = 4;
  for (const bool moves : {false, true}) {
    OrderWatch watch;
    std::atomic<int> num_moved{0};
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      const std::vector<uint32_t> elements = moves ? Shuffled(kSize, epoch) : Numbers(kSize);
      std::vector<std::thread> threads;
      for (uint32_t thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] {
          for (uint32_t i = thread; i < kSize; i += kThreads) {
            num_moved += watch.Note(epoch, i, SumOf(elements[i])).moved.has_value();
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    EXPECT_EQ(num_moved > 0, moves);
  }
}

}  // namespace
}  // namespace refurbish_tf
