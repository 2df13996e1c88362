// A job on a store on disk that other jobs use as well.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "refurbish_tf/cc/cooperation/counted_job.h"
#include "refurbish_tf/cc/cooperation/shared/transit_order.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"

namespace refurbish_tf {

class SharedJob : public CountedJob {
 public:
  // The store must outlive it.
  SharedJob(double reuse_factor, DiskStore* disk,
            std::unique_ptr<SharedState::Job> job)
      : CountedJob(reuse_factor), disk_(*disk), job_(std::move(job)) {}

  bool alone() const override { return false; }
  uint64_t BeginFirstEpoch() override { return job_->BeginFirstEpoch(); }
  uint64_t BeginEpoch(uint64_t number) override;
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
                 const TransitRing* ring);

  void Resume(const OrderWalk& walk, uint32_t num_handed_out) override;
  void BeginDecisions() override;
  bool OthersHandOn() override;
  bool Claim(uint32_t index, bool also_claimed) override;
  bool KeepsForOthers(uint32_t index) const override;
  bool ShouldPublish(uint32_t index) const override;
  void NoteHandedOut(uint32_t count) override;
  bool InRing(uint32_t index) const override {
    return ring_ != nullptr && !plan_.schedule->Kept(index);
  }
  std::optional<Unkept> NextUnkept(const Needs& needs) override;
  void ClaimAhead(uint32_t index) override;
  void GiveBack(uint32_t index) override;
  bool TakeReturnedPlace() override;

 private:
  std::optional<Unkept> OldestInRing(const Needs& needs);
  bool ClaimUnkept(uint32_t index, bool also_claimed);

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

}  // namespace refurbish_tf
