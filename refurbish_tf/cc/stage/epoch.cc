#include "refurbish_tf/cc/stage/epoch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "refurbish_tf/cc/stage/ask_ahead.h"

namespace refurbish_tf {
namespace {

// What may be decided ahead for a source that asks ahead: bytes of samples from
// the store, plus a constant for each of them; reads of a disk.
constexpr int64_t kMostBytesAhead = 16 << 20;
constexpr int64_t kLeastBytesAhead = 64;
constexpr int64_t kMostReading = 256;
// Few, as what is in transit may be gone if it is not read soon.
constexpr int64_t kMostTransitReading = 32;

// How many samples are handed out between two notes for people to see.
constexpr uint32_t kNotedAtOnce = 64;

// No generation of an epoch is the one that stands for "none" in a store.
static_assert(kMaxEpochs <= kNoGeneration);

}  // namespace

Epoch::Epoch(uint64_t number, uint64_t seed, const Shard& shard,
             std::optional<EpochSchedule> schedule,
             std::shared_ptr<const Schedule> owner, bool random_access,
             std::shared_ptr<SampleStore> store,
             std::shared_ptr<SharedUse> shared, const TransitRing* ring,
             uint64_t number_begun, std::shared_ptr<EpochCounters> counters,
             std::shared_ptr<std::atomic<int64_t>> alive)
    : number_(number),
      seed_(seed),
      shard_(shard),
      keys_(store->Keys(shard)),
      owner_(std::move(owner)),
      schedule_(std::move(schedule)),
      random_access_(random_access && schedule_.has_value()),
      store_(std::move(store)),
      shared_(std::move(shared)),
      ring_(ring),
      number_begun_(number_begun),
      counters_(std::move(counters)),
      alive_(std::move(alive)),
      read_ahead_(store_->store().MakeReadAhead()) {
  absl::MutexLock lock(&mu_);
  if (schedule_.has_value()) {
    stream_length_ = num_places_ = schedule_->num_samples();
    states_.Resize(num_places_);
    yielded_.Resize(num_places_);
    *alive_ = schedule_->bytes() + num_places_ / 4 + yielded_.bytes();
  }
  if (ring_ != nullptr) {
    transit_.emplace(ring_, shared_->ring_from, 0, num_places_);
  }
}

void Epoch::Resume(const SavedEpoch& saved) {
  absl::MutexLock lock(&mu_);
  resumed_ = true;
  yielded_.Resume(saved);
  uint32_t num_yielded = 0;
  for (uint32_t i = 0; i < yielded_.end(); ++i) {
    if (!yielded_.Has(i)) continue;
    states_.Set(i, SampleState::kFound);
    ++num_yielded;
  }
  num_handed_out_ = num_yielded;
  if (!schedule_.has_value()) return;
  yielded_.Resize(num_places_);
  next_position_ = num_yielded;
  if (ring_ != nullptr) {
    transit_.emplace(ring_, shared_->ring_from, num_yielded, num_places_);
  }
  std::vector<uint32_t> order(num_places_);
  std::vector<bool> fresh(num_places_);
  uint32_t passed = 0;
  for (uint32_t position = num_yielded; position < num_places_; ++position) {
    Slot slot = schedule_->At(position);
    if (yielded_.Has(slot.index)) {
      // For each sample that was yielded before its place there is a place
      // before this whose sample was not.
      do {
        slot = schedule_->At(passed++);
      } while (yielded_.Has(slot.index));
    }
    order[position] = slot.index;
    fresh[position] = slot.fresh;
  }
  schedule_->SetOrder(std::move(order), std::move(fresh));
}

void Epoch::Save(SavedEpoch* saved) {
  absl::MutexLock lock(&mu_);
  saved->begun = true;
  saved->number = number_;
  saved->num_samples =
      schedule_.has_value() ? schedule_->num_samples() : kUnknownSamples;
  saved->scheduled = scheduled();
  saved->num_kept = scheduled() ? owner_->capacity() : 0;
  saved->origin = scheduled() ? owner_->origin() : 0;
  if (scheduled() && saved->schedule_shards > 0) {
    saved->schedule_shards = owner_->ShardsThen(shard_.count);
  }
  yielded_.Save(saved);
  if (!schedule_.has_value()) return;
  *alive_ = schedule_->bytes() + num_places_ / 4 + yielded_.bytes();
}

Generation Epoch::PreparedGeneration(uint32_t index) const {
  if (shared_ != nullptr) {
    absl::MutexLock lock(&mu_);
    const auto other = other_generations_.find(index);
    if (other != other_generations_.end()) return other->second;
  }
  return GenerationOf(index);
}

bool Epoch::ToShare(uint32_t index) const {
  return ring_ != nullptr && !schedule_->Kept(index) &&
         shared_->job->OthersAreAlive();
}

bool Epoch::ToKeep(uint32_t index) const {
  if (Reused(index)) return true;
  return shared_ != nullptr && schedule_.has_value() &&
         schedule_->Kept(index) && shared_->job->OthersAreAlive();
}

int64_t Epoch::num_samples() const {
  absl::MutexLock lock(&mu_);
  return stream_length_;
}

// The order -------------------------------------------------------------------

Epoch::Step Epoch::Next(Place* place) {
  absl::MutexLock lock(&mu_);
  if (!OrderIsWalked() && (decided_.empty() || read_ahead_ != nullptr)) {
    DecideMore();
  }
  if (!decided_.empty()) {
    *place = std::move(decided_.front());
    decided_.pop_front();
    num_to_prepare_ -= place->from == Place::From::kSource;
    bytes_ahead_ -= place->bytes_ahead;
    if (place->bytes_ahead > 0) changed_.SignalAll();
    return Step::kPlace;
  }
  // Those that are being read may yet be deferred.
  if (num_reading_ > 0) return Step::kNotNow;
  while (!deferred_.empty()) {
    const uint32_t index = deferred_.back();
    deferred_.pop_back();
    Place found;
    if (Decide(Occasion::kEnd, index, &found) == SampleState::kFound) {
      WantReads();
      *place = std::move(found);
      return Step::kPlace;
    }
    missing_.push_back(index);
  }
  if (num_missing_claimed_ == missing_.size()) return Step::kEnd;
  *place = Place();
  place->missing = true;
  place->new_input = num_missing_claimed_ == 0;
  if (random_access_) place->index = missing_[num_missing_claimed_];
  ++num_missing_claimed_;
  return Step::kPlace;
}

void Epoch::StartReads() {
  if (read_ahead_ != nullptr) read_ahead_->Start();
}

bool Epoch::Read(Place* place) {
  StartReads();
  const uint32_t index = *place->index;
  const bool in_transit = place->wanted.position.has_value();
  Generation found;
  const auto began = std::chrono::steady_clock::now();
  bool hit = read_ahead_->Get(place->wanted, &place->sample, &found,
                              &place->from_other_jobs);
  counters_->store_wait_nanos +=
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - began)
          .count();
  if (hit && in_transit) {
    hit = shared_->generations.UseOnce(index, found);
  } else if (hit && !Exact()) {
    hit = shared_->generations.Use(index, found);
  }
  absl::MutexLock lock(&mu_);
  --num_reading_;
  num_transit_reading_ -= in_transit;
  changed_.SignalAll();
  if (!hit) Decide(Occasion::kGone, index, place);
  return hit;
}

