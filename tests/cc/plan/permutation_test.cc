#include "refurbish_tf/cc/plan/permutation.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/plan/kept_samples.h"

namespace refurbish_tf {
namespace {

constexpr uint32_t kComputed = Permutation::kMostShuffled + 1;

Permutation PermutationOf(uint64_t key, uint32_t size) {
  RandomStream random(DeriveKey(key, Purpose::kOrder));
  return {random, size};
}

// The distance of the chi-squared statistic of `counts` (for equal frequencies) from its mean, in standard deviations.
double Deviation(const std::vector<int>& counts, double degrees) {
  double total = 0, sum = 0;
  for (const int count : counts) total += count;
  const double expected = total / counts.size();
  for (const int count : counts) sum += (count - expected) * (count - expected) / expected;
  return (sum - degrees) / std::sqrt(2 * degrees);
}

TEST(PermutationTest, ContainsEachNumberOnceAndHasAnInverse) {
  for (const uint32_t size : {1u, 2u, 3u, 7u, 1000u, kComputed - 1, kComputed, 66'000u, 1u << 17, 300'007u}) {
    for (uint64_t key = 0; key < 3; ++key) {
      const Permutation order = PermutationOf(key, size), inverse = order.Inverse();
      std::vector<bool> seen(size);
      for (uint32_t i = 0; i < size; ++i) {
        const uint32_t number = order(i);
        ASSERT_LT(number, size);
        ASSERT_FALSE(seen[number]);
        seen[number] = true;
        ASSERT_EQ(inverse(number), i);
      }
    }
  }
}

TEST(PermutationTest, TheLargestPermutationsHaveAnInverse) {
  for (const uint32_t size : {(1u << 31) - 1, 1u << 31, (1u << 31) + 1, 0xffffffffu}) {
    const Permutation order = PermutationOf(1, size), inverse = order.Inverse();
    for (uint32_t i = 0; i < 1000; ++i) {
      for (const uint32_t number : {i, size / 2 + i, size - 1 - i}) {
        ASSERT_LT(order(number), size);
        ASSERT_EQ(inverse(order(number)), number);
      }
    }
  }
}

TEST(PermutationTest, SmallPermutationsAreEquallyLikely) {
  std::vector<std::vector<uint32_t>> orders;
  std::vector<uint32_t> each = {0, 1, 2, 3, 4};
  do orders.push_back(each);
  while (std::next_permutation(each.begin(), each.end()));
  std::vector<int> counts(orders.size());
  for (int key = 0; key < 60'000; ++key) {
    const Permutation order = PermutationOf(key, 5);
    for (uint32_t i = 0; i < 5; ++i) each[i] = order(i);
    ++counts[std::lower_bound(orders.begin(), orders.end(), each) - orders.begin()];
  }
  EXPECT_LT(Deviation(counts, counts.size() - 1), 5);
}

// Over many keys, tests the places of a number and of two neighbours, and their distance. Within one permutation, tests
// how far numbers move, the distance of neighbours, the places of three, and the low bits of two.
TEST(PermutationTest, ComputedPermutationsLookRandom) {
  constexpr int kParts = 40, kKeys = 4000;
  const auto part = [](uint64_t number, uint64_t size) { return static_cast<int>(number * kParts / size); };
  for (const uint32_t size : {kComputed, 100'003u, 1u << 20, 100'000'000u}) {
    const uint32_t firsts[] = {0, 1, 255, 256, size / 2, size - 2};
    for (const uint32_t first : firsts) {
      std::vector<int> place(kParts), pair(kParts * kParts), distance(kParts);
      for (int key = 0; key < kKeys; ++key) {
        const Permutation order = PermutationOf(key, size);
        const uint32_t one = order(first), other = order(first + 1);
        ++place[part(one, size)];
        ++pair[part(one, size) * kParts + part(other, size)];
        ++distance[part((uint64_t{other} + size - one) % size, size)];
      }
      EXPECT_LT(std::abs(Deviation(place, kParts - 1)), 5) << size << " " << first;
      EXPECT_LT(std::abs(Deviation(pair, pair.size() - 1)), 5) << size << " " << first;
      EXPECT_LT(std::abs(Deviation(distance, kParts - 1)), 5) << size << " " << first;
    }
    for (int key = 0; key < 4; ++key) {
      const Permutation order = PermutationOf(key, size);
      const uint32_t many = std::min(size, 200'000u) - 2;
      std::vector<int> moved(kParts), apart(kParts), triple(kParts * kParts * kParts), low(64 * 64);
      for (uint32_t i = 0; i < many; ++i) {
        const uint32_t one = order(i), two = order(i + 1), three = order(i + 2);
        ++moved[part((uint64_t{one} + size - i) % size, size)];
        ++apart[part((uint64_t{two} + size - one) % size, size)];
        ++triple[(part(one, size) * kParts + part(two, size)) * kParts + part(three, size)];
        ++low[one % 64 * 64 + two % 64];
      }
      EXPECT_LT(std::abs(Deviation(moved, kParts - 1)), 5) << size;
      EXPECT_LT(std::abs(Deviation(apart, kParts - 1)), 5) << size;
      EXPECT_LT(std::abs(Deviation(triple, triple.size() - 1)), 5) << size;
      EXPECT_LT(std::abs(Deviation(low, low.size() - 1)), 5) << size;
    }
  }
}

// A Feistel network with too few rounds often maps two numbers that have one half in common to two such numbers.
TEST(PermutationTest, CommonHalvesAreNotPreserved) {
  constexpr uint32_t kSize = 1 << 18, kHalf = 1 << 9;
  for (const bool inverse : {false, true}) {
    for (const bool upper : {false, true}) {
      double kept = 0, expected = 0;
      for (int key = 0; key < 20; ++key) {
        const Permutation forward = PermutationOf(key, kSize), order = inverse ? forward.Inverse() : forward;
        for (uint32_t half = 0; half < kHalf; ++half) {
          std::vector<int> of_upper(kHalf), of_lower(kHalf);
          for (uint32_t other = 0; other < kHalf; ++other) {
            const uint32_t number = order(upper ? half * kHalf + other : other * kHalf + half);
            ++of_upper[number / kHalf];
            ++of_lower[number % kHalf];
          }
          for (const auto& counts : {of_upper, of_lower}) {
            for (const int count : counts) kept += count * (count - 1) / 2;
            // In a random permutation: the number of pairs, times the probability that both numbers have the same half.
            expected += kHalf * (kHalf - 1) / 2 * (kHalf - 1.0) / (kSize - 1);
          }
        }
      }
      EXPECT_LT(std::abs(kept - expected) / std::sqrt(expected), 5) << inverse << upper;
    }
  }
}

TEST(PermutationTest, DifferentKeysAreIndependent) {
  for (const uint32_t size : {1000u, kComputed}) {
    // The number of places where two random permutations agree is nearly Poisson distributed, with mean 1.
    int common = 0;
    for (int key = 0; key < 100; ++key) {
      const Permutation one = PermutationOf(key, size), other = PermutationOf(key + 1, size);
      for (uint32_t i = 0; i < size; ++i) common += one(i) == other(i);
    }
    EXPECT_LT(std::abs(common - 100), 50) << size;
  }
}

TEST(KeptSamplesTest, NumbersSamplesWithTheSmallestKeysFirst) {
  constexpr uint32_t kChunk = 1 << 16;
  for (const uint32_t size :
       {1u, 2u, 30u, 1000u, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk, 2 * kChunk + 100, 200'001u}) {
    std::vector<uint64_t> keys(size);
    for (uint32_t i = 0; i < size; ++i) keys[i] = KeptKey(9, i);
    std::vector<uint64_t> sorted = keys;
    std::sort(sorted.begin(), sorted.end());
    ASSERT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
    for (const uint32_t num_kept : std::set<uint32_t>{0, 1, size / 3, size / 2 + 1, size - 1, size}) {
      if (num_kept > size) continue;
      const KeptSamples kept(9, size, num_kept);
      std::vector<bool> seen(size);
      for (uint32_t i = 0; i < size; ++i) {
        ASSERT_EQ(static_cast<uint32_t>(keys[i]), i);
        const uint32_t number = kept.NumberOf(i);
        ASSERT_LT(number, size);
        ASSERT_FALSE(seen[number]);
        seen[number] = true;
        ASSERT_EQ(kept.At(number), i) << size << " " << num_kept;
        ASSERT_EQ(number < num_kept, num_kept == size || keys[i] < sorted[num_kept]) << size << " " << num_kept;
      }
      if (num_kept == size) continue;
      EXPECT_EQ(NumKeysBelow(9, size, sorted[num_kept]), num_kept);
    }
    EXPECT_EQ(NumKeysBelow(9, size, ~uint64_t{0}), size);
  }
}

TEST(KeptSamplesTest, KeepsAllSamplesEquallyOften) {
  constexpr uint32_t kSize = 70'000;
  std::vector<int> of_first(40), of_last(40);
  for (int seed = 0; seed < 300; ++seed) {
    const KeptSamples kept(seed, kSize, kSize / 3);
    for (uint32_t i = 0; i < 40; ++i) {
      of_first[i] += kept.NumberOf(i * 1500) < kSize / 3;
      of_last[i] += kept.NumberOf((1 << 16) + i * 100) < kSize / 3;
    }
  }
  for (const std::vector<int>& counts : {of_first, of_last}) EXPECT_LT(Deviation(counts, 2 / 3. * 40), 5);
}

}  // namespace
}  // namespace refurbish_tf
