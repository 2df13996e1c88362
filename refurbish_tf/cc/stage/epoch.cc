#include "refurbish_tf/cc/stage/epoch.h"

#include <algorithm>
#include <utility>

#include "refurbish_tf/cc/base/stopwatch.h"
#include "refurbish_tf/cc/stage/ask_ahead.h"

namespace refurbish_tf {
namespace {

// After this many, the next checkpoint copies all that was yielded.
constexpr size_t kMostYieldedSince = 1024;

// What may be taken ahead of its place for a source that asks ahead: bytes of
// samples, plus a constant for each of them; reads of a disk.
constexpr int64_t kMostTakenBytes = 16 << 20;
constexpr int64_t kLeastTakenBytes = 64;
constexpr int64_t kMostReading = 256;
// Few, as what is in transit may be gone if it is not read soon.
constexpr int64_t kMostTransitReading = 32;

// How many places are decided at once for a store in memory, unless they hold
// more bytes than this.
constexpr size_t kDecidedAtOnce = 8;
constexpr int64_t kMostDecidedBytes = 1 << 20;

// How many places may be decided only to keep the disk busy. Few, as what is
// fresh now may be in the store later.
constexpr size_t kMostDecidedToRead = 64;

// How many samples are handed out between two notes for people to see.
constexpr uint32_t kNotedAtOnce = 64;

// No generation of an epoch is the one that stands for "none" in a store.
static_assert(kMaxEpochs <= kNoGeneration);

}  // namespace

Epoch::Epoch(uint64_t number, uint64_t seed,
             std::optional<EpochSchedule> schedule,
             std::shared_ptr<const Schedule> owner, bool random_access,
             std::shared_ptr<SampleStore> store,
             std::shared_ptr<SharedUse> shared, const TransitRing* ring,
             std::shared_ptr<EpochCounters> counters,
             std::shared_ptr<void> alive)
    : number_(number),
      seed_(seed),
      owner_(std::move(owner)),
      schedule_(std::move(schedule)),
      random_access_(random_access && schedule_.has_value()),
      store_(std::move(store)),
      shared_(std::move(shared)),
      ring_(ring),
      number_begun_(shared_ == nullptr ? 0 : shared_->num_begun.load()),
      counters_(std::move(counters)),
      alive_(std::move(alive)),
      read_ahead_(store_->store().MakeReadAhead()) {
  absl::MutexLock lock(&mu_);
  if (schedule_.has_value()) {
    stream_length_ = schedule_->num_samples();
    requested_.resize(schedule_->num_samples());
    served_.resize(schedule_->num_samples());
    yielded_.resize((schedule_->num_samples() + 7) / 8);
  }
  if (ring_ != nullptr) {
    transit_.emplace(ring_, shared_->take_from, 0, schedule_->num_samples());
  }
}

void Epoch::NoteYielded(uint32_t index) {
  if (index / 8 >= yielded_.size()) yielded_.resize(index / 8 + 1);
  yielded_[index / 8] |= 1 << index % 8;
  if (!saved_.has_value()) return;
  yielded_since_.push_back(index);
  if (yielded_since_.size() <= kMostYieldedSince) return;
  saved_.reset();
  yielded_since_.clear();
}

void Epoch::Resume(const SavedEpoch& saved) {
  absl::MutexLock lock(&mu_);
  resumed_ = true;
  const auto yielded = saved.yielded.vec<uint8_t>();
  yielded_.assign(yielded.data(), yielded.data() + yielded.size());
  const auto since = saved.yielded_since.vec<uint32_t>();
  for (int64_t i = 0; i < since.size(); ++i) NoteYielded(since(i));
  if (schedule_.has_value()) {
    yielded_.resize((schedule_->num_samples() + 7) / 8);
  } else {
    served_.resize(8 * yielded_.size());
  }
  uint32_t num_yielded = 0;
  for (size_t i = 0; i < served_.size(); ++i) {
    served_[i] = yielded_[i / 8] >> i % 8 & 1;
    num_yielded += served_[i];
  }
  num_handed_out_ = num_yielded;
  if (!schedule_.has_value()) return;
  const uint32_t num_samples = schedule_->num_samples();
  first_position_ = next_position_ = num_yielded;
  if (ring_ != nullptr) {
    transit_.emplace(ring_, shared_->take_from, num_yielded, num_samples);
  }
  rest_.reserve(num_samples - num_yielded);
  uint32_t passed = 0;
  for (uint32_t position = num_yielded; position < num_samples; ++position) {
    Slot slot = schedule_->At(position);
    if (served_[slot.index]) {
      // For each sample that was yielded before its place there is a place
      // before this whose sample was not.
      do {
        slot = schedule_->At(passed++);
      } while (served_[slot.index]);
    }
    rest_.push_back(slot);
  }
}

SavedEpoch Epoch::Save() {
  absl::MutexLock lock(&mu_);
  SavedEpoch saved;
  saved.begun = true;
  saved.number = number_;
  if (schedule_.has_value()) saved.num_samples = schedule_->num_samples();
  if (scheduled()) {
    saved.scheduled = true;
    saved.num_kept = owner_->capacity();
    saved.origin = owner_->origin();
  }
  if (!saved_.has_value()) {
    saved_.emplace(
        tensorflow::DT_UINT8,
        tensorflow::TensorShape({static_cast<int64_t>(yielded_.size())}));
    std::copy(yielded_.begin(), yielded_.end(), saved_->vec<uint8_t>().data());
  }
  saved.yielded = *saved_;
  saved.yielded_since = tensorflow::Tensor(
      tensorflow::DT_UINT32,
      tensorflow::TensorShape({static_cast<int64_t>(yielded_since_.size())}));
  std::copy(yielded_since_.begin(), yielded_since_.end(),
            saved.yielded_since.vec<uint32_t>().data());
  return saved;
}

Generation Epoch::PreparedGeneration(uint32_t index) const {
  if (shared_ != nullptr) {
    absl::MutexLock lock(&mu_);
    const auto other = other_generations_.find(index);
    if (other != other_generations_.end()) return other->second;
  }
  return GenerationOf(index);
}

GenerationRange Epoch::Wanted(uint32_t index) const {
  const Generation generation = GenerationOf(index);
  if (Exact()) return {generation, generation};
  return shared_->generations.Wanted(index, generation);
}

bool Epoch::ToKeep(uint32_t index) const {
  if (Reused(index)) return true;
  return shared_ != nullptr && schedule_.has_value() &&
         schedule_->Kept(index) && shared_->job->OthersAreAlive();
}

bool Epoch::ClaimedByOther(uint32_t index) {
  // Of what is not kept others have other generations.
  return shared_ != nullptr && schedule_->Kept(index) &&
         !shared_->job->Claim(index, Wanted(index).least);
}

void Epoch::Ask(uint32_t index) {
  requested_[index] = true;
  if (Unkept(index)) {
    BeginUnkept(index, /*also_claimed=*/true, !shared_->job->OthersAreAlive());
    return;
  }
  if (Exact()) return;
  // Another iterator may use it meanwhile.
  Generation least;
  do {
    least = Wanted(index).least;
  } while (!shared_->generations.Use(index, least));
  NoteGeneration(index, least);
}

void Epoch::NoteGeneration(uint32_t index, Generation generation) {
  if (generation != GenerationOf(index)) {
    other_generations_[index] = generation;
  } else {
    other_generations_.erase(index);
  }
}

int64_t Epoch::num_samples() const {
  absl::MutexLock lock(&mu_);
  return stream_length_;
}

// The order -------------------------------------------------------------------

Epoch::Step Epoch::Next(Place* place) {
  absl::MutexLock lock(&mu_);
  if (!schedule_.has_value()) {
    if (arrivals_ended_) return Step::kEnd;
    *place = Place();
    return Step::kPlace;
  }
  if (!OrderIsWalked() && (decided_.empty() || read_ahead_ != nullptr)) {
    Decide();
  }
  if (!decided_.empty()) {
    *place = std::move(decided_.front());
    decided_.pop_front();
    num_to_prepare_ -= place->from == Place::From::kSource;
    taken_bytes_ -= place->bytes;
    if (place->bytes > 0) changed_.SignalAll();
    return Step::kPlace;
  }
  // Those that are being read may yet be deferred.
  if (num_reading_ > 0) return Step::kNotNow;
  while (!deferred_.empty()) {
    const uint32_t deferred = deferred_.back();
    deferred_.pop_back();
    Place found;
    if (shared_ != nullptr && TakeStored(deferred, &found)) {
      WantReads();
      *place = std::move(found);
      return Step::kPlace;
    }
    missing_.push_back(deferred);
    num_missing_left_ = missing_.size();
  }
  if (num_missing_left_ == 0) return Step::kEnd;
  *place = Place();
  place->absent = true;
  place->new_input = num_missing_left_ == missing_.size();
  --num_missing_left_;
  if (random_access_) {
    place->index = missing_[missing_.size() - 1 - num_missing_left_];
  }
  return Step::kPlace;
}

void Epoch::Decide() {
  if (read_ahead_ == nullptr) return DecideFromMemory();
  const size_t room = read_ahead_->Room();
  while (!OrderIsWalked()) {
    const bool enough = to_read_.size() >= room ||
                        decided_.size() >= kMostDecidedToRead ||
                        HasEnoughToPrepare();
    if (!decided_.empty() && enough) break;
    DecideNext();
  }
  WantReads();
}

void Epoch::DecideFromMemory() {
  while (!OrderIsWalked() && decided_.empty()) {
    Slot slots[kDecidedAtOnce];
    const uint32_t count = std::min<uint32_t>(
        kDecidedAtOnce, schedule_->num_samples() - next_position_);
    uint32_t cached[kDecidedAtOnce];
    size_t num_cached = 0;
    for (uint32_t i = 0; i < count; ++i) {
      slots[i] = At(next_position_ + i);
      if (!slots[i].fresh) cached[num_cached++] = slots[i].index;
    }
    store_->store().WillGet(cached, num_cached);
    int64_t bytes = 0;
    for (uint32_t i = 0; i < count && bytes < kMostDecidedBytes; ++i) {
      const size_t before = decided_.size();
      ++next_position_;
      DecideOne(slots[i]);
      if (decided_.size() > before)
        bytes += SampleBytes(decided_.back().sample);
    }
  }
}

void Epoch::DecideNext() {
  if (num_places_again_ > 0) {
    --num_places_again_;
    return DecideUnkept();
  }
  const Slot slot = At(next_position_++);
  Unkept(slot.index) ? DecideUnkept() : DecideOne(slot);
}

void Epoch::WillRead(uint32_t index, GenerationRange wanted,
                     std::optional<uint64_t> position, Place* place) {
  place->index = index;
  place->from = Place::From::kReading;
  place->wanted = {next_ticket_++, index, wanted, position};
  to_read_.push_back(place->wanted);
  ++num_reading_;
}

void Epoch::DecideOne(const Slot& slot) {
  Place place;
  if (!requested_[slot.index] && !TakeStored(slot.index, &place)) {
    const bool passed = !random_access_ && slot.index < stream_position_;
    if (passed || ClaimedByOther(slot.index)) {
      served_[slot.index] = true;
      deferred_.push_back(slot.index);
      return;
    }
    Ask(slot.index);
  }
  if (random_access_ && place.from == Place::From::kSource) {
    place.index = slot.index;
    requests_.push_back(slot.index);
  }
  place.absent = place.from == Place::From::kSource && !slot.fresh;
  AddPlace(std::move(place));
}

void Epoch::AddPlace(Place place) {
  num_to_prepare_ += place.from == Place::From::kSource;
  decided_.push_back(std::move(place));
}

bool Epoch::TakeStored(uint32_t index, Place* place) {
  CacheStore<Sample>& store = store_->store();
  const GenerationRange wanted = Wanted(index);
  if (read_ahead_ != nullptr) {
    served_[index] = store.Contains(index, wanted);
    if (!served_[index]) return false;
    WillRead(index, wanted, /*position=*/std::nullopt, place);
    return true;
  }
  Generation found;
  // After its last use a sample would only lie there until its successor comes.
  // Without a schedule it is unknown whether this is the last use.
  served_[index] = scheduled() && !Reused(index)
                       ? store.Take(index, wanted, &place->sample, &found)
                       : store.Get(index, wanted, &place->sample, &found);
  if (!served_[index]) return false;
  place->index = index;
  place->from = Place::From::kStore;
  return true;
}

void Epoch::WantReads() {
  if (to_read_.empty()) return;
  read_ahead_->Want(to_read_);
  to_read_.clear();
}

void Epoch::StartReads() {
  if (read_ahead_ != nullptr) read_ahead_->Start();
}

bool Epoch::Read(Place* place) {
  StartReads();
  const uint32_t index = *place->index;
  const bool in_transit = place->wanted.position.has_value();
  Generation found;
  bool hit;
  {
    Stopwatch wait(&counters_->store_wait_nanos);
    hit = read_ahead_->Get(place->wanted, &place->sample, &found,
                           &place->from_others);
  }
  if (hit && in_transit) {
    hit = shared_->generations.UseOnce(index, found);
  } else if (hit && !Exact()) {
    hit = shared_->generations.Use(index, found);
  }
  absl::MutexLock lock(&mu_);
  --num_reading_;
  num_transit_reading_ -= in_transit;
  changed_.SignalAll();
  if (hit) return true;
  if (in_transit && next_position_ < schedule_->num_samples() &&
      (random_access_ || index >= stream_position_)) {
    served_[index] = false;
    transit_->GiveBack(index);
    ++num_places_again_;
  } else {
    // It stays marked as served, so that a stream does not yield it as well.
    deferred_.push_back(index);
  }
  return false;
}

bool Epoch::HandedOut(std::optional<uint32_t> index) {
  absl::MutexLock lock(&mu_);
  ++num_handed_out_;
  if (index.has_value()) NoteYielded(*index);
  if (shared_ != nullptr && num_handed_out_ % kNotedAtOnce == 0) {
    shared_->job->NoteHandedOut(num_handed_out_);
  }
  return schedule_.has_value() && num_handed_out_ == schedule_->num_samples();
}

// The source ------------------------------------------------------------------

void Epoch::ReadAnew() {
  absl::MutexLock lock(&mu_);
  stream_position_ = 0;
  // The order has been walked to its end, so earlier requests no longer matter.
  std::fill(requested_.begin(), requested_.end(), false);
  for (const uint32_t index : missing_) Ask(index);
  requests_ = missing_;
}

absl::StatusOr<size_t> Epoch::Request(size_t n) {
  absl::StatusOr<size_t> requested = DecideRequest(n);
  StartReads();
  return requested;
}

absl::StatusOr<size_t> Epoch::DecideRequest(size_t n) {
  absl::MutexLock lock(&mu_);
  while (n >= requests_.size()) {
    if (closed_) return absl::CancelledError("The epoch is over.");
    if (OrderIsWalked()) {
      return absl::OutOfRangeError("No more samples to prepare.");
    }
    if (taken_bytes_ > kMostTakenBytes || num_reading_ > kMostReading ||
        num_transit_reading_ > kMostTransitReading) {
      if (AskingAhead::OnThisThread()) {
        return absl::UnavailableError("Too much was taken ahead.");
      }
      changed_.Wait(&mu_);
      continue;
    }
    const size_t before = decided_.size();
    DecideNext();
    WantReads();
    if (decided_.size() == before) continue;
    Place& ahead = decided_.back();
    if (ahead.from != Place::From::kStore) continue;
    ahead.bytes = kLeastTakenBytes + SampleBytes(ahead.sample);
    taken_bytes_ += ahead.bytes;
  }
  return requests_[n];
}

Epoch::Advance Epoch::AdvanceStream() {
  // Bounds both how long the lock is held and an iterator's uninterrupted work.
  constexpr int64_t kMaxPassOver = 4096;
  absl::MutexLock lock(&mu_);
  Advance advance;
  if (!schedule_.has_value()) {
    // Yielded before the epoch was resumed.
    for (; stream_position_ < static_cast<int64_t>(served_.size()) &&
           served_[stream_position_] && advance.pass_over < kMaxPassOver;
         ++stream_position_) {
      ++advance.pass_over;
    }
    if (advance.pass_over == kMaxPassOver) return advance;
    advance.wanted = true;
    advance.index = static_cast<uint32_t>(stream_position_++);
    // Another job may have agreed on the schedule already, and hand it to us.
    if (shared_ != nullptr) shared_->generations.Use(advance.index, number_);
    return advance;
  }
  while (stream_position_ < stream_length_ &&
         advance.pass_over < kMaxPassOver) {
    const uint32_t index = static_cast<uint32_t>(stream_position_++);
    // What is not kept comes from here or from the ring, whatever else the
    // store holds: an earlier first pass may have left it there.
    if (!requested_[index] && !served_[index] && !OrderIsWalked() &&
        (Unkept(index) || (!IsStored(index) && !ClaimedByOther(index)))) {
      Ask(index);
      num_unkept_ahead_ += Unkept(index);
    }
    if (requested_[index]) {
      advance.wanted = true;
      advance.index = index;
      return advance;
    }
    ++advance.pass_over;
  }
  advance.at_end = stream_position_ == stream_length_;
  return advance;
}

void Epoch::StreamEnded() {
  absl::MutexLock lock(&mu_);
  // The last position was the end itself.
  stream_length_ = stream_position_ - 1;
}

void Epoch::ArrivalsEnded() {
  absl::MutexLock lock(&mu_);
  arrivals_ended_ = true;
}

void Epoch::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  changed_.SignalAll();
}

}  // namespace refurbish_tf
