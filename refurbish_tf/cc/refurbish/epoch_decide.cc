// Decides what comes at the places of an epoch's order: walks the order, and
// chooses where each sample comes from.
//
// The schedule plans which places are fresh (`Slot::fresh`); what the store
// holds decides (`Decide`), and `missing` counts the difference. The order is
// walked once. A place is decided at its turn, with up to fifteen others if the
// store is in memory. It is decided earlier if the source asks ahead for
// samples to prepare, or if a disk is read ahead. Deciding takes the sample
// from a store in memory at once, so that it cannot vanish. A sample on disk is
// read later, by the worker that comes to it, so that claims touch no file.
// What a source with random access (its own `map` or `prefetch`) asks ahead is
// bounded in bytes: beyond that `Request` waits.
//
// At a place whose sample is prepared comes the next sample of the source. A
// source with random access yields samples in the order of its requests, which
// is the order of the claims, so the index is known from the claim on. A stream
// has its own order.
//
// Some samples are deferred to the end of the order: a sample that was in the
// store when the stream passed over it, and is gone; on a shared store, a kept
// sample that another job is preparing, which is most likely stored by then;
// and a sample whose record on disk is gone or damaged. The source is read
// again for those that are still not stored.
//
// While other jobs are running on the store, any unkept sample may come at the
// place of an unkept one (`JobEpoch::NextUnkept`). Each of them still comes
// once.
//
// A sample leaves a store in memory at its last use: memory falls to N·(1 -
// 1/r) samples, and `map` may work in place.
#include <algorithm>
#include <optional>
#include <utility>

#include "refurbish_tf/cc/refurbish/epoch.h"

namespace refurbish_tf {
namespace {

// How many places are decided at once for a store in memory, and the most bytes
// that they may take if all samples are as large as the largest found so far.
constexpr size_t kDecidedAtOnce = kPlacesAtOnce;
constexpr int64_t kMostDecidedBytes = 1 << 20;

// How many places may be decided only to keep the disk busy. Few, because
// samples that are fresh now may be in the store later.
constexpr size_t kMostDecidedToRead = 64;

// How many places may be decided whose samples are to be prepared, while other
// jobs may put these samples into the ring before their turn comes.
constexpr size_t kMostToPrepare = 4;

void Fill(uint32_t index, Sample sample, Place* place) {
  place->index = index;
  place->from = Place::From::kStore;
  place->sample = std::move(sample);
}

}  // namespace

// The walk --------------------------------------------------------------------

void Epoch::DecideMore() {
  job_->BeginDecisions();
  if (!order_.has_value()) return DecideNext();
  if (read_ahead_ == nullptr) return DecideFromMemory();
  const size_t room = read_ahead_->Room();
  while (!OrderIsWalked()) {
    const bool enough =
        reads_.size() >= room || decided_.size() >= kMostDecidedToRead ||
        (num_to_prepare_ >= kMostToPrepare && job_->OthersHandOn());
    if (!decided_.empty() && enough) break;
    DecideNext();
  }
  WantReads();
}

void Epoch::DecideFromMemory() {
  while (!OrderIsWalked() && decided_.empty()) {
    Slot slots[kDecidedAtOnce];
    SampleMap<Sample>::Lookup lookups[kDecidedAtOnce];
    uint32_t num_lookups = 0;
    // At first one place, because the largest sample is not known yet.
    const int64_t most = std::clamp<int64_t>(
        largest_ == 0 ? 1 : kMostDecidedBytes / largest_, 1, kDecidedAtOnce);
    const uint32_t count =
        std::min<int64_t>(most, num_places_ - next_position_);
    for (uint32_t i = 0; i < count; ++i) {
      slots[i] = walk_->Next();
      const uint32_t index = slots[i].index;
      if (states_[index] != SampleState::kOpen) continue;
      auto& lookup = lookups[num_lookups++];
      lookup.index = keys_.InWhole(index);
      lookup.wanted = job_->Wanted(index, slots[i].generation);
      lookup.last_use = IsLastUse(slots[i].reused);
    }
    store().LookUp(lookups, num_lookups);
    next_position_ += count;
    auto* lookup = lookups;
    for (uint32_t i = 0; i < count; ++i) {
      Place place;
      const uint32_t index = slots[i].index;
      if (states_[index] == SampleState::kOpen) {
        if (lookup->hit) Fill(index, std::move(lookup->sample), &place);
        ++lookup;
      }
      largest_ = std::max(largest_, SampleBytes(place.sample));
      DecidePlace(slots[i], std::move(place));
    }
  }
}

void Epoch::DecideNext() {
  if (job_->TakeReturnedPlace()) return DecideUnkept();
  const uint32_t position = next_position_++;
  if (!order_.has_value()) return AddFromSource(position, /*missing=*/false);
  const Slot slot = walk_->Next();
  if (job_->InRing(slot.index)) return DecideUnkept();
  Place place;
  if (states_[slot.index] == SampleState::kOpen) {
    FindStored(slot.index, &place);
  }
  DecidePlace(slot, std::move(place));
}

void Epoch::DecidePlace(const Slot& slot, Place place) {
  const SampleState state = Decide(Occasion::kPlace, slot.index, &place);
  if (state == SampleState::kFound) AddPlace(std::move(place));
  if (state == SampleState::kAsked) AddFromSource(slot.index, !slot.fresh);
}

void Epoch::DecideUnkept() {
  const std::optional<JobEpoch::Unkept> next =
      job_->NextUnkept([this](uint32_t index) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return states_[index] == SampleState::kOpen;
      });
  // It has a value: there is an open sample for each place.
  if (!next.has_value()) return;
  const uint32_t index = next->index.value_or(0);
  if (!next->position.has_value()) {
    if (next->index.has_value()) Decide(Occasion::kClaimed, index);
    return AddFromSource(index, /*missing=*/false);
  }
  Place place;
  Decide(Occasion::kInRing, index);
  WillRead(index, {next->generation, next->generation}, next->position, &place);
  AddPlace(std::move(place));
}

