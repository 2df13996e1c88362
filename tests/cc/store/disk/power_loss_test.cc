// Whatever part of a store has reached the disk when the power fails, a sample is absent, or right for the settings
// that the store then has.
//
// The test records a short run, operation by operation. For a loss of power between any two, it creates and opens
// states that the disk may be in: all of them if few operations can be lost, otherwise some.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/location.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"
#include "refurbish_tf/cc/store/disk/settings_file.h"
#include "tests/cc/store/disk/disk_store_testing.h"
#include "tests/cc/store/disk/power_loss_testing.h"

namespace refurbish_tf {
namespace {

namespace fs = std::filesystem;

class PowerLossTest : public StoreDirectoryTest {
 protected:
  // If no more than this many operations can be lost, all combinations of them are tested.
  const size_t most_for_all_ = Rounds(0) > 0 ? 8 : 4;
  // One in this many examined stores is also used further.
  static constexpr int kUseEvery = 16;

  static constexpr uint64_t kSamples = 8;
  static constexpr uint64_t kLarge = 6;
  static constexpr Generation kGenerations = 3;

  // Spreads the samples, so that no two have their index words in one sector.
  static uint64_t IndexOf(uint64_t i) { return i * kSector / sizeof(uint64_t); }

  // The size does not depend on the seed, so a record of a new store is where the old store had that sample's record.
  static const std::string& ContentOf(const std::string& seed, uint64_t i, Generation generation) {
    static auto* const contents = new std::map<std::tuple<std::string, uint64_t, Generation>, std::string>;
    std::string& content = (*contents)[{seed, i, generation}];
    if (content.empty()) {
      const size_t size = (i == kLarge ? kLargeRecord : 300 + 170 * i) + 3 * generation;
      content = Content(i + 100 * std::stoi(seed), generation, size);
    }
    return content;
  }

  // The settings that a store must have if the power fails after `from` operations or later.
  struct Promise {
    size_t from;
    Settings settings;
  };

  // On a file system in memory, because thousands of stores are made.
  PowerLossTest() : StoreDirectoryTest(InMemory()), run_(directory_ + "/run"), crashed_(directory_ + "/crashed") {
    fs::create_directory(crashed_);
  }

  std::unique_ptr<DiskStore> OpenRun(bool overwrite) {
    DiskStoreOptions options;
    options.env = &env_;
    options.overwrite = overwrite;
    options.read_queue = std::make_unique<ReadQueue>(1);
    options.small_segment = 4 << 10;
    options.write_delay_ms = 1'000'000;  // Writes only when flushed.
    auto store = DiskStore::Open(run_, std::move(options));
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return *std::move(store);
  }

  void Agree(DiskStore& store, const Settings& settings) {
    ASSERT_TRUE(store.Agree(settings).ok());
    promises_.push_back({env_.Now(), store.settings()});
  }

  void PutAll(DiskStore& store, const std::string& seed, const std::vector<uint64_t>& samples, Generation generation) {
    const int64_t failed = store.counts().failed_writes;
    for (const uint64_t i : samples) {
      ASSERT_EQ(Put(store, IndexOf(i), generation, ContentOf(seed, i, generation)), PutResult::kStored);
    }
    store.Flush();
    ASSERT_EQ(store.counts().failed_writes, failed);
    for (const uint64_t i : samples) {
      ASSERT_EQ(Get(store, IndexOf(i)), ContentOf(seed, i, generation));
    }
  }

