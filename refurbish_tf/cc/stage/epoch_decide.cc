// What comes at the places of an epoch's order: the walk of the order, and
// where each sample comes from.
#include <algorithm>
#include <optional>
#include <utility>

#include "refurbish_tf/cc/stage/epoch.h"
#include "refurbish_tf/cc/store/disk/record.h"

namespace refurbish_tf {
namespace {

// How many places are decided at once for a store in memory, unless they hold
// more bytes than this.
constexpr size_t kDecidedAtOnce = 8;
constexpr int64_t kMostDecidedBytes = 1 << 20;

// How many places may be decided only to keep the disk busy. Few, as what is
// fresh now may be in the store later.
constexpr size_t kMostDecidedToRead = 64;

// How many claims of samples that are kept may be refused in one call, as each
// takes a system call. Beyond it a sample is prepared although another job is
// preparing it. Sixteen jobs together have no more decided places than this, so
// it does not happen to them.
constexpr uint32_t kMostRefusedToKeep = 16 * kMostDecidedToRead;

// How many places may be decided whose samples are to be prepared, while others
// may put these samples into the ring before their turn comes.
constexpr size_t kMostToPrepare = 4;

}  // namespace

// The walk --------------------------------------------------------------------

void Epoch::DecideMore() {
  if (!schedule_.has_value()) return DecideNext();
  if (read_ahead_ == nullptr) return DecideFromMemory();
  const size_t room = read_ahead_->Room();
  num_refused_ = 0;
  while (!OrderIsWalked()) {
    const bool enough = to_read_.size() >= room ||
                        decided_.size() >= kMostDecidedToRead ||
                        (with_others_ && num_to_prepare_ >= kMostToPrepare);
    if (!decided_.empty() && enough) break;
    DecideNext();
  }
  WantReads();
}

void Epoch::DecideFromMemory() {
  while (!OrderIsWalked() && decided_.empty()) {
    Slot slots[kDecidedAtOnce];
    const uint32_t count =
        std::min<uint32_t>(kDecidedAtOnce, num_places_ - next_position_);
    uint32_t cached[kDecidedAtOnce];
    size_t num_cached = 0;
    for (uint32_t i = 0; i < count; ++i) {
      slots[i] = schedule_->At(next_position_ + i);
      if (!slots[i].fresh) cached[num_cached++] = slots[i].index;
    }
    store_->store().WillGet(cached, num_cached);
    int64_t bytes = 0;
    for (uint32_t i = 0; i < count && bytes < kMostDecidedBytes; ++i) {
      const size_t before = decided_.size();
      ++next_position_;
      DecidePlace(slots[i]);
      if (decided_.size() > before) {
        bytes += SampleBytes(decided_.back().sample);
      }
    }
  }
}

void Epoch::DecideNext() {
  if (num_unkept_owed_ > 0) {
    --num_unkept_owed_;
    return DecideUnkept();
  }
  const uint32_t position = next_position_++;
  if (!schedule_.has_value()) return AddFromSource(position, /*missing=*/false);
  const Slot slot = schedule_->At(position);
  Unkept(slot.index) ? DecideUnkept() : DecidePlace(slot);
}

void Epoch::DecidePlace(const Slot& slot) {
  Place place;
  const SampleState state = Decide(Occasion::kPlace, slot.index, &place);
  if (state == SampleState::kFound) AddPlace(std::move(place));
  if (state == SampleState::kAsked) AddFromSource(slot.index, !slot.fresh);
}

void Epoch::DecideUnkept() {
  NoteOthers();
  if (with_others_ && DecideFromRing()) return;
  if (num_unkept_ahead_ > 0) {
    --num_unkept_ahead_;
    return AddFromSource(/*index=*/0, /*missing=*/false);
  }
  const std::optional<uint32_t> own = transit_->NextOwn(
      [this](uint32_t position) { return schedule_->At(position); },
      [this](uint32_t index) { return NeedsUnkept(index); },
      [this](uint32_t index, bool also_claimed) {
        const Occasion occasion =
            also_claimed ? Occasion::kLastOwn : Occasion::kNextOwn;
        return Decide(occasion, index) == SampleState::kAsked;
      });
  // It has a value, as there is an open sample for each place.
  if (own.has_value()) AddFromSource(*own, /*missing=*/false);
}

void Epoch::NoteOthers() {
  with_others_ = transit_.has_value() && shared_->job->OthersAreAlive();
}

bool Epoch::DecideFromRing() {
  if (number_begun_ != shared_->num_begun) return false;
  Place place;
  const std::optional<uint64_t> position =
      transit_->Oldest([&](uint64_t key, uint32_t tag) {
        if (!keys_.Has(key) || keys_.InShard(key) >= num_places_) return false;
        const auto index = static_cast<uint32_t>(keys_.InShard(key));
        if (!NeedsUnkept(index)) return false;
        const Generation generation =
            NearestGeneration(tag, shared_->generations.NextUnused(index));
        place.index = index;
        place.wanted.generations = {generation, generation};
        return Decide(Occasion::kInRing, index, &place) == SampleState::kFound;
      });
  if (!position.has_value()) return false;
  WillRead(*place.index, place.wanted.generations, position, &place);
  ++num_transit_reading_;
  AddPlace(std::move(place));
  return true;
}

// A source that is read by index yields this sample, a stream its next one.
void Epoch::AddFromSource(uint32_t index, bool missing) {
  Place place;
  place.missing = missing;
  if (random_access_) {
    place.index = index;
    requests_.push_back(index);
  }
  AddPlace(std::move(place));
}

void Epoch::AddPlace(Place place) {
  num_to_prepare_ += place.from == Place::From::kSource;
  decided_.push_back(std::move(place));
}

// Decisions -------------------------------------------------------------------

// What is not in the table leaves the state as it is: above all, a sample is
// asked for once, by its place or by the stream, whichever comes first.
//
// Occasion   State      If                                         New state
// ---------  ---------  -----------------------------------------  ---------
// kPlace     kOpen      the store has it                           kFound
//                       the stream has passed it                   kDeferred
//                       another job is preparing it (but see
//                       kMostRefusedToKeep)                        kDeferred
//                       else                                       kAsked
// kStream    kOpen      the number of samples is unknown           kAsked
//                       it is not kept, and there is a ring        kAsked
//                       the store has it: it comes at its place    kOpen
//                       another job is preparing it                kOpen
//                       else                                       kAsked
// kInRing    kOpen      the job has not used its generation        kFound
// kNextOwn   kOpen      another job is preparing it                kOpen
//                       else                                       kAsked
// kLastOwn   kOpen                                                 kAsked
// kGone      kFound     it was in the ring, the walk goes on, and
//                       the stream has not passed it               kOpen
//                       else                                       kDeferred
// kEnd       kDeferred  the store is shared, and has it now        kFound
// kReadAnew  kDeferred                                             kAsked
//            kAsked     (it has come)                              kFound
//
// At a place of samples that are not kept, beside other jobs, come first what
// is kInRing, then what a stream was asked for ahead, then what is kNextOwn,
// then what is kLastOwn.
SampleState Epoch::Decide(Occasion occasion, uint32_t index, Place* place) {
  using State = SampleState;
  const State before = states_[index];
  const bool open = before == State::kOpen;
  // A sample that is not kept comes from the source, even if an earlier first
  // pass has left it in the store.
  const bool unkept = Unkept(index);
  State state = before;
  switch (occasion) {
    case Occasion::kPlace:
      if (!open) break;
      state = FindStored(index, place)              ? State::kFound
              : !Passed(index) && Ask(index, false) ? State::kAsked
                                                    : State::kDeferred;
      break;
    case Occasion::kStream:
      if (!open) break;
      if (unkept || !schedule_.has_value()
              ? Ask(index, true)
              : !IsStored(index) && Ask(index, false)) {
        state = State::kAsked;
        num_unkept_ahead_ += unkept;
      }
      break;
    case Occasion::kInRing:
      if (open && place->wanted.generations.least >=
                      shared_->generations.NextUnused(index)) {
        state = State::kFound;
      }
      break;
    case Occasion::kNextOwn:
    case Occasion::kLastOwn:
      if (open && Ask(index, occasion == Occasion::kLastOwn)) {
        state = State::kAsked;
      }
      break;
    case Occasion::kGone:
      state = State::kDeferred;
      if (place->wanted.position.has_value() && !OrderIsWalked() &&
          !Passed(index)) {
        state = State::kOpen;
        transit_->GiveBack(index);
        ++num_unkept_owed_;
      }
      break;
    case Occasion::kEnd:
      if (shared_ != nullptr && FindStored(index, place)) state = State::kFound;
      break;
    case Occasion::kReadAnew:
      if (before == State::kAsked) state = State::kFound;
      if (before == State::kDeferred && Ask(index, true)) state = State::kAsked;
      break;
  }
  if (state == before) return state;
  if (state == State::kDeferred) deferred_.push_back(index);
  states_.Set(index, state);
  return state;
}

GenerationRange Epoch::Wanted(uint32_t index) const {
  const Generation generation = GenerationOf(index);
  if (Exact()) return {generation, generation};
  return shared_->generations.Wanted(index, generation);
}

bool Epoch::FindStored(uint32_t index, Place* place) {
  CacheStore<Sample>& store = store_->store();
  const GenerationRange wanted = Wanted(index);
  if (read_ahead_ != nullptr) {
    if (!store.Contains(keys_.InWhole(index), wanted)) return false;
    WillRead(index, wanted, /*position=*/std::nullopt, place);
    return true;
  }
  const uint64_t key = keys_.InWhole(index);
  Generation found;
  // After its last use a sample would only lie there until its successor comes.
  // Without a schedule it is unknown whether this is the last use.
  const bool hit = scheduled() && !Reused(index)
                       ? store.Take(key, wanted, &place->sample, &found)
                       : store.Get(key, wanted, &place->sample, &found);
  if (!hit) return false;
  place->index = index;
  place->from = Place::From::kStore;
  return true;
}

void Epoch::WillRead(uint32_t index, GenerationRange wanted,
                     std::optional<uint64_t> position, Place* place) {
  place->index = index;
  place->from = Place::From::kReading;
  place->wanted = {next_ticket_++, keys_.InWhole(index), wanted, position};
  to_read_.push_back(place->wanted);
  ++num_reading_;
}

void Epoch::WantReads() {
  if (to_read_.empty()) return;
  read_ahead_->Want(to_read_);
  to_read_.clear();
}

bool Epoch::Ask(uint32_t index, bool also_claimed) {
  if (shared_ == nullptr) return true;
  UsedGenerations& used = shared_->generations;
  if (Unkept(index)) return AskUnkept(index, also_claimed);
  if (!schedule_.has_value()) {
    // Another job may have agreed on the schedule already, and hand it to us.
    used.Use(index, number_);
    return true;
  }
  // Of what is not kept others have other generations.
  if (!also_claimed && schedule_->Kept(index) &&
      num_refused_ < kMostRefusedToKeep &&
      !shared_->job->Claim(keys_.InWhole(index), Wanted(index).least)) {
    ++num_refused_;
    return false;
  }
  if (Exact()) return true;
  // Another iterator may use it meanwhile.
  Generation least;
  do {
    least = Wanted(index).least;
  } while (!used.Use(index, least));
  NoteGeneration(index, least);
  return true;
}

bool Epoch::AskUnkept(uint32_t index, bool also_claimed) {
  UsedGenerations& used = shared_->generations;
  SharedState::Job& job = *shared_->job;
  // After a restore a job that is alone does again what it did before.
  const bool again = !with_others_ && Exact();
  Generation generation = GenerationOf(index);
  do {
    if (!again) generation = std::max(generation, used.NextUnused(index));
    if (!with_others_) continue;
    const std::optional<Generation> next =
        job.ClaimNext(keys_.InWhole(index), generation, also_claimed);
    if (!next.has_value()) return false;
    generation = *next;
    // Another iterator may use it meanwhile.
  } while (!used.UseOnce(index, generation) && !again);
  if (!with_others_) job.NoteBegun(keys_.InWhole(index), generation);
  NoteGeneration(index, generation);
  return true;
}

void Epoch::NoteGeneration(uint32_t index, Generation generation) {
  if (generation != GenerationOf(index)) {
    other_generations_[index] = generation;
  } else {
    other_generations_.erase(index);
  }
}

}  // namespace refurbish_tf
