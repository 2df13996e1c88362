#include "refurbish_tf/cc/refurbish/epoch.h"

#include <chrono>
#include <utility>

#include "refurbish_tf/cc/refurbish/non_blocking_requests.h"

namespace refurbish_tf {
namespace {

// How many bytes may be decided ahead for a source that asks ahead. Each sample
// from the store counts its own bytes plus kLeastBytesAhead.
// (`NotedReads::many` limits reads from disk.)
constexpr int64_t kMostBytesAhead = 16 << 20;
constexpr int64_t kLeastBytesAhead = 64;

// Epoch numbers are generations, and stay below the one that means "none".
static_assert(kMaxEpochs <= kNoGeneration);

}  // namespace

Epoch::Epoch(EpochParts parts, std::optional<EpochSchedule> order)
    : parts_(std::move(parts)),
      keys_(parts_.store->Keys(parts_.shard)),
      order_(std::move(order)),
      random_access_(parts_.stage.random_access && order_.has_value()),
      job_(parts_.job->InEpoch({parts_.number, parts_.num_begun,
                                order_.has_value() ? &*order_ : nullptr, keys_,
                                parts_.hands_on})),
      read_ahead_(store().MakeReadAhead()) {
  if (parts_.stage.level != nullptr) {
    reader_.emplace(parts_.stage.level.get(),
                    order_.has_value()
                        ? uint64_t{order_->num_samples()} * parts_.shard.count
                        : 0);
  }
  std::lock_guard<std::mutex> lock(mu_);
  if (!order_.has_value()) return;
  stream_length_ = num_places_ = order_->num_samples();
  states_.Resize(num_places_);
  yielded_.Resize(num_places_);
  walk_.emplace(*order_);
  asked_walk_ = walk_;
  *parts_.alive =
      order_->bytes() + order_->num_samples() / 4 + yielded_.bytes();
}

void Epoch::Resume(const EpochPosition& saved) {
  std::lock_guard<std::mutex> lock(mu_);
  resumed_ = true;
  yielded_.Resume(saved);
  std::vector<bool> has_come(order_.has_value() ? num_places_ : 0);
  for (uint64_t i = 0; i < yielded_.end(); ++i) {
    if (!yielded_.Has(i)) continue;
    states_.Set(i, SampleState::kFound);
    ++num_handed_out_;
    if (order_.has_value()) has_come[i] = true;
  }
  if (!order_.has_value()) return;
  yielded_.Resize(num_places_);
  next_position_ = num_handed_out_;
  walk_.emplace(*order_, std::move(has_come));
  asked_position_ = next_position_;
  asked_walk_ = walk_;
  job_->Resume(*walk_, num_handed_out_);
}

void Epoch::Save(EpochPosition* saved) {
  saved->begun = true;
  saved->number = number();
  saved->num_samples =
      order_.has_value() ? order_->num_samples() : kUnknownSamples;
  saved->scheduled = false;
  saved->num_kept = saved->origin = 0;
  if (scheduled()) saved->SetSchedule(*parts_.schedule, parts_.shard.count);
  yielded_.Save(saved);
  if (!order_.has_value()) return;
  *parts_.alive =
      order_->bytes() + order_->num_samples() / 4 + yielded_.bytes();
}

int64_t Epoch::num_samples() const {
  std::lock_guard<std::mutex> lock(mu_);
  return stream_length_;
}

Epoch::Step Epoch::Next(std::vector<Place>* places) {
  places->clear();
  std::lock_guard<std::mutex> lock(mu_);
  if (!OrderIsWalked() && (decided_.empty() || read_ahead_ != nullptr)) {
    DecideMore();
  }
  const int64_t bytes_ahead = bytes_ahead_;
  // Samples that `Request` took ahead count in `bytes_ahead_` until they are
  // claimed, so their places are claimed one by one.
  const size_t most =
      read_ahead_ == nullptr && bytes_ahead == 0 ? kPlacesAtOnce : 1;
  while (!decided_.empty() && places->size() < most) {
    const Place& place = places->emplace_back(std::move(decided_.front()));
    decided_.pop_front();
    num_to_prepare_ -= place.from == Place::From::kSource;
    bytes_ahead_ -= place.bytes_ahead;
  }
  if (bytes_ahead_ < bytes_ahead) changed_.notify_all();
  if (!places->empty()) return Step::kPlaces;
  // A sample that is being read may turn out to be gone, and is then deferred.
  if (reads_.any()) return Step::kNotNow;
  while (!deferred_.empty()) {
    const uint32_t index = deferred_.back();
    deferred_.pop_back();
    Place found;
    if (Decide(Occasion::kEnd, index, &found) == SampleState::kFound) {
      WantReads();
      places->push_back(std::move(found));
      return Step::kPlaces;
    }
    missing_.push_back(index);
  }
  if (num_missing_claimed_ == missing_.size()) return Step::kEnd;
  Place& place = places->emplace_back();
  place.missing = true;
  place.new_input = num_missing_claimed_ == 0;
  if (random_access_) place.index = missing_[num_missing_claimed_];
  ++num_missing_claimed_;
  return Step::kPlaces;
}

void Epoch::StartReads() {
  if (read_ahead_ != nullptr) read_ahead_->Start();
}

bool Epoch::Read(Place* place) {
  StartReads();
  const uint32_t index = *place->index;
  Generation found;
  const auto began = std::chrono::steady_clock::now();
  bool hit = read_ahead_->Get(place->wanted, &place->sample, &found,
                              &place->from_other_jobs);
  counters().store_wait_nanos +=
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - began)
          .count();
  hit = hit && job_->Use(index, found, place->wanted.position.has_value());
  std::lock_guard<std::mutex> lock(mu_);
  reads_.End(place->wanted);
  changed_.notify_all();
  if (!hit) Decide(Occasion::kGone, index, place);
  return hit;
}