  // Records a run that opens, uses and closes a store twice.
  void Use(bool overwrite, const std::string& seed) {
    promises_.push_back({env_.Now(), {}});
    env_.NumberSegmentsFrom(0);
    auto store = OpenRun(overwrite);
    promises_.push_back({env_.Now(), {}});
    Agree(*store, {{"seed", seed}});
    PutAll(*store, seed, {0, 1, 2, 3, 4, 5, kLarge}, 0);
    {
      auto job = store->Join();
      (*job)->BeginFirstEpoch();
      EXPECT_TRUE((*job)->Claim(IndexOf(1), 1));
      PutAll(*store, seed, {0, 1, 2, kLarge}, 1);
    }
    EXPECT_TRUE(store->Remove(IndexOf(3), /*evict=*/true));
    // A sample that does not fit is given up together with its older generation.
    env_.SetFull(true);
    Put(*store, IndexOf(0), 2, ContentOf(seed, 0, 2));
    store->Flush();
    ASSERT_EQ(store->counts().failed_writes, 1);
    ASSERT_EQ(Get(*store, IndexOf(0)), "absent");
    env_.SetFull(false);
    PutAll(*store, seed, {3, 0}, 2);
    Agree(*store, {{"reuse", "2"}});
    store.reset();
    store = OpenRun(false);
    PutAll(*store, seed, {7}, 0);
    store->Compact();
    EXPECT_GT(store->counts().compactions, 0);
    PutAll(*store, seed, {4, 5}, 2);
    PutAll(*store, seed, {kLarge, 7}, 2);
    store.reset();
    env_.Now();
  }

