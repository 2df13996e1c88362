// Decides what comes at the places of an epoch's order: walks the order, and
// chooses where each sample comes from.
//
// The schedule plans which places are fresh (`Slot::fresh`), but what the store
// holds decides (`Decide`), and `missing` counts the difference. The order is
// walked once. A place is decided at its turn, with up to fifteen others if the
// store is in memory. It is decided earlier if the source asks ahead for
// samples to prepare, or to read ahead from disk. Deciding takes the sample
// from a store in memory at once, so that it cannot vanish. A sample on disk is
// read later, by the worker that claims its place, so that claims touch no
// file. A source with random access can ask ahead in its own `map` or
// `prefetch`. `Request` lets it wait once it is a certain number of bytes
// ahead.
//
// A place whose sample is prepared gets the next sample that the source yields.
// A source with random access yields samples in the order of its requests,
// which is the order of the claims, so the index is known from the claim on. A
// stream has its own order.
//
// Some samples are deferred to the end of the order: a sample that was in the
// store when the stream passed it, and is now gone; a sample whose record on
// disk is gone or damaged; and, on a shared store, a kept sample that another
// job is preparing, which is most likely stored by then. The source is read
// again for those that are still not stored.
//
// While other jobs are running on the store, any unkept sample may come at the
// place of another one (`JobEpoch::NextUnkept`). Each of them still comes once.
//
// A sample leaves a store in memory at its last use: memory falls to N·(1 -
// 1/r) samples, and `map` may work in place.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "refurbish_tf/cc/refurbish/epoch.h"

