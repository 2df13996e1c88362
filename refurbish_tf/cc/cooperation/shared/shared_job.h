// A job on a store on disk that other jobs use as well.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "refurbish_tf/cc/cooperation/counted_job.h"
#include "refurbish_tf/cc/cooperation/shared/transit_order.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/location.h"

namespace refurbish_tf {

// The most claims of kept samples that may be refused after `BeginDecisions`.
// Each takes a system call, so beyond this limit samples are prepared although
// another job is preparing them. It is sixteen times what a job decides ahead
// to keep a disk busy, so sixteen jobs do not reach it.
inline constexpr uint32_t kMostRefusedToKeep = 1024;

// Progress is noted each time this many samples were handed over.
inline constexpr uint32_t kNotedAtOnce = 64;

class SharedJob : public CountedJob {
 public:
  // The store must outlive it.
  SharedJob(double reuse_factor, DiskStore* disk,
            std::unique_ptr<SharedState::Job> job)
      : CountedJob(reuse_factor), disk_(*disk), job_(std::move(job)) {}

  bool alone() const override { return false; }
  uint64_t BeginFirstEpoch() override { return job_->BeginFirstEpoch(); }
  uint64_t BeginEpoch(uint64_t number) override {
    job_->BeginEpoch(number);
    return ++num_begun_;
  }
  std::unique_ptr<JobEpoch> InEpoch(const JobPlan& plan) override;
  void Restore(uint64_t exact_before, uint64_t ring_from) override {
    CountedJob::Restore(exact_before, ring_from);
    ring_from_ = ring_from;
  }

 private:
  friend class SharedJobEpoch;

  DiskStore& disk_;
  const std::unique_ptr<SharedState::Job> job_;
  std::atomic<uint64_t> ring_from_{0};
  // How many epochs were begun. Only the last of them uses samples in transit:
  // two epochs at once would use up each other's generations.
  std::atomic<uint64_t> num_begun_{0};
};

class SharedJobEpoch : public CountedEpoch {
 public:
  // `ring`: the samples that jobs pass each other, or null.
  SharedJobEpoch(const JobPlan& plan, SharedJob* shared,
                 const TransitRing* ring)
      : CountedEpoch(plan, shared), shared_(*shared), ring_(ring) {
    if (ring != nullptr) Resume(OrderWalk(*plan.schedule), 0);
  }

  void Resume(const OrderWalk& walk, uint32_t num_handed_out) override {
    if (ring_ == nullptr) return;
    walk_ = walk;
    transit_.emplace(ring_, shared_.ring_from_, num_handed_out,
                     plan_.schedule->num_samples());
  }
  void BeginDecisions() override {
    others_hand_on_.reset();
    num_refused_ = 0;
  }
  bool OthersHandOn() override {
    if (!others_hand_on_.has_value()) {
      others_hand_on_ = ring_ != nullptr && shared_.job_->OthersAreAlive();
    }
    return *others_hand_on_;
  }
  bool Claim(uint32_t index, bool also_claimed) override {
    if (InRing(index)) return ClaimUnkept(index, also_claimed);
    // Only kept samples are claimed here. Of unkept samples, other jobs
    // prepare other generations.
    if (!also_claimed && plan_.schedule != nullptr &&
        plan_.schedule->Kept(index) && num_refused_ < kMostRefusedToKeep &&
        !shared_.job_->Claim(plan_.keys.InWhole(index),
                             Wanted(index, OwnGeneration(index)).least)) {
      ++num_refused_;
      return false;
    }
    return CountedEpoch::Claim(index, also_claimed);
  }
  bool KeepsForOthers(uint32_t index) const override {
    // Jobs with other shards do not need it.
    return plan_.keys.count == 1 && plan_.schedule != nullptr &&
           plan_.schedule->Kept(index) && shared_.job_->OthersAreAlive();
  }
  bool ShouldPublish(uint32_t index) const override {
    return InRing(index) && shared_.job_->OthersAreAlive();
  }
  void NoteHandedOut(uint32_t count) override {
    if (count % kNotedAtOnce == 0) shared_.job_->NoteHandedOut(count);
  }
  bool InRing(uint32_t index) const override {
    return ring_ != nullptr && !plan_.schedule->Kept(index);
  }
  std::optional<Unkept> NextUnkept(const Needs& needs) override {
    if (OthersHandOn()) {
      const std::optional<Unkept> found = OldestInRing(needs);
      if (found.has_value()) return found;
    }
    if (num_ahead_ > 0) {
      --num_ahead_;
      return Unkept();
    }
    const std::optional<uint32_t> own = transit_->NextOwn(
        [this](uint32_t /*place*/) { return walk_->Next(); },
        [&](uint32_t index) { return InRing(index) && needs(index); },
        [this](uint32_t index, bool also_claimed) {
          return ClaimUnkept(index, also_claimed);
        });
    if (!own.has_value()) return std::nullopt;
    return Unkept{own};
  }
  void ClaimAhead(uint32_t index) override {
    ClaimUnkept(index, /*also_claimed=*/true);
    ++num_ahead_;
  }
  void GiveBack(uint32_t index) override {
    transit_->GiveBack(index);
    ++num_owed_;
  }
  bool TakeReturnedPlace() override {
    if (num_owed_ == 0) return false;
    --num_owed_;
    return true;
  }

