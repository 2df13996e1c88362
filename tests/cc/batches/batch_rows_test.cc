#include "refurbish_tf/cc/batches/batch_rows.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

using tensorflow::DT_INT64;
using tensorflow::DT_STRING;
using tensorflow::tstring;

int Rounds() {
  const char* const rounds = std::getenv("REFURBISH_TF_ROUNDS");
  return rounds == nullptr ? 5 : std::atoi(rounds);
}

// An allocator that fails on demand.
class FailingAllocator : public tensorflow::Allocator {
 public:
  std::string Name() override { return "failing"; }
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    return fails ? nullptr : tensorflow::cpu_allocator()->AllocateRaw(alignment, bytes);
  }
  void DeallocateRaw(void* data) override { tensorflow::cpu_allocator()->DeallocateRaw(data); }
  bool fails = false;
};

// A result consists of its number as an int64 and as a string.
std::vector<Tensor> ResultOf(int64_t number) {
  Tensor text(DT_STRING, {});
  text.scalar<tstring>()() = std::string(40, 'a') + std::to_string(number);
  return {Tensor(number), text};
}

std::vector<int64_t> NumbersIn(const std::vector<Tensor>& batch) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < batch[0].NumElements(); ++i) {
    numbers.push_back(batch[0].flat<int64_t>()(i));
    EXPECT_EQ(batch[1].flat<tstring>()(i), ResultOf(numbers.back())[1].scalar<tstring>()());
  }
  return numbers;
}

struct Made {
  explicit Made(int64_t batch_size, bool in_order = true, bool drop_remainder = false, int64_t most_rows = 1 << 30)
      : rows({batch_size, most_rows, drop_remainder, in_order, {DT_INT64, DT_STRING}, {{}, {}}},
             std::make_shared<BatchMemory>("batches", &allocator)) {}

  // Gathers a result. If its batch is then whole, takes the batch.
  absl::Status Gather(absl::Status result, const BatchRows::Row& row, uint32_t index = 0) {
    bool whole = false;
    const absl::Status status = rows.Gather(std::move(result), row, index, &whole);
    if (whole) TakeBatch();
    return status;
  }
  bool TakeBatch() {
    std::vector<Tensor> batch;
    std::vector<uint32_t> indices;
    if (!rows.TakeBatch(&batch, &indices)) return false;
    batches.push_back(NumbersIn(batch));
    gathered.push_back(indices);
    return true;
  }

  FailingAllocator allocator;
  BatchRows rows;
  std::vector<std::vector<int64_t>> batches;
  std::vector<std::vector<uint32_t>> gathered;
};

enum Outcome { kResult, kError, kNothing };

// The expected batches, in order. An error drops the results that were gathered for its batch before.
std::vector<std::vector<int64_t>> Expected(const std::vector<Outcome>& outcomes, size_t size, bool drop_remainder) {
  std::vector<std::vector<int64_t>> batches(1);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (outcomes[i] == kError) batches.back().clear();
    if (outcomes[i] == kResult) batches.back().push_back(i);
    if (batches.back().size() == size) batches.emplace_back();
  }
  if (batches.back().empty() || drop_remainder) batches.pop_back();
  return batches;
}

std::vector<Outcome> RandomOutcomes(std::mt19937* random, size_t count) {
  std::vector<Outcome> outcomes(count);
  const int failing = (*random)() % 3;
  for (Outcome& outcome : outcomes) {
    const int drawn = (*random)() % 30;
    outcome = drawn >= 2 * failing ? kResult : drawn % 2 == 0 ? kError : kNothing;
  }
  return outcomes;
}

