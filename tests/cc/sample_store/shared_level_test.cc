#include "refurbish_tf/cc/sample_store/shared_level.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/base/memory.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

using std::chrono::milliseconds;
using tensorflow::DT_UINT8;
using tensorflow::Tensor;
using tensorflow::TensorShape;

extern "C" void refurbish_tf_level_copy_put(void* put, char* to);

SampleTypes Bytes() { return {{DT_UINT8}, {tensorflow::PartialTensorShape()}}; }

SharedLevel Level(const std::string& prefix, int64_t max_bytes = kUnlimited) {
  return SharedLevel("address\n" + prefix, max_bytes, Bytes());
}

Sample SampleOf(uint8_t value, int64_t size = 100) {
  Tensor tensor(DT_UINT8, TensorShape({size}));
  tensor.flat<uint8_t>().setConstant(value);
  return {tensor};
}

// The next record that is to be written; empty if there is none.
std::string NextRecord(SharedLevel* level, bool* kept = nullptr) {
  bool is_kept;
  auto record = level->NextPut(milliseconds(0), kept ? kept : &is_kept);
  if (record == nullptr) return "";
  std::string bytes(sizeof(RecordHeader) + record->header.payload_size, 0);
  refurbish_tf_level_copy_put(record.release(), bytes.data());
  return bytes;
}

std::string RecordOf(const std::string& prefix, uint32_t index, Generation generation, const Sample& sample) {
  SharedLevel writer = Level(prefix);
  writer.Put(index, generation, sample);
  return NextRecord(&writer);
}

std::vector<uint32_t> Asked(SharedLevel* level, int most = 100) {
  std::vector<RefurbishTfAsked> asked(most);
  asked.resize(level->NextAsked(milliseconds(0), most, asked.data()));
  std::vector<uint32_t> indices;
  for (const auto& each : asked) indices.push_back(each.index);
  return indices;
}

int Found(SharedLevel* level, const SharedLevel::Reader& reader, uint32_t index, const std::string& record) {
  return level->Found(reader.number(), index, record.data(), record.size());
}

TEST(SharedLevelTest, AsksInOrderAndOnlyOnce) {
  SharedLevel level = Level("a");
  SharedLevel::Reader reader(&level, 10);
  level.Put(0, 0, SampleOf(1));  // Before it, the size of a sample is unknown.
  for (const uint32_t index : {5, 3, 5, 4}) reader.Ask(index, 0);
  EXPECT_EQ(Asked(&level, 2), (std::vector<uint32_t>{5, 3}));
  EXPECT_EQ(Asked(&level), (std::vector<uint32_t>{4}));
  EXPECT_EQ(Asked(&level), (std::vector<uint32_t>{}));
}

TEST(SharedLevelTest, GivesOutARecordOnceAndOnlyInAWantedGeneration) {
  SharedLevel level = Level("a");
  SharedLevel::Reader reader(&level, 10);
  reader.Ask(5, 2);
  EXPECT_EQ(Found(&level, reader, 5, RecordOf("a", 5, 1, SampleOf(1))), 0);
  EXPECT_EQ(Found(&level, reader, 5, RecordOf("a", 5, 3, SampleOf(7))), 1);
  Sample sample;
  Generation found;
  EXPECT_FALSE(reader.Take(5, {2, 2}, false, &sample, &found));
  ASSERT_TRUE(reader.Take(5, {2}, false, &sample, &found));
  EXPECT_EQ(found, 3u);
  EXPECT_EQ(sample[0].flat<uint8_t>()(99), 7);
  EXPECT_FALSE(reader.Take(5, {2}, false, &sample, &found));
}

TEST(SharedLevelTest, DamagedAndForeignRecordsAreRefused) {
  SharedLevel level = Level("a");
  SharedLevel::Reader reader(&level, 10);
  reader.Ask(5, 0);
  const std::string record = RecordOf("a", 5, 1, SampleOf(1, 300));
  for (size_t i = 0; i < record.size(); ++i) {
    std::string wrong = record;
    wrong[i] ^= 1 << i % 8;
    EXPECT_NE(Found(&level, reader, 5, wrong), 1) << i;
    EXPECT_NE(Found(&level, reader, 5, record.substr(0, i)), 1) << i;
  }
  EXPECT_EQ(Found(&level, reader, 5, record + "x"), -1);
  EXPECT_EQ(Found(&level, reader, 5, RecordOf("a", 6, 1, SampleOf(1))), -1);
  EXPECT_EQ(Found(&level, reader, 5, RecordOf("b", 5, 1, SampleOf(1))), -1);
  const Sample other = {Tensor(tensorflow::DT_INT32, TensorShape({3}))};
  EXPECT_EQ(Found(&level, reader, 5, RecordOf("a", 5, 1, other)), -1);
  EXPECT_EQ(Found(&level, reader, 5, record), 1);
}