namespace refurbish_tf {
namespace {

// The most bytes of places that are decided at once, if all samples are as
// large as the largest one so far.
constexpr int64_t kMostDecidedBytes = 1 << 20;

// How many places may be decided only to keep the disk busy. Few, because a
// sample that is not stored yet may be stored when its turn comes.
constexpr size_t kMostDecidedToRead = 64;

// How many places ahead the shared level is asked. Many, because a worker that
// finds samples passes many places in the time of one answer, and a place whose
// answer has not come is prepared.
constexpr uint32_t kMostAskedAhead = 512;

// While other jobs are running, how many places may be decided whose samples
// are to be prepared. Few, because the other jobs may put these samples into
// the ring before their turn comes.
constexpr size_t kMostToPrepare = 4;

}  // namespace

void Epoch::AskAhead() {
  if (!reader_.has_value() || !random_access_) return;
  const uint64_t end =
      std::min<uint64_t>(next_position_ + kMostAskedAhead, num_places_);
  for (; asked_position_ < end; ++asked_position_) {
    const Slot slot = asked_walk_->Next();
    if (states_[slot.index] != SampleState::kOpen) continue;
    const GenerationRange wanted = Wanted(slot.index);
    const uint64_t key = keys_.InWhole(slot.index);
    // In memory, `Contains` would count a miss for each fresh sample.
    if (store().shared() ? !store().Contains(key, wanted)
                         : !wanted.Contains(store().StoredGeneration(key))) {
      reader_->Ask(InWhole(slot.index), wanted.least);
    }
  }
}

void Epoch::DecideMore() {
  job_->BeginDecisions();
  if (!order_.has_value()) return DecideNext();
  if (read_ahead_ == nullptr) {
    while (!OrderIsWalked() && decided_.empty()) {
      // One place as long as no sample's size is known. And with a shared
      // level, because more samples may have come by the next place's turn.
      const bool one = largest_ == 0 || reader_.has_value();
      DecideFromMemory(std::clamp<int64_t>(
          one ? 1 : kMostDecidedBytes / largest_, 1, kPlacesAtOnce));
    }
    return;
  }
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

void Epoch::DecideFromMemory(uint32_t most) {
  AskAhead();
  absl::InlinedVector<Slot, kPlacesAtOnce> slots;
  absl::InlinedVector<SampleMap<Sample>::Lookup, kPlacesAtOnce> lookups;
  for (; slots.size() < most && !OrderIsWalked(); ++next_position_) {
    const Slot& slot = slots.emplace_back(walk_->Next());
    if (states_[slot.index] != SampleState::kOpen) continue;
    auto& lookup = lookups.emplace_back();
    lookup.index = keys_.InWhole(slot.index);
    lookup.wanted = job_->Wanted(slot.index, slot.generation);
    // After its last use a sample would only take up room until its successor
    // comes. Without a schedule it is unknown which use is the last.
    lookup.last_use = scheduled() && !slot.reused;
  }
  store().LookUp(lookups.data(), lookups.size());
  auto lookup = lookups.begin();
  for (const Slot& slot : slots) {
    Place place;
    if (states_[slot.index] == SampleState::kOpen) {
      if (lookup->hit &&
          job_->Use(slot.index, lookup->generation, /*in_ring=*/false)) {
        place.index = slot.index;
        place.from = Place::From::kStore;
        place.sample = std::move(lookup->sample);
      }
      ++lookup;
    }
    largest_ = std::max(largest_, SampleBytes(place.sample));
    DecidePlace(slot, std::move(place));
  }
}

void Epoch::DecideNext() {
  if (order_.has_value() && read_ahead_ == nullptr) return DecideFromMemory(1);
  AskAhead();
  if (job_->TakeReturnedPlace()) return DecideUnkept();
  const uint32_t position = next_position_++;
  if (!order_.has_value()) return AddFromSource(position, /*missing=*/false);
  const Slot slot = walk_->Next();
  if (job_->InRing(slot.index)) return DecideUnkept();
  Place place;
  if (states_[slot.index] == SampleState::kOpen) IsStored(slot.index, &place);
  DecidePlace(slot, std::move(place));
}

void Epoch::DecidePlace(const Slot& slot, Place place) {
  if (place.from == Place::From::kSource && random_access_ &&
      reader_.has_value() && states_[slot.index] == SampleState::kOpen) {
    Generation found;
    if (reader_->Take(InWhole(slot.index), Wanted(slot.index), /*last=*/false,
                      &place.sample, &found) &&
        job_->Use(slot.index, found, /*in_ring=*/false)) {
      place.index = slot.index;
      place.from = Place::From::kStore;
      place.from_level = found;
    }
  }
  const SampleState state = Decide(Occasion::kPlace, slot.index, &place);
  if (state == SampleState::kFound) AddPlace(std::move(place));
  if (state == SampleState::kAsked) AddFromSource(slot.index, !slot.fresh);
}

void Epoch::DecideUnkept() {
  const std::optional<JobEpoch::Unkept> next =
      job_->NextUnkept([this](uint32_t index) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return states_[index] == SampleState::kOpen;
      });
  // `next` always has a value: there is an open sample for each such place.
  if (!next.has_value()) return;
  const uint32_t index = next->index.value_or(0);
  if (!next->position.has_value()) {
    if (next->index.has_value()) states_.Set(index, SampleState::kAsked);
    return AddFromSource(index, /*missing=*/false);
  }
  Place place;
  states_.Set(index, SampleState::kFound);
  WillRead(index, {next->generation, next->generation}, next->position, &place);
  AddPlace(std::move(place));
}

// A source with random access yields this sample, a stream its next one.
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
  if (place.from != Place::From::kSource && reader_.has_value()) {
    reader_->Forget(InWhole(*place.index));
  }
  decided_.push_back(std::move(place));
}

// In all cases that are not listed, the state stays. Above all, a sample is
// requested once: by its place or by the stream, whichever comes first.
//
// Occasion   State      If                                         New state
// ---------  ---------  -----------------------------------------  ---------
// kPlace     kOpen      the store has it                           kFound
//                       the stream has passed it                   kDeferred
//                       another job is preparing it                kDeferred
//                       else                                       kAsked
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
    case Occasion::kStream:
      if (!open) break;
      // An unkept sample that jobs share comes from the source, even if the
      // store still has it from a first pass.
      if (job_->InRing(index)) {
        job_->ClaimAhead(index);
        state = State::kAsked;
      } else if (!(order_.has_value() && IsStored(index, nullptr)) &&
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
      if (!parts_.job->alone() && IsStored(index, place)) {
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

bool Epoch::IsStored(uint32_t index, Place* place) {
  const GenerationRange wanted = Wanted(index);
  if (!store().Contains(keys_.InWhole(index), wanted)) return false;
  if (place != nullptr) WillRead(index, wanted, std::nullopt, place);
  return true;
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
