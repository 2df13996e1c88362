// Rounds of random operations of jobs on a store, while its files, its disk or its clock are damaged. In every case the
// samples from the store are right, nothing deadlocks or crashes, and the store can be used afterwards.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/read_ahead.h"
#include "tests/cc/store/disk/disk_store_testing.h"

namespace refurbish_tf {

using Random = std::mt19937;
using Harm = std::function<void(Random&)>;

inline constexpr int kSteps = 120;
// The limit of a round, in seconds. A round usually takes less than one.
inline constexpr unsigned kLongestRound = 60;
inline constexpr int kSkipped = 77;

// The last sample is in another part of the index.
inline constexpr uint64_t kSamples = 40;
inline uint64_t IndexOf(uint64_t sample) { return sample < kSamples - 1 ? sample : 70'001; }

inline size_t SizeOf(uint64_t index) { return index % 8 == 0 ? 17'000 + index : 50 * (index % 1'000); }

inline bool IsRight(const RecordBuffer& record, uint64_t index) {
  return std::string_view(record.payload(), record.payload_size()) ==
         Content(index, record.header().generation, SizeOf(index));
}

inline PutResult PutContent(DiskStore& store, uint64_t index, Generation generation) {
  std::string content = Content(index, generation, SizeOf(index));
  const iovec part = {content.data(), content.size()};
  return store.Put(index, generation, {&part, 1});
}

// Reads only the start, because some files are longer than memory.
inline std::string ReadStartOf(const std::string& path) {
  std::string text(2 << 20, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), text.size());
  text.resize(file.gcount());
  return text;
}

inline absl::StatusOr<std::unique_ptr<DiskStore>> OpenStore(const std::string& path, StoreEnv* env,
                                                            bool overwrite = false) {
  DiskStoreOptions options;
  options.overwrite = overwrite;
  options.small_segment = 64 << 10;
  options.large_segment = 256 << 10;
  options.write_buffer = 4 << 10;
  options.write_delay_ms = 1;
  options.read_queue = std::make_unique<ReadQueue>(4);
  options.env = env;
  return DiskStore::Open(path, std::move(options));
}

// Puts each sample once more. The store must find all samples.
inline void ExpectWorks(DiskStore& store) {
  for (uint64_t sample = 0; sample < kSamples; ++sample) {
    const uint64_t index = IndexOf(sample);
    EXPECT_EQ(PutContent(store, index, store.StoredGeneration(index) + 1), PutResult::kStored) << index;
  }
  store.Flush();
  for (uint64_t sample = 0; sample < kSamples; ++sample) {
    RecordBuffer record;
    const uint64_t index = IndexOf(sample);
    ASSERT_TRUE(store.Get(index, kAny, &record)) << index;
    EXPECT_TRUE(IsRight(record, index)) << index;
  }
  store.Compact();
  EXPECT_EQ(store.Verify(), std::make_pair(int64_t{kSamples}, int64_t{0}));
}

// Opens a store that nobody else has open, overwrites it if that is necessary, and uses it.
inline void ExpectWorksAnew(const std::string& path) {
  StoreEnv* const env = &StoreEnv::Default();
  auto store = OpenStore(path, env);
  if (!store.ok()) {
    EXPECT_TRUE(absl::IsFailedPrecondition(store.status())) << store.status().ToString();
    store = OpenStore(path, env, /*overwrite=*/true);
  }
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  // Damaged words may claim impossibly new generations; `Verify` removes them.
  (*store)->Verify();
  EXPECT_EQ((*store)->Verify().second, 0);
  ExpectWorks(**store);
  *store = nullptr;
  store = OpenStore(path, env);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_EQ((*store)->Stats().entries, int64_t{kSamples});
  EXPECT_EQ((*store)->Verify(), std::make_pair(int64_t{kSamples}, int64_t{0}));
  EXPECT_TRUE((*store)->Join().ok());
}

// A user of a store, in its own thread, who performs the operations of an epoch and those that people start by hand.
class User {
 public:
  User(std::string path, StoreEnv* env, uint32_t seed, Harm harm)
      : path_(std::move(path)), env_(env), random_(seed), harm_(std::move(harm)) {
    OpenAnew();
  }
  ~User() { Close(); }

  void Run() {
    for (int step = 0; step < kSteps; ++step) {
      if (random_() % 16 == 0) harm_(random_);
      if (store_ == nullptr || random_() % 32 == 0) {
        OpenAnew();
      } else {
        Step(IndexOf(random_() % kSamples));
      }
    }
  }

 private:
  void Close() {
    ahead_.reset();
    job_.reset();
    store_.reset();
  }