  void Write(const State& state) const {
    for (const auto& entry : fs::directory_iterator(crashed_)) {
      if (state.count(entry.path().filename()) == 0) fs::remove(entry.path());
    }
    for (const auto& [name, image] : state) {
      const int fd = open((crashed_ + "/" + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      ASSERT_EQ(pwrite(fd, image.data.data(), image.data.size(), 0), static_cast<ssize_t>(image.data.size()));
      // Everything beyond the first page of a mapped file is already zeros.
      ASSERT_EQ(ftruncate(fd, image.size), 0);
      close(fd);
    }
  }

  absl::StatusOr<std::unique_ptr<DiskStore>> OpenCrashed() const {
    return DiskStore::Open(crashed_, With(&DiskStoreOptions::read_queue, std::make_unique<ReadQueue>(1)));
  }

  // Opens a state and checks it. Returns the number of samples present, or -1 if it was checked before.
  int Examine(const State& state, size_t done, const std::string& what) {
    size_t promise = promises_.size();
    while (promises_[--promise].from > done) {
    }
    const Promise& promised = promises_[promise];
    std::string all = std::to_string(promise);
    for (const auto& [name, image] : state) {
      all += name + ' ' + std::to_string(image.size) + ' ' + image.data;
    }
    if (!examined_.insert(std::hash<std::string>()(all)).second) return -1;
    SCOPED_TRACE("power lost after " + std::to_string(done) + " operations, " + what);
    Write(state);
    auto opened = OpenCrashed();
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    if (!opened.ok()) return 0;
    DiskStore& store = **opened;
    const Settings settings = store.settings();
    EXPECT_TRUE(std::includes(settings.begin(), settings.end(), promised.settings.begin(), promised.settings.end()))
        << "what was agreed on is not what the store says";
    const auto seed = settings.find("seed");
    int present = 0;
    for (uint64_t i = 0; i < kSamples; ++i) {
      present += ExpectRightOrAbsent(store, i, seed == settings.end() ? "" : seed->second);
    }
    if (seed != settings.end()) present_[seed->second] += present;
    if (examined_.size() % kUseEvery == 0) {
      UseFurther(store, seed == settings.end() ? "3" : seed->second);
    }
    return present;
  }

  // Returns whether sample `i` is present. Without a seed none may be, because nothing is known to be right.
  bool ExpectRightOrAbsent(DiskStore& store, uint64_t i, const std::string& seed) {
    static const std::vector<GenerationRange> ranges = {{1, 1}, kAny,       {0, 0},
                                                        {2, 2}, AtLeast(1), AtLeast(kGenerations)};
    bool present = false;
    for (size_t k = 0; k < ranges.size(); ++k) {
      const GenerationRange& wanted = ranges[(k + examined_.size()) % ranges.size()];
      RecordBuffer record;
      if (!store.Get(IndexOf(i), wanted, &record)) continue;
      present = true;
      const Generation generation = record.header().generation;
      EXPECT_TRUE(wanted.Contains(generation)) << "sample " << i;
      EXPECT_FALSE(seed.empty()) << "sample " << i << " is of nobody knows what";
      if (seed.empty() || generation >= kGenerations) continue;
      // Not EXPECT_EQ, which would print the bytes.
      EXPECT_TRUE(std::string(record.payload(), record.payload_size()) == ContentOf(seed, i, generation))
          << "sample " << i << " of generation " << generation << " is wrong for seed " << seed;
    }
    return present;
  }

  // Whatever state a store was in, it can be used again.
  void UseFurther(DiskStore& store, const std::string& seed) const {
    EXPECT_TRUE(store.Agree({{"seed", seed}}).ok());
    for (uint64_t i = 0; i < kSamples; ++i) {
      EXPECT_EQ(Put(store, IndexOf(i), kGenerations, ContentOf(seed, i, kGenerations)), PutResult::kStored);
    }
    store.Flush();
    store.Compact();
    for (uint64_t i = 0; i < kSamples; ++i) {
      EXPECT_TRUE(Get(store, IndexOf(i)) == ContentOf(seed, i, kGenerations));
    }
    EXPECT_EQ(store.Verify(), std::make_pair(int64_t{kSamples}, int64_t{0}));
    auto job = store.Join();
    ASSERT_TRUE(job.ok());
    (*job)->BeginFirstEpoch();
  }

  RecordingEnv env_;
  const std::string run_;
  const std::string crashed_;
  const Quiet quiet_;  // Hides warnings of damage.
  std::vector<Promise> promises_;
  std::unordered_set<size_t> examined_;
  std::map<std::string, int64_t> present_;  // Number of samples found, by seed.
};

TEST_F(PowerLossTest, SamplesAreCorrectOrAbsentAfterAnyPowerLoss) {
  ASSERT_NO_FATAL_FAILURE(Use(/*overwrite=*/false, "1"));
  ASSERT_NO_FATAL_FAILURE(Use(/*overwrite=*/true, "2"));
  const auto& log = env_.log();
  const PowerLoss disk(&env_);
  EXPECT_EQ(Examine(disk.Make(log.size(), {}, nullptr), log.size(), "nothing lost"), kSamples);
  std::mt19937 random(1);
  for (size_t done = 0; done <= log.size() && !HasFailure(); ++done) {
    const std::vector<size_t> unknown = disk.Unknown(done);
    Examine(disk.Make(done, {}, nullptr), done, "all is there");
    // Loses each operation by itself.
    for (const size_t i : unknown) {
      Fate fate;
      fate.lost = true;
      Examine(disk.Make(done, {{i, fate}}, nullptr), done, "without the one after " + std::to_string(i));
      if (log[i].kind != Operation::kWrite) continue;
      fate = {false, log[i].offset, log[i].end(), true, true};
      Examine(disk.Make(done, {{i, fate}}, nullptr), done, "without the bytes of the one after " + std::to_string(i));
    }
    if (unknown.size() <= most_for_all_) {
      for (uint32_t lost = 0; lost < 1u << unknown.size(); ++lost) {
        std::map<size_t, Fate> fates;
        for (size_t k = 0; k < unknown.size(); ++k) {
          fates[unknown[k]].lost = lost >> k & 1;
        }
        Examine(disk.Make(done, fates, nullptr), done, "part " + std::to_string(lost));
      }
    }
    // Also loses parts of writes and of mapped pages.
    for (int k = 0; k < Rounds(3); ++k) {
      const uint32_t lost_of_16 = std::vector<uint32_t>{0, 1, 4, 8, 15}[k % 5];
      std::map<size_t, Fate> fates;
      for (const size_t i : unknown) {
        fates[i] = PowerLoss::RandomFate(log[i], lost_of_16, &random);
      }
      Examine(disk.Make(done, fates, &random), done, "random " + std::to_string(k));
    }
  }
  // Otherwise the test would have compared nothing.
  EXPECT_GT(present_["1"], 0);
  EXPECT_GT(present_["2"], 0);
}

}  // namespace
}  // namespace refurbish_tf