bool Epoch::TakeShared(Place* place) {
  Generation found;
  const Generation claimed = PreparedGeneration(*place->index);
  if (!reader_.has_value() ||
      !reader_->Take(InWhole(*place->index), {claimed}, /*last=*/true,
                     &place->sample, &found) ||
      !job_->Adopt(*place->index, found)) {
    return false;
  }
  place->from_level = found;
  return true;
}

bool Epoch::HandedOut(std::optional<uint32_t> index) {
  ++num_handed_out_;
  if (index.has_value()) yielded_.Note(*index);
  job_->NoteHandedOut(num_handed_out_);
  return num_to_come() == 0;
}

int64_t Epoch::num_to_come() const {
  return (order_.has_value() ? order_->num_samples() : kMaxSamples) -
         int64_t{num_handed_out_};
}

void Epoch::ReadAnew() {
  std::lock_guard<std::mutex> lock(mu_);
  job_->BeginDecisions();
  stream_position_ = 0;
  for (uint32_t i = 0; i < num_places_; ++i) Decide(Occasion::kReadAnew, i);
  requests_ = Requests();
  for (const uint32_t index : missing_) requests_.Add(index);
}

absl::StatusOr<size_t> Epoch::Request(size_t n, uint64_t input) {
  absl::StatusOr<size_t> requested = DecideRequest(n, input);
  StartReads();
  return requested;
}

void Epoch::NoteRead(size_t num_read) {
  std::lock_guard<std::mutex> lock(mu_);
  requests_.NoteRead(num_read);
}

uint64_t Epoch::NewInput() {
  std::lock_guard<std::mutex> lock(mu_);
  changed_.notify_all();
  return ++input_;
}

absl::StatusOr<size_t> Epoch::DecideRequest(size_t n, uint64_t input) {
  std::unique_lock<std::mutex> lock(mu_);
  job_->BeginDecisions();
  while (n >= requests_.end()) {
    if (closed_ || input != input_) {
      return absl::CancelledError("The input is no longer used.");
    }
    if (OrderIsWalked()) {
      return absl::OutOfRangeError("No more samples to prepare.");
    }
    if (bytes_ahead_ > kMostBytesAhead || reads_.many()) {
      if (NonBlockingRequests::OnThisThread()) {
        return absl::UnavailableError("Too much was decided ahead.");
      }
      changed_.wait(lock);
      job_->BeginDecisions();
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
  if (requests_.WasRead(n)) return absl::NotFoundError("It was read.");
  return requests_[n];
}

Advance Epoch::AdvanceStream() {
  // Bounds how long the lock is held, because each element may cost a refused
  // claim, and how much the source skips in one go.
  constexpr int64_t kMaxPassOver = 1024;
  std::lock_guard<std::mutex> lock(mu_);
  job_->BeginDecisions();
  Advance advance;
  while (stream_position_ != stream_length_ &&
         advance.pass_over < kMaxPassOver) {
    const uint32_t index = static_cast<uint32_t>(stream_position_++);
    if (Decide(Occasion::kStream, index) == SampleState::kAsked) {
      if (reader_.has_value()) {
        reader_->Ask(InWhole(index), PreparedGeneration(index));
      }
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
  std::lock_guard<std::mutex> lock(mu_);
  // `AdvanceStream` has also counted the end as a position.
  stream_length_ = stream_position_ - 1;
}

void Epoch::ArrivalsEnded() {
  std::lock_guard<std::mutex> lock(mu_);
  num_places_ = next_position_;
}

void Epoch::Close() {
  std::lock_guard<std::mutex> lock(mu_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace refurbish_tf