// A source that is read by index yields this sample, a stream its next one.
void Epoch::AddFromSource(uint32_t index, bool missing) {
  Place place;
  place.missing = missing;
  if (random_access_) {
    place.index = index;
    requests_.Add(index);
  }
  AddPlace(std::move(place));
}

void Epoch::AddPlace(Place place) {
  num_to_prepare_ += place.from == Place::From::kSource;
  decided_.push_back(std::move(place));
}

// Decisions -------------------------------------------------------------------

// In all other cases the state does not change. Above all, a sample is
// requested once, by its place or by the stream, whichever comes first.
//
// Occasion   State      If                                         New state
// ---------  ---------  -----------------------------------------  ---------
// kPlace     kOpen      the store has it                           kFound
//                       the stream has passed it                   kDeferred
//                       another job is preparing it                kDeferred
//                       else                                       kAsked
// kInRing    kOpen                                                 kFound
// kClaimed   kOpen                                                 kAsked
// kStream    kOpen      the number of samples is unknown           kAsked
//                       it is not kept, but shared                 kAsked
//                       the store has it: it comes at its place    kOpen
//                       another job is preparing it                kOpen
//                       else                                       kAsked
// kGone      kFound     it was in the ring, the walk goes on, and
//                       the stream has not passed it               kOpen
//                       else                                       kDeferred
// kEnd       kDeferred  the store is shared, and has it now        kFound
// kReadAnew  kDeferred                                             kAsked
//            kAsked     (it has come)                              kFound
SampleState Epoch::Decide(Occasion occasion, uint32_t index, Place* place) {
  using State = SampleState;
  const State before = states_[index];
  const bool open = before == State::kOpen;
  State state = before;
  switch (occasion) {
    case Occasion::kPlace:
      if (!open) break;
      state = place->from != Place::From::kSource           ? State::kFound
              : !Passed(index) && job_->Claim(index, false) ? State::kAsked
                                                            : State::kDeferred;
      break;
    case Occasion::kInRing:
      if (open) state = State::kFound;
      break;
    case Occasion::kClaimed:
      if (open) state = State::kAsked;
      break;
    case Occasion::kStream:
      if (!open) break;
      // An unkept sample that jobs share comes from the source, even if an
      // earlier first pass has left it in the store.
      if (job_->InRing(index)) {
        job_->ClaimAhead(index);
        state = State::kAsked;
      } else if (!(order_.has_value() && IsStored(index)) &&
                 job_->Claim(index, false)) {
        state = State::kAsked;
      }
      break;
    case Occasion::kGone:
      state = State::kDeferred;
      if (place->wanted.position.has_value() && !OrderIsWalked() &&
          !Passed(index)) {
        state = State::kOpen;
        job_->GiveBack(index);
      }
      break;
    case Occasion::kEnd:
      if (!parts_.job->alone() && FindStored(index, place)) {
        state = State::kFound;
      }
      break;
    case Occasion::kReadAnew:
      if (before == State::kAsked) state = State::kFound;
      if (before == State::kDeferred && job_->Claim(index, true)) {
        state = State::kAsked;
      }
      break;
  }
  if (state == before) return state;
  if (state == State::kDeferred) deferred_.push_back(index);
  states_.Set(index, state);
  return state;
}

bool Epoch::FindStored(uint32_t index, Place* place) {
  const uint64_t key = keys_.InWhole(index);
  const GenerationRange wanted = Wanted(index);
  if (read_ahead_ != nullptr) {
    if (!store().Contains(key, wanted)) return false;
    WillRead(index, wanted, /*position=*/std::nullopt, place);
    return true;
  }
  SampleMap<Sample>::Lookup lookup;
  lookup.index = key;
  lookup.wanted = wanted;
  lookup.last_use = IsLastUse(Reused(index));
  store().LookUp(&lookup, 1);
  if (lookup.hit) Fill(index, std::move(lookup.sample), place);
  return lookup.hit;
}

void Epoch::WillRead(uint32_t index, GenerationRange wanted,
                     std::optional<uint64_t> position, Place* place) {
  place->index = index;
  place->from = Place::From::kReading;
  place->wanted = reads_.Note(keys_.InWhole(index), wanted, position);
}

void Epoch::WantReads() {
  if (reads_.size() > 0) read_ahead_->Want(reads_.Take());
}

}  // namespace refurbish_tf
