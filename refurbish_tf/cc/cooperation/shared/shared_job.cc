#include "refurbish_tf/cc/cooperation/shared/shared_job.h"

#include <algorithm>

#include "refurbish_tf/cc/store/disk/location.h"

namespace refurbish_tf {
namespace {

// The most claims of kept samples that may be refused after `BeginDecisions`.
// Each takes a system call, so beyond this limit samples are prepared although
// another job is preparing them. It is sixteen times what a job decides ahead
// to keep a disk busy, so sixteen jobs do not reach it.
constexpr uint32_t kMostRefusedToKeep = 1024;

// Progress is noted each time this many samples were handed over.
constexpr uint32_t kNotedAtOnce = 64;

}  // namespace

uint64_t SharedJob::BeginEpoch(uint64_t number) {
  job_->BeginEpoch(number);
  return ++num_begun_;
}

std::unique_ptr<JobEpoch> SharedJob::InEpoch(const JobPlan& plan) {
  MakeRoomFor(plan);
  if (plan.schedule != nullptr && plan.schedule->num_samples() > 0) {
    disk_.MakeRoomFor(plan.keys.InWhole(plan.schedule->num_samples() - 1) + 1);
  }
  return std::make_unique<SharedJobEpoch>(
      plan, this, plan.hands_on ? disk_.transit() : nullptr);
}

SharedJobEpoch::SharedJobEpoch(const JobPlan& plan, SharedJob* shared,
                               const TransitRing* ring)
    : CountedEpoch(plan, shared), shared_(*shared), ring_(ring) {
  if (ring != nullptr) Resume(OrderWalk(*plan.schedule), 0);
}

void SharedJobEpoch::Resume(const OrderWalk& walk, uint32_t num_handed_out) {
  if (ring_ == nullptr) return;
  walk_ = walk;
  transit_.emplace(ring_, shared_.ring_from_, num_handed_out,
                   plan_.schedule->num_samples());
}

void SharedJobEpoch::BeginDecisions() {
  others_hand_on_.reset();
  num_refused_ = 0;
}

bool SharedJobEpoch::OthersHandOn() {
  if (!others_hand_on_.has_value()) {
    others_hand_on_ = ring_ != nullptr && shared_.job_->OthersAreAlive();
  }
  return *others_hand_on_;
}

bool SharedJobEpoch::Claim(uint32_t index, bool also_claimed) {
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

bool SharedJobEpoch::KeepsForOthers(uint32_t index) const {
  // Jobs with other shards do not need it.
  return plan_.keys.count == 1 && plan_.schedule != nullptr &&
         plan_.schedule->Kept(index) && shared_.job_->OthersAreAlive();
}

bool SharedJobEpoch::ShouldPublish(uint32_t index) const {
  return InRing(index) && shared_.job_->OthersAreAlive();
}

void SharedJobEpoch::NoteHandedOut(uint32_t count) {
  if (count % kNotedAtOnce == 0) shared_.job_->NoteHandedOut(count);
}

std::optional<JobEpoch::Unkept> SharedJobEpoch::NextUnkept(const Needs& needs) {
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

std::optional<JobEpoch::Unkept> SharedJobEpoch::OldestInRing(
    const Needs& needs) {
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

void SharedJobEpoch::ClaimAhead(uint32_t index) {
  ClaimUnkept(index, /*also_claimed=*/true);
  ++num_ahead_;
}

void SharedJobEpoch::GiveBack(uint32_t index) {
  transit_->GiveBack(index);
  ++num_owed_;
}

bool SharedJobEpoch::TakeReturnedPlace() {
  if (num_owed_ == 0) return false;
  --num_owed_;
  return true;
}

bool SharedJobEpoch::ClaimUnkept(uint32_t index, bool also_claimed) {
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

}  // namespace refurbish_tf