// Threads take rows in order and write into them while the consumer gathers others.
TEST(BatchRowsTest, ConcurrentWritesProduceBatchesInOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < Rounds(); ++round) {
    const std::vector<Outcome> outcomes = RandomOutcomes(&random, 400);
    const int64_t size = 1 + random() % 12;
    const bool drop_remainder = random() % 2;
    Made made(size, /*in_order=*/true, drop_remainder, /*most_rows=*/random() % 2 ? 1 << 30 : 1 + random() % 12);
    std::mutex mu;  // In place of the workers' mutex.
    size_t claimed = 0;
    std::map<size_t, BatchRows::Row> written;
    const auto work = [&](int) {
      while (true) {
        std::unique_lock<std::mutex> lock(mu);
        const size_t number = claimed++;
        if (number >= outcomes.size()) return;
        const BatchRows::Row row = made.rows.Take();
        lock.unlock();
        if (outcomes[number] == kNothing) made.rows.Skip(1);
        if (outcomes[number] == kResult) {
          EXPECT_TRUE(BatchRows::Write(ResultOf(number), row).ok());
        }
        lock.lock();
        written[number] = row;
      }
    };
    Threads threads(3, work);
    for (size_t next = 0; next < outcomes.size();) {
      std::unique_lock<std::mutex> lock(mu);
      const auto found = written.find(next);
      if (found == written.end()) {
        lock.unlock();
        std::this_thread::yield();
        continue;
      }
      const BatchRows::Row row = found->second;
      lock.unlock();
      const Outcome outcome = outcomes[next++];
      if (outcome == kNothing) continue;
      const absl::Status status = outcome == kError ? absl::InternalError("bad") : absl::OkStatus();
      EXPECT_EQ(made.Gather(status, row), status);
    }
    threads.Join();
    made.TakeBatch();
    EXPECT_EQ(made.batches, Expected(outcomes, size, drop_remainder)) << "round " << round;
  }
}

// If the order does not matter, each result and its index are still in exactly one batch.
TEST(BatchRowsTest, UnorderedBatchesContainEachResultOnce) {
  std::mt19937 random(2);
  for (int round = 0; round < Rounds(); ++round) {
    const int64_t size = 1 + random() % 9;
    const size_t count = 100 + random() % 20;
    Made made(size, /*in_order=*/false);
    std::mutex mu;
    size_t claimed = 0, gathered = 0;
    std::vector<std::pair<size_t, BatchRows::Row>> ready;
    Threads threads(3, [&](int) {
      while (true) {
        std::unique_lock<std::mutex> lock(mu);
        const size_t number = claimed++;
        if (number >= count) return;
        lock.unlock();
        BatchRows::Row row;
        EXPECT_TRUE(made.rows.Add(ResultOf(number), &row).ok());
        lock.lock();
        ready.push_back({number, row});
      }
    });
    while (gathered < count) {
      std::vector<std::pair<size_t, BatchRows::Row>> some;
      {
        std::lock_guard<std::mutex> lock(mu);
        some.swap(ready);
      }
      if (some.empty()) std::this_thread::yield();
      for (const auto& [number, row] : some) EXPECT_TRUE(made.Gather(absl::OkStatus(), row, number).ok());
      gathered += some.size();
    }
    threads.Join();
    made.TakeBatch();
    std::vector<int64_t> all;
    for (size_t i = 0; i < made.batches.size(); ++i) {
      EXPECT_EQ(made.batches[i].size(), std::min<size_t>(size, count - i * size));
      std::vector<int64_t> indices(made.gathered[i].begin(), made.gathered[i].end());
      std::sort(indices.begin(), indices.end());
      std::vector<int64_t> numbers = made.batches[i];
      std::sort(numbers.begin(), numbers.end());
      EXPECT_EQ(indices, numbers);
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
    std::sort(all.begin(), all.end());
    ASSERT_EQ(all.size(), count);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(all[i], static_cast<int64_t>(i));
  }
}

TEST(BatchRowsTest, RetriesTheAllocationAfterTheConsumerHasSeenTheError) {
  Made made(2);
  const BatchRows::Row first = made.rows.Take();
  ASSERT_TRUE(BatchRows::Write(ResultOf(0), first).ok());
  made.rows.Take();
  made.allocator.fails = true;
  EXPECT_EQ(made.rows.Take().batch, nullptr);
  made.allocator.fails = false;
  EXPECT_EQ(made.rows.Take().batch, nullptr);
  EXPECT_TRUE(absl::IsResourceExhausted(made.Gather(made.rows.NoMemory(), {})));
  const BatchRows::Row row = made.rows.Take();
  ASSERT_NE(row.batch, nullptr);
  EXPECT_TRUE(BatchRows::Write(ResultOf(5), row).ok());
  EXPECT_EQ(NumbersIn(BatchRows::Read(row)), std::vector<int64_t>{5});
}

TEST(BatchRowsTest, RowsRejectOtherTypesAndShapes) {
  Made made(3);
  EXPECT_TRUE(made.rows.Check(ResultOf(1)).ok());
  for (const Tensor& wrong : {Tensor(int32_t{1}), Tensor(DT_INT64, {1})}) {
    BatchRows::Row row;
    EXPECT_TRUE(absl::IsInvalidArgument(made.rows.Add({wrong, ResultOf(1)[1]}, &row)));
  }
}

}  // namespace
}  // namespace refurbish_tf