TEST(SharedLevelTest, WhatComesLateIsDropped) {
  const std::string record = RecordOf("a", 5, 1, SampleOf(1));
  SharedLevel level = Level("a");
  uint64_t ended;
  {
    SharedLevel::Reader reader(&level, 10);
    ended = reader.number();
    reader.Ask(5, 0);
    Sample sample;
    Generation found;
    EXPECT_FALSE(reader.Take(5, {0}, /*last=*/true, &sample, &found));
    EXPECT_EQ(Found(&level, reader, 5, record), 0);
    reader.Ask(5, 0);
  }
  EXPECT_EQ(level.Found(ended, 5, record.data(), record.size()), 0);
  EXPECT_EQ(Asked(&level), (std::vector<uint32_t>{}));
  SharedLevel next = Level("a");  // What was read for a level before it is not for one of the same name.
  SharedLevel::Reader reader(&next, 10);
  reader.Ask(5, 0);
  EXPECT_EQ(next.Found(ended, 5, record.data(), record.size()), 0);
}

TEST(SharedLevelTest, BytesAreBounded) {
  constexpr int64_t kLarge = 10 << 20;
  SharedLevel level = Level("a");
  SharedLevel::Reader reader(&level, 100);
  const size_t most = std::min<int64_t>(128 << 20, ReadMemory().limit / 32) / kLarge;
  const Sample large = SampleOf(1, kLarge);
  for (int i = 0; i < 100; ++i) level.Put(i, 0, large);
  std::vector<std::string> records;
  for (size_t i = 0; i < most; ++i) records.push_back(NextRecord(&level));
  EXPECT_NE(records.back(), "");
  EXPECT_EQ(NextRecord(&level), "");
  for (uint32_t i = 0; i < 100; ++i) reader.Ask(i, 0);
  // Each call asks for one that is larger than what is read at once.
  std::vector<uint32_t> asked;
  for (std::vector<uint32_t> one; !(one = Asked(&level)).empty();) {
    EXPECT_EQ(one.size(), 1u);
    asked.push_back(one[0]);
  }
  EXPECT_EQ(asked.size(), most);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(Found(&level, reader, i, records[i]), 1);
  EXPECT_EQ(Asked(&level).size(), 0u);
  Sample sample;
  Generation found;
  ASSERT_TRUE(reader.Take(0, {0}, false, &sample, &found));
  EXPECT_EQ(Asked(&level).size(), 1u);
}

TEST(SharedLevelTest, ALimitedLevelKeepsTheSameSamplesForAllJobs) {
  std::vector<std::vector<uint32_t>> kept(2);
  for (auto& of_job : kept) {
    SharedLevel level = Level("a", 1000 * 260 / 4);
    SharedLevel::Reader reader(&level, 1000);
    for (uint32_t i = 0; i < 1000; ++i) {
      level.Put(i, 0, SampleOf(1));
      bool is_kept;
      NextRecord(&level, &is_kept);
      if (is_kept) of_job.push_back(i);
    }
  }
  EXPECT_EQ(kept[0], kept[1]);
  EXPECT_NEAR(kept[0].size(), 250, 50);
}

TEST(SharedLevelTest, WhatAClientReadsIsNotAskedForByOthers) {
  SharedLevel level = Level("a");
  SharedLevel::Reader reader(&level, 100);
  reader.Ask(7, 1);
  RefurbishTfAsked asked, none;
  EXPECT_EQ(level.NextAsked(milliseconds(0), 1, &asked), 1);
  EXPECT_EQ(level.NextAsked(milliseconds(30), 1, &none), 0);
  level.Answered(milliseconds(0), 1, &asked);
  EXPECT_EQ(level.NextAsked(milliseconds(30), 1, &none), 1);
}

TEST(SharedLevelTest, ThreadsAndAForkedChildDoNotHang) {
  SharedLevel level = Level("a");
  std::atomic<bool> stop{false};
  Threads threads(2, [&](int) {
    RefurbishTfAsked asked[8];
    while (!stop) {
      const int count = level.NextAsked(milliseconds(5), 8, asked);
      for (int j = 0; j < count; ++j) {
        const std::string record = RecordOf("a", asked[j].index, asked[j].least, SampleOf(1));
        level.Found(asked[j].reader, asked[j].index, record.data(), record.size());
      }
      level.Answered(milliseconds(1), count, asked);
      NextRecord(&level);
    }
  });
  SharedLevel::Reader reader(&level, 1000);
  int taken = 0;
  for (uint32_t i = 0; i < 3000; ++i) {
    Sample sample;
    Generation found;
    reader.Ask(i, 0);
    level.Put(i, 0, SampleOf(1));
    if (i >= 50) taken += reader.Take(i - 50, {0}, true, &sample, &found);
    if (i % 50 == 0) std::this_thread::sleep_for(milliseconds(2));
    if (i % 500 == 0) {
      const pid_t child = fork();
      if (child == 0) {
        SharedLevel::Reader of_child(&level, 10);
        of_child.Ask(1, 0);
        level.Put(1, 0, SampleOf(1));
        _exit(of_child.Take(1, {0}, true, &sample, &found));
      }
      int status = -1;
      waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
  }
  stop = true;
  threads.Join();
  EXPECT_GT(taken, 0);
}

}  // namespace
}  // namespace refurbish_tf
