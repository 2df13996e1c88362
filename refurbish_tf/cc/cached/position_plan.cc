#include "refurbish_tf/cc/cached/position_plan.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "refurbish_tf/cc/refurbish/non_blocking_requests.h"

namespace refurbish_tf {
namespace {

// How far `ReadAhead` asks beyond the next position.
constexpr size_t kMostPositionsAhead = 128;

}  // namespace

absl::StatusOr<PositionPlan::Decided> PositionPlan::Ask(size_t position,
                                                        Sample* element) const {
  const absl::StatusOr<size_t> asked = mapper_(position);
  if (absl::IsNotFound(asked.status())) {
    return Decided{Decision::kElsewhere, 0};
  }
  if (!asked.ok()) return asked.status();
  if (*asked >= static_cast<size_t>(source_->num_elements())) {
    return OutOfRange("The end of the source.");
  }
  const auto index = static_cast<uint32_t>(*asked);
  const bool kept = element != nullptr && read_ahead_ == nullptr
                        ? source_->Get(index, element)
                        : source_->Contains(index);
  return Decided{kept ? Decision::kKept : Decision::kOpen, index};
}

void PositionPlan::Decide(size_t end) {
  for (; decided_end_ < end; ++decided_end_) {
    auto& [decision, index] = ahead_[decided_end_ - next_];
    if (decision != Decision::kOpen) continue;
    if (source_->Contains(index)) {
      decision = Decision::kKept;
    } else {
      decision = Decision::kToRead;
      to_read_.Add(index);
    }
  }
}

absl::StatusOr<size_t> PositionPlan::Request(size_t n) {
  while (true) {
    size_t asked;
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (to_read_.WasRead(n)) return NotFound("It was read.");
      while (n >= to_read_.end() && decided_end_ < end_) {
        Decide(decided_end_ + 1);
      }
      if (n < to_read_.end()) return to_read_[n];
      asked = end_;
    }
    const absl::StatusOr<Decided> own = Ask(asked, /*element=*/nullptr);
    if (!own.ok()) return own.status();
    std::lock_guard<std::mutex> lock(mu_);
    if (end_ == asked) Note(*own);
  }
}

absl::Status PositionPlan::GetNext(Next* next) {
  if (read_ahead_ != nullptr) ReadAhead();
  while (true) {
    bool is_noted;
    {
      std::lock_guard<std::mutex> lock(mu_);
      next->position = next_;
      is_noted = !ahead_.empty();
    }
    std::optional<Decided> own;
    if (!is_noted) {
      absl::StatusOr<Decided> asked = Ask(next->position, &next->element);
      if (absl::IsOutOfRange(asked.status())) {
        next->from = From::kEnd;
        return absl::OkStatus();
      }
      if (!asked.ok()) return asked.status();
      own = *asked;
    }
    std::lock_guard<std::mutex> lock(mu_);
    next->loaded = false;
    if (own.has_value() && end_ == next->position) {
      Note(*own);
      next->loaded = read_ahead_ == nullptr && own->decision == Decision::kKept;
    }
    Decide(next_ + 1);
    const auto [decision, index] = ahead_.front();
    ahead_.pop_front();
    ++next_;
    if (decision == Decision::kElsewhere) continue;
    if (decision == Decision::kToRead) to_read_.NoteRead(num_begun_++);
    next->index = index;
    next->from = decision == Decision::kKept ? From::kStore : From::kSource;
    return absl::OkStatus();
  }
}

void PositionPlan::ReadAhead() {
  const size_t room = read_ahead_->Room();
  std::vector<WantedSample> wanted;
  const NonBlockingRequests does_not_wait;
  while (wanted.size() < room) {
    size_t asked;
    {
      std::lock_guard<std::mutex> lock(mu_);
      wanted_end_ = std::max(wanted_end_, next_);
      for (; wanted_end_ < end_ && wanted.size() < room; ++wanted_end_) {
        const auto [decision, index] = ahead_[wanted_end_ - next_];
        if (decision != Decision::kKept) continue;
        wanted.push_back({wanted_end_, index, {}});
      }
      asked = end_;
      if (wanted.size() == room || end_ - next_ >= kMostPositionsAhead) break;
    }
    const absl::StatusOr<Decided> own = Ask(asked, /*element=*/nullptr);
    // `GetNext` returns the error when the position's turn comes.
    if (!own.ok()) break;
    std::lock_guard<std::mutex> lock(mu_);
    if (end_ == asked) Note(*own);
  }
  if (!wanted.empty()) read_ahead_->Want(wanted);
}

bool PositionPlan::Load(Next* next) {
  if (next->loaded) return true;
  if (read_ahead_ == nullptr) return source_->Get(next->index, &next->element);
  read_ahead_->Start();
  Generation found;
  bool foreign;
  return read_ahead_->Get({next->position, next->index, {}}, &next->element,
                          &found, &foreign);
}

bool PositionPlan::PassOver() {
  Next passed;
  Decision decision = Decision::kOpen;
  bool is_wanted = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    passed.position = next_++;
    end_ = std::max(end_, next_);
    decided_end_ = std::max(decided_end_, next_);
    if (!ahead_.empty()) {
      decision = ahead_.front().decision;
      passed.index = ahead_.front().index;
      ahead_.pop_front();
      is_wanted = decision == Decision::kKept && passed.position < wanted_end_;
      if (decision == Decision::kToRead) to_read_.NoteRead(num_begun_++);
    }
  }
  // The element was queued to be read, and only `Load` ends that read.
  if (read_ahead_ != nullptr && is_wanted) Load(&passed);
  return decision == Decision::kToRead;
}

}  // namespace refurbish_tf
