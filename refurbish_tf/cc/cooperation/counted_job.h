// A job that counts how often it uses each generation of a sample, because
// other jobs may pass it newer generations than its own schedule wants.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "refurbish_tf/cc/cooperation/job.h"
#include "refurbish_tf/cc/cooperation/used_generations.h"

namespace refurbish_tf {

class CountedJob : public Job {
 public:
  explicit CountedJob(double reuse_factor) : used_(reuse_factor) {}

  std::unique_ptr<JobEpoch> InEpoch(const JobPlan& plan) override;
  void Restore(uint64_t exact_before, uint64_t /*ring_from*/) override {
    exact_before_ = std::max<uint64_t>(exact_before_, exact_before);
    used_.Clear();
  }
  int64_t bytes() const override { return used_.bytes(); }

 protected:
  // Reserves memory for the samples of an epoch.
  void MakeRoomFor(const JobPlan& plan) {
    if (plan.schedule != nullptr) {
      used_.MakeRoomFor(plan.schedule->num_samples());
    }
  }

 private:
  friend class CountedEpoch;

  UsedGenerations used_;
  std::atomic<uint64_t> exact_before_{0};
};

// No other lock is taken while `mu_` is held.
class CountedEpoch : public JobEpoch {
 public:
  CountedEpoch(const JobPlan& plan, CountedJob* job)
      : JobEpoch(plan), used_(job->used_), exact_before_(job->exact_before_) {}

  GenerationRange Wanted(uint32_t index, Generation own) const override {
    return Exact() ? JobEpoch::Wanted(index, own) : used_.Wanted(index, own);
  }
  bool Use(uint32_t index, Generation found, bool in_ring) override {
    if (in_ring) return used_.UseOnce(index, found);
    return Exact() || used_.Use(index, found);
  }
  bool Claim(uint32_t index, bool /*also_claimed*/) override {
    if (plan_.schedule == nullptr) {
      // Counts the use in case the job adopts a schedule, which another job may
      // already have begun.
      used_.Use(index, plan_.number);
      return true;
    }
    if (Exact()) return true;
    const Generation own = OwnGeneration(index);
    // Repeated if another iterator has used this generation since.
    Generation least;
    do {
      least = Wanted(index, own).least;
    } while (!used_.Use(index, least));
    NoteGeneration(index, least);
    return true;
  }
  Generation Claimed(uint32_t index) const override ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    const auto other = other_generations_.find(index);
    return other == other_generations_.end() ? OwnGeneration(index)
                                             : other->second;
  }
  bool Adopt(uint32_t index, Generation found) override {
    if (found == Claimed(index)) return true;
    if (Exact() || !Use(index, found, InRing(index))) return false;
    NoteGeneration(index, found);
    return true;
  }

 protected:
  // Whether only the generations of the schedule may be used, no newer ones.
  bool Exact() const { return plan_.number < exact_before_; }
  void NoteGeneration(uint32_t index, Generation generation)
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    if (generation != OwnGeneration(index)) {
      other_generations_[index] = generation;
    } else {
      other_generations_.erase(index);
    }
  }

  UsedGenerations& used_;

 private:
  const std::atomic<uint64_t>& exact_before_;
  mutable std::mutex mu_;
  // Samples prepared in another generation than the schedule's.
  std::unordered_map<uint32_t, Generation> other_generations_
      ABSL_GUARDED_BY(mu_);
};

inline std::unique_ptr<JobEpoch> CountedJob::InEpoch(const JobPlan& plan) {
  MakeRoomFor(plan);
  return std::make_unique<CountedEpoch>(plan, this);
}

}  // namespace refurbish_tf
