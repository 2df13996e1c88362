// What an epoch does at the places of samples that are not kept, where there is
// a ring to hand them to other jobs (`TransitOrder`).
#include <algorithm>
#include <optional>
#include <utility>

#include "refurbish_tf/cc/stage/epoch.h"
#include "refurbish_tf/cc/store/disk/record.h"

namespace refurbish_tf {
namespace {

// How many places may be decided whose samples are to be prepared, while others
// may put these samples into the ring before their turn comes.
constexpr size_t kMostToPrepare = 4;

}  // namespace

bool Epoch::ToShare(uint32_t index) const {
  return ring_ != nullptr && !schedule_->Kept(index) &&
         shared_->job->OthersAreAlive();
}

bool Epoch::BeginUnkept(uint32_t index, bool also_claimed, bool alone) {
  UsedGenerations& used = shared_->generations;
  SharedState::Job& job = *shared_->job;
  // After a restore a job that is alone does again what it did before.
  const bool again = alone && Exact();
  Generation generation = GenerationOf(index);
  do {
    if (!again) generation = std::max(generation, used.NextUnused(index));
    if (alone) continue;
    const std::optional<Generation> next =
        job.ClaimNext(index, generation, also_claimed);
    if (!next.has_value()) return false;
    generation = *next;
    // Another iterator may use it meanwhile.
  } while (!used.UseOnce(index, generation) && !again);
  if (alone) job.NoteBegun(index, generation);
  NoteGeneration(index, generation);
  return true;
}

void Epoch::DecideUnkept() {
  // Asked once, as it takes a system call for each job.
  with_others_ = shared_->job->OthersAreAlive();
  Place place;
  if (with_others_ && TakeInTransit(&place)) {
    AddPlace(std::move(place));
    return;
  }
  if (num_unkept_ahead_ > 0) {
    --num_unkept_ahead_;
  } else {
    const std::optional<uint32_t> own = transit_->NextOwn(
        [this](uint32_t position) { return At(position); },
        [this](uint32_t index) { return NeedsUnkept(index); },
        [this](uint32_t index, bool also_claimed) {
          return BeginUnkept(index, also_claimed, !with_others_);
        });
    if (!own.has_value()) return;  // Never: a place for each is left.
    requested_[*own] = true;
    if (random_access_) {
      place.index = *own;
      requests_.push_back(*own);
    }
  }
  AddPlace(std::move(place));
}

bool Epoch::HasEnoughToPrepare() const {
  return with_others_ && num_to_prepare_ >= kMostToPrepare;
}

bool Epoch::TakeInTransit(Place* place) {
  if (number_begun_ != shared_->num_begun) return false;
  uint32_t taken = 0;
  Generation generation = 0;
  const std::optional<uint64_t> position =
      transit_->Oldest([&](uint32_t index, uint32_t tag) {
        if (index >= schedule_->num_samples() || !NeedsUnkept(index)) {
          return false;
        }
        const Generation least = shared_->generations.NextUnused(index);
        taken = index;
        generation = NearestGeneration(tag, least);
        return generation >= least;
      });
  if (!position.has_value()) return false;
  served_[taken] = true;
  ++num_transit_reading_;
  WillRead(taken, {generation, generation}, position, place);
  return true;
}

}  // namespace refurbish_tf
