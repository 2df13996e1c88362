#include "refurbish_tf/cc/store/disk/shared_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "tests/cc/store/disk/disk_store_testing.h"

namespace refurbish_tf {
namespace {

class SharedStateTest : public StoreDirectoryTest {
 protected:
  std::unique_ptr<SharedState> OpenState() {
    if (opened_ == nullptr) {
      opened_ = *Directory::Open(directory_, &StoreEnv::Default());
    }
    auto state = SharedState::Open(opened_.get(), "state");
    EXPECT_TRUE(state.ok()) << state.status().ToString();
    return *std::move(state);
  }
  std::unique_ptr<SharedState::Job> JoinState(SharedState& state) {
    if (claims_ == nullptr) claims_ = *Index::Open(opened_.get(), "claims");
    auto job = state.Join(claims_.get());
    EXPECT_TRUE(job.ok()) << job.status().ToString();
    return *std::move(job);
  }

  std::unique_ptr<Directory> opened_;
  std::unique_ptr<Index> claims_;
};

TEST_F(SharedStateTest, OnlyOneLiveJobClaimsASample) {
  auto state = OpenState();
  auto same_file = OpenState();
  auto first = JoinState(*state);
  auto second = JoinState(*same_file);
  ASSERT_TRUE(claims_->ReserveFirst(100'001).ok());
  EXPECT_TRUE(first->Claim(7, 2));
  EXPECT_TRUE(first->Claim(7, 2));  // Its own claim.
  EXPECT_FALSE(second->Claim(7, 2));
  EXPECT_FALSE(second->Claim(7, 1));
  EXPECT_TRUE(second->Claim(7, 3));  // Newer than the claim of `first`.
  EXPECT_FALSE(first->Claim(7, 2));
  EXPECT_TRUE(first->Claim(8, 2));
  EXPECT_TRUE(first->Claim(100'000, 0));
  first.reset();
  EXPECT_TRUE(second->Claim(8, 2));  // Claims of dead jobs do not count.
  EXPECT_TRUE(second->Claim(100'000, 0));
  // Claims beyond the end of the file are not recorded.
  EXPECT_TRUE(second->Claim(200'000, 0));
  EXPECT_TRUE(JoinState(*state)->Claim(200'000, 0));
}

TEST_F(SharedStateTest, EachClaimOfAnUnkeptSampleGetsANewGeneration) {
  auto state = OpenState();
  auto same_file = OpenState();
  auto first = JoinState(*state);
  auto second = JoinState(*same_file);
  // Claims beyond the end of the file are not recorded.
  EXPECT_EQ(first->ClaimNext(100'000, 3, false), 3);
  EXPECT_EQ(second->ClaimNext(100'000, 3, false), 3);
  EXPECT_EQ(first->ClaimNext(7, 3, false), 3);
  EXPECT_EQ(second->ClaimNext(7, 9, false), std::nullopt);
  EXPECT_EQ(second->ClaimNext(7, 3, true), 4);
  EXPECT_EQ(first->ClaimNext(7, 3, false), std::nullopt);
  // This release is ignored, because the last claim was of generation 4.
  SharedState::Release(claims_.get(), 7, 3);
  EXPECT_EQ(first->ClaimNext(7, 3, false), std::nullopt);
  SharedState::Release(claims_.get(), 7, 4);
  EXPECT_EQ(first->ClaimNext(7, 3, false), 5);
  EXPECT_EQ(first->ClaimNext(7, 3, false), 6);  // Its own claim.
  EXPECT_EQ(first->ClaimNext(8, 2, false), 2);
  first.reset();
  EXPECT_EQ(second->ClaimNext(7, 3, false), 7);  // Claims of dead jobs do not count.
  EXPECT_EQ(second->ClaimNext(8, 9, false), 9);
  // A claim of a generation this far ahead is not valid.
  uint64_t word = 0;
  ASSERT_TRUE(claims_->CompareExchange(9, &word, uint64_t{1} << 63 | uint64_t{1} << 31));
  EXPECT_EQ(second->ClaimNext(9, 5, false), 5);
}

TEST_F(SharedStateTest, GenerationsBegunByALoneJobAreNotClaimedAgain) {
  auto state = OpenState();
  auto first = JoinState(*state);
  auto second = JoinState(*state);
  first->NoteBegun(100'000, 3);  // Beyond the end of the file: not recorded.
  first->NoteBegun(7, 3);
  EXPECT_EQ(second->ClaimNext(7, 1, false), 4);
  first->NoteBegun(7, 2);  // Older, so it changes nothing.
  EXPECT_EQ(first->ClaimNext(7, 1, false), std::nullopt);
  first->NoteBegun(7, 6);
  EXPECT_EQ(second->ClaimNext(7, 1, false), 7);
}

TEST_F(SharedStateTest, ListsLiveJobsAndTheirPositions) {
  auto state = OpenState();
  EXPECT_TRUE(state->LivingJobs()->empty());
  auto first = JoinState(*state);
  EXPECT_TRUE(state->LivingJobs()->empty());
  first->BeginFirstEpoch();
  first->BeginEpoch(3);
  first->NoteHandedOut(42);
  auto second = JoinState(*state);
  second->BeginFirstEpoch();
  const auto jobs = *OpenState()->LivingJobs();
  ASSERT_EQ(jobs.size(), 2);
  using Numbers = std::map<std::string, int64_t>;
  const auto numbers = [](const NamedNumbers& job) { return Numbers(job.begin(), job.end()); };
  EXPECT_EQ(numbers(jobs[0]), (Numbers{{"process", getpid()}, {"epoch", 3}, {"handed_out", 42}}));
  EXPECT_EQ(numbers(jobs[1]), (Numbers{{"process", getpid()}, {"epoch", 3}, {"handed_out", 0}}));
  first->BeginEpoch(4);
  EXPECT_EQ((*state->LivingJobs())[0].back().second, 0);
  first.reset();
  EXPECT_EQ(state->LivingJobs()->size(), 1);
}

TEST_F(SharedStateTest, ADamagedRingHeadRestartsAtZero) {
  auto state = OpenState();
  uint64_t head = 0;
  EXPECT_TRUE(state->ExchangeRing(SharedState::kHead, &head, 5));
  EXPECT_FALSE(state->ExchangeRing(SharedState::kHead, &head, 6));
  EXPECT_EQ(head, 5);
  EXPECT_TRUE(state->ExchangeRing(SharedState::kHead, &head, 9));
  EXPECT_EQ(state->Ring(SharedState::kHead), 9);
  EXPECT_EQ(state->Ring(SharedState::kGeometry), 0);
  std::string bytes = ReadFile(directory_ + "/state");
  const int fd = open((directory_ + "/state").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(pwrite(fd, "!", 1, bytes.size() - 16), 1);
  close(fd);
  EXPECT_EQ(state->Ring(SharedState::kHead), 0);
  EXPECT_FALSE(state->ExchangeRing(SharedState::kHead, &head, 10));
  EXPECT_EQ(head, 0);
  EXPECT_TRUE(state->ExchangeRing(SharedState::kHead, &head, 1));
  EXPECT_EQ(state->Ring(SharedState::kHead), 1);
}

TEST_F(SharedStateTest, AJobKnowsWhetherItIsAlone) {
  auto state = OpenState();
  auto same_file = OpenState();
  auto first = JoinState(*state);
  first->BeginFirstEpoch();
  auto second = JoinState(*same_file);
  EXPECT_FALSE(first->OthersAreAlive());  // `second` has not begun an epoch.
  second->BeginFirstEpoch();
  EXPECT_TRUE(first->OthersAreAlive());
  EXPECT_TRUE(second->OthersAreAlive());
  second.reset();
  EXPECT_FALSE(first->OthersAreAlive());
}

TEST_F(SharedStateTest, AJobBeginsAtTheEpochOfTheFurthestLiveJob) {
  auto state = OpenState();
  auto same_file = OpenState();
  auto first = JoinState(*state);
  EXPECT_EQ(first->BeginFirstEpoch(), 0);
  auto second = JoinState(*same_file);
  EXPECT_EQ(second->BeginFirstEpoch(), 0);
  first->BeginEpoch(1);
  first->BeginEpoch(2);
  second->BeginEpoch(1);
  auto third = JoinState(*state);
  EXPECT_EQ(third->BeginFirstEpoch(), 2);
  first.reset();
  third.reset();
  EXPECT_EQ(JoinState(*state)->BeginFirstEpoch(), 1);  // The epoch of `second`.
  second.reset();
  // No job is alive, so the new one begins with the epoch after all others.
  EXPECT_EQ(JoinState(*state)->BeginFirstEpoch(), 3);
  state.reset();
  state = OpenState();
  EXPECT_EQ(JoinState(*state)->BeginFirstEpoch(), 4);
}

TEST_F(SharedStateTest, JobsThatHaveNotBegunAnEpochAreIgnored) {
  auto state = OpenState();
  {
    JoinState(*state)->BeginFirstEpoch();
  }
  auto idle = JoinState(*state);
  EXPECT_EQ(JoinState(*state)->BeginFirstEpoch(), 1);
  EXPECT_EQ(idle->BeginFirstEpoch(), 2);
}

TEST_F(SharedStateTest, MoreJobsThanSlotsAreAllowed) {
  auto state = OpenState();
  std::vector<std::unique_ptr<SharedState::Job>> jobs;
  for (int i = 0; i < 260; ++i) jobs.push_back(JoinState(*state));
  for (auto& job : jobs) EXPECT_EQ(job->BeginFirstEpoch(), 0);
  jobs.back()->BeginEpoch(7);
  EXPECT_EQ(jobs.front()->BeginFirstEpoch(), 0);
  jobs.clear();
  EXPECT_EQ(JoinState(*state)->BeginFirstEpoch(), 8);
}

TEST_F(SharedStateTest, AKilledJobIsNoLongerAlive) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t child = Fork([&] {
    auto state = OpenState();
    auto job = JoinState(*state);
    job->BeginFirstEpoch();
    job->BeginEpoch(5);
    if (write(pipe_fds[1], "x", 1) != 1) return 1;
    while (true) pause();
  });
  char byte;
  ASSERT_EQ(read(pipe_fds[0], &byte, 1), 1);
  auto state = OpenState();
  EXPECT_EQ(JoinState(*state)->BeginFirstEpoch(), 5);
  kill(child, SIGKILL);
  EXPECT_EQ(Join(child), -SIGKILL);
  EXPECT_EQ(JoinState(*state)->BeginFirstEpoch(), 6);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST_F(SharedStateTest, AddingNeverExceedsTheLimit) {
  auto state = OpenState();
  EXPECT_TRUE(state->TryAdd(1, 60, 100));
  EXPECT_FALSE(state->TryAdd(1, 41, 100));
  EXPECT_TRUE(state->TryAdd(1, 40, 100));
  EXPECT_TRUE(state->TryAdd(0, 0, 50));
  EXPECT_EQ(state->entries(), 2);
  EXPECT_EQ(state->bytes(), 100);
  EXPECT_FALSE(state->TryAdd(1, kUnlimited, kUnlimited));
}

}  // namespace
}  // namespace refurbish_tf
