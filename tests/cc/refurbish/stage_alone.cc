// A stage whose store is in memory. This test is linked with TensorFlow, but without other jobs and stores on disk.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/refurbish/stage.h"
#include "refurbish_tf/cc/sample_store/memory_samples.h"

namespace refurbish_tf {
namespace {

constexpr uint32_t kSamples = 30;

// A cooperation without other jobs, which runs a function while the stage agrees on a schedule.
class Interruption : public Cooperation {
 public:
  absl::StatusOr<std::shared_ptr<const Schedule>> Agree(const Terms&, std::shared_ptr<const Schedule> schedule,
                                                        std::chrono::milliseconds) override {
    if (schedule != nullptr && doing) std::exchange(doing, nullptr)();
    return schedule;
  }
  std::function<void()> doing;
};

class InterruptedStore : public MemorySamples {
 public:
  explicit InterruptedStore(int64_t max_bytes) : MemorySamples(max_bytes) {}
  Cooperation& cooperation() override { return interruption; }
  Interruption interruption;
};

class StageAloneTest : public testing::Test {
 protected:
  void Configure(double r, int64_t num_samples, bool random_access) {
    StageOptions options;
    options.schedule.reuse_factor = r;
    options.schedule.order_seed = 0;
    options.num_samples = num_samples;
    options.sample_bytes = sizeof(int64_t);
    options.random_access = random_access;
    ASSERT_TRUE(
        stage_->Configure(options, store_, {{tensorflow::DT_INT64}, {tensorflow::PartialTensorShape({})}}).ok());
  }

  // Reads an epoch, in which each sample must come once. A sample's content is its generation. Returns the number of
  // samples prepared.
  int Walk(bool to_the_end = true) {
    const std::shared_ptr<Epoch> epoch = *stage_->StartEpoch();
    std::map<uint32_t, int> came;
    int num_fresh = 0;
    std::vector<Place> places;
    while (epoch->Next(&places) == Epoch::Step::kPlaces) {
      for (Place& place : places) num_fresh += Handle(*epoch, &place, &came);
    }
    EXPECT_EQ(came.size(), kSamples);
    for (const auto& [index, times] : came) EXPECT_EQ(times, 1) << index;
    EXPECT_TRUE(!to_the_end || stage_->EndEpoch(*epoch).ok());
    return num_fresh;
  }

  // Returns whether the sample was prepared.
  bool Handle(Epoch& epoch, Place* place, std::map<uint32_t, int>* came) {
    const bool fresh = place->from == Place::From::kSource;
    std::optional<uint32_t> index = place->index;
    if (fresh) {
      if (!epoch.random_access()) index = ReadStream(epoch);
      if (!index.has_value()) {
        epoch.ArrivalsEnded();
        return false;
      }
      const Generation generation = epoch.PreparedGeneration(*index);
      place->sample = {tensorflow::Tensor(int64_t{generation})};
      EXPECT_TRUE(stage_->PutPrepared(epoch, *index, generation, place->sample, 0).ok());
    }
    ++(*came)[*index];
    ++uses_[{*index, *static_cast<const int64_t*>(place->sample[0].data())}];
    epoch.HandedOut(index);
    return fresh;
  }

  // Returns the next element to read of a stream whose length is unknown at first, or nothing after `kSamples`.
  static std::optional<uint32_t> ReadStream(Epoch& epoch) {
    while (true) {
      const Advance advance = epoch.AdvanceStream();
      if (advance.wanted && advance.index < kSamples) return advance.index;
      if (advance.wanted) epoch.StreamEnded();
      if (advance.wanted || advance.at_end) return std::nullopt;
    }
  }

  const std::shared_ptr<InterruptedStore> store_ = std::make_shared<InterruptedStore>(kUnlimited);
  const std::shared_ptr<Stage> stage_ = std::make_shared<Stage>("alone");
  // Number of uses, by sample and generation.
  std::map<std::pair<uint32_t, int64_t>, int> uses_;
};

class StageRandomAccessTest : public StageAloneTest, public testing::WithParamInterface<bool> {};

TEST_P(StageRandomAccessTest, EpochsAreCompleteAndEachGenerationIsUsedRTimes) {
  Configure(/*r=*/3, kSamples, /*random_access=*/GetParam());
  EXPECT_EQ(Walk(), int{kSamples});
  for (int epoch = 1; epoch < 9; ++epoch) EXPECT_EQ(Walk(), int{kSamples} / 3);
  std::map<int, int> times;
  for (const auto& [key, count] : uses_) ++times[count];
  EXPECT_EQ(times.rbegin()->first, 3);
  EXPECT_GE(times[3], int{2 * kSamples});
}

INSTANTIATE_TEST_SUITE_P(, StageRandomAccessTest, testing::Bool());

TEST_F(StageAloneTest, AnEpochStartedDuringSchedulingDoesNotExceedTheReuseFactor) {
  Configure(/*r=*/2, kUnknownSamples, /*random_access=*/false);
  store_->interruption.doing = [this] { Walk(/*to_the_end=*/false); };
  for (int epoch = 0; epoch < 6; ++epoch) Walk();
  for (const auto& [key, count] : uses_)
    EXPECT_LE(count, 2) << "sample " << key.first << " of generation " << key.second;
}

}  // namespace
}  // namespace refurbish_tf