  // The store may refuse to be opened, and other users may have it open.
  void OpenAnew() {
    Close();
    auto store = OpenStore(path_, env_);
    if (!store.ok()) {
      EXPECT_NE(store.status().message(), "");
      return;
    }
    store_ = *std::move(store);
    ahead_ = std::make_unique<DiskReadAhead>(store_.get());
    wanted_.clear();
    auto job = store_->Join();
    if (!job.ok()) return;
    job_ = *std::move(job);
    store_->MakeRoomFor(IndexOf(kSamples - 1) + 1);
    job_->BeginFirstEpoch();
  }

  void Step(uint64_t index) {
    const Generation least = random_() % 4;
    RecordBuffer record;
    switch (random_() % 20) {
      default:
        // A sample that is not stored has kNoGeneration, and kNoGeneration + 1 is 0.
        PutContent(*store_, index, store_->StoredGeneration(index) + 1);
        break;
      case 0:
      case 1:
      case 2:
      case 3:
        if (store_->Get(index, AtLeast(least), &record)) {
          EXPECT_TRUE(IsRight(record, index)) << index;
          EXPECT_GE(record.header().generation, least);
        }
        break;
      case 4:
      case 5:
        if (wanted_.empty()) {
          for (uint64_t ticket = 0; ticket < 8; ++ticket) {
            wanted_.push_back({ticket, IndexOf(random_() % kSamples), kAny});
          }
          ahead_->Want(wanted_);
          ahead_->Start();
          break;
        }
        for (const WantedSample& wanted : wanted_) {
          if (ahead_->Get(wanted, &record)) {
            EXPECT_TRUE(IsRight(record, wanted.index)) << wanted.index;
          }
        }
        wanted_.clear();
        break;
      case 6:
        store_->Remove(index, /*evict=*/random_() % 2 == 0);
        break;
      case 7:
        store_->Flush();
        break;
      case 8:
        store_->Compact();
        break;
      case 9:
        if (random_() % 4 == 0) store_->Clear();
        if (random_() % 4 == 0) store_->Verify();
        break;
      case 10:
        store_->Contains(index, AtLeast(least));
        store_->Indices();
        store_->Stats();
        break;
      case 11:
        // Writes the settings file, if it exists.
        (void)store_->Agree({{"setting" + std::to_string(random_() % 1'000), "1"}});
        break;
      case 12:
        if (job_ == nullptr) break;
        job_->Claim(index, least);
        job_->OthersAreAlive();
        job_->BeginEpoch(least);
        break;
    }
  }

  const std::string path_;
  StoreEnv* const env_;
  Random random_;
  const Harm harm_;
  std::unique_ptr<DiskStore> store_;
  std::unique_ptr<DiskReadAhead> ahead_;
  std::unique_ptr<SharedState::Job> job_;
  std::vector<WantedSample> wanted_;
};

class DiskFuzzTest : public StoreDirectoryTest {
 protected:
  // On a file system in memory, because hundreds of stores are made.
  DiskFuzzTest() : StoreDirectoryTest(InMemory()), store_(directory_ + "/round/store") {}

  // Each round is a separate process, which dies instead of hanging, and begins with an empty directory `round`.
  void RunRounds(const std::function<void(Random&)>& round) {
    const int rounds = Rounds(2);
    const std::string said = directory_ + "/said";
    for (int number = 0; number < rounds; ++number) {
      std::filesystem::create_directories(store_);
      std::filesystem::permissions(store_, std::filesystem::perms(0700));
      const pid_t child = Fork([&] {
        alarm(kLongestRound);
        const int out = open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
        Random random(number);
        round(random);
        std::fflush(nullptr);
        return HasFailure() ? 1 : IsSkipped() ? kSkipped : 0;
      });
      const int status = Join(child);
      if (status == kSkipped) GTEST_SKIP() << ReadStartOf(said);
      ASSERT_EQ(status, 0) << "round " << number << ": " << ReadStartOf(said);
      ASSERT_PRED_FORMAT2(testing::IsNotSubstring, "Sanitizer", ReadStartOf(said));
      std::filesystem::remove_all(directory_ + "/round");
    }
  }

  // Runs two users, each in a thread, and in some rounds a third in another process, which may be killed.
  void Use(Random& random, StoreEnv* env, const Harm& harm) {
    pid_t other = 0;
    const uint32_t seed = random();
    if (random() % 2 == 0) {
      other = Fork([&] {
        alarm(kLongestRound);
        User(store_, env, seed + 2, harm).Run();
        std::fflush(nullptr);
        return HasFailure() ? 1 : 0;
      });
    }
    {
      User first(store_, env, seed, harm);
      User second(store_, env, seed + 1, harm);
      std::thread thread([&] { first.Run(); });
      second.Run();
      thread.join();
      if (other != 0) {
        const bool is_killed = random() % 2 == 0;
        if (is_killed) kill(other, SIGKILL);
        const int status = Join(other);
        EXPECT_TRUE(status == 0 || (status == -SIGKILL && is_killed)) << status;
      }
    }
  }

  const std::string store_;
};

}  // namespace refurbish_tf