bool Epoch::HandedOut(std::optional<uint32_t> index) {
  absl::MutexLock lock(&mu_);
  ++num_handed_out_;
  if (index.has_value()) yielded_.Note(*index);
  if (shared_ != nullptr && num_handed_out_ % kNotedAtOnce == 0) {
    shared_->job->NoteHandedOut(num_handed_out_);
  }
  return schedule_.has_value() && num_handed_out_ == schedule_->num_samples();
}

// The source ------------------------------------------------------------------

void Epoch::ReadAnew() {
  absl::MutexLock lock(&mu_);
  NoteOthers();
  stream_position_ = 0;
  for (uint32_t i = 0; i < num_places_; ++i) Decide(Occasion::kReadAnew, i);
  requests_.assign(missing_.begin(), missing_.end());
  first_request_ = 0;
}

absl::StatusOr<size_t> Epoch::Request(size_t n, uint64_t input) {
  absl::StatusOr<size_t> requested = DecideRequest(n, input);
  StartReads();
  return requested;
}

void Epoch::NoteRead(size_t num_read) {
  absl::MutexLock lock(&mu_);
  for (; first_request_ < num_read && !requests_.empty(); ++first_request_) {
    requests_.pop_front();
  }
}

uint64_t Epoch::NewInput() {
  absl::MutexLock lock(&mu_);
  changed_.SignalAll();
  return ++input_;
}

absl::StatusOr<size_t> Epoch::DecideRequest(size_t n, uint64_t input) {
  absl::MutexLock lock(&mu_);
  num_refused_ = 0;
  while (n >= first_request_ + requests_.size()) {
    if (closed_ || input != input_) {
      return absl::CancelledError("The input is no longer used.");
    }
    if (OrderIsWalked()) {
      return absl::OutOfRangeError("No more samples to prepare.");
    }
    if (bytes_ahead_ > kMostBytesAhead || num_reading_ > kMostReading ||
        num_transit_reading_ > kMostTransitReading) {
      if (AskingAhead::OnThisThread()) {
        return absl::UnavailableError("Too much was decided ahead.");
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
    ahead.bytes_ahead = kLeastBytesAhead + SampleBytes(ahead.sample);
    bytes_ahead_ += ahead.bytes_ahead;
  }
  if (n < first_request_) return absl::NotFoundError("It was read.");
  return requests_[n - first_request_];
}

Epoch::Advance Epoch::AdvanceStream() {
  // Bounds both how long the lock is held, as each may be a claim that is
  // refused, and an iterator's uninterrupted work.
  constexpr int64_t kMaxPassOver = 1024;
  absl::MutexLock lock(&mu_);
  NoteOthers();
  num_refused_ = 0;
  Advance advance;
  while (stream_position_ != stream_length_ &&
         advance.pass_over < kMaxPassOver) {
    const uint32_t index = static_cast<uint32_t>(stream_position_++);
    if (Decide(Occasion::kStream, index) == SampleState::kAsked) {
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
  num_places_ = next_position_;
}

void Epoch::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  changed_.SignalAll();
}

}  // namespace refurbish_tf