 private:
  std::optional<Unkept> OldestInRing(const Needs& needs) {
    if (plan_.num_begun != shared_.num_begun_) return std::nullopt;
    Unkept found;
    found.position = transit_->Oldest([&](uint64_t key, uint32_t tag) {
      if (!plan_.keys.Has(key) ||
          plan_.keys.InShard(key) >= plan_.schedule->num_samples()) {
        return false;
      }
      const auto index = static_cast<uint32_t>(plan_.keys.InShard(key));
      if (!InRing(index) || !needs(index)) return false;
      const Generation unused = used_.NextUnused(index);
      found.index = index;
      found.generation = NearestGeneration(tag, unused);
      return found.generation >= unused;
    });
    if (!found.position.has_value()) return std::nullopt;
    return found;
  }
  bool ClaimUnkept(uint32_t index, bool also_claimed) {
    const uint64_t key = plan_.keys.InWhole(index);
    const bool with_others = OthersHandOn();
    // After a restore, a job that is alone repeats what it did before.
    const bool again = !with_others && Exact();
    Generation generation = OwnGeneration(index);
    do {
      if (!again) generation = std::max(generation, used_.NextUnused(index));
      if (!with_others) continue;
      const std::optional<Generation> next =
          shared_.job_->ClaimNext(key, generation, also_claimed);
      if (!next.has_value()) return false;
      generation = *next;
      // Repeated if another iterator has used this generation since.
    } while (!used_.UseOnce(index, generation) && !again);
    if (!with_others) shared_.job_->NoteBegun(key, generation);
    NoteGeneration(index, generation);
    return true;
  }

  SharedJob& shared_;
  const TransitRing* const ring_;
  // Empty if there is no ring.
  std::optional<TransitOrder> transit_;
  // Yields the places of the order for `transit_`.
  std::optional<OrderWalk> walk_;
  // The result of `OthersHandOn`, if it was called since `BeginDecisions`, and
  // how many claims of kept samples were refused since then.
  std::optional<bool> others_hand_on_;
  uint32_t num_refused_ = 0;
  uint32_t num_owed_ = 0;
  uint32_t num_ahead_ = 0;
};

inline std::unique_ptr<JobEpoch> SharedJob::InEpoch(const JobPlan& plan) {
  MakeRoomFor(plan);
  if (plan.schedule != nullptr && plan.schedule->num_samples() > 0) {
    disk_.MakeRoomFor(plan.keys.InWhole(plan.schedule->num_samples() - 1) + 1);
  }
  return std::make_unique<SharedJobEpoch>(
      plan, this, plan.hands_on ? disk_.transit() : nullptr);
}

}  // namespace refurbish_tf
