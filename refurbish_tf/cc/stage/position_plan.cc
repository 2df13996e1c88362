#include "refurbish_tf/cc/stage/position_plan.h"

#include <algorithm>

namespace refurbish_tf {

absl::StatusOr<PositionPlan::Decided> PositionPlan::Ask(size_t position,
                                                        Sample* element) const {
  const absl::StatusOr<size_t> asked = mapper_(position);
  if (absl::IsNotFound(asked.status())) {
    return Decided{Decision::kElsewhere, 0};
  }
  if (!asked.ok()) return asked.status();
  if (*asked >= static_cast<size_t>(source_->num_elements())) {
    return absl::OutOfRangeError("The end of the source.");
  }
  const auto index = static_cast<uint32_t>(*asked);
  const bool kept = element != nullptr ? source_->Get(index, element)
                                       : source_->Contains(index);
  return Decided{kept ? Decision::kKept : Decision::kToRead, index};
}

void PositionPlan::Note(Decided decided) {
  if (decided.decision == Decision::kToRead) {
    to_read_.emplace_back(end_, decided.index);
  }
  ++end_;
}

absl::StatusOr<size_t> PositionPlan::Request(size_t position) {
  while (true) {
    size_t asked;
    {
      absl::MutexLock lock(&mu_);
      asked = end_;
      if (position < end_) {
        const auto found =
            std::lower_bound(to_read_.begin(), to_read_.end(),
                             std::pair<size_t, uint32_t>{position, 0});
        if (found == to_read_.end() || found->first != position) {
          return absl::NotFoundError("It is kept.");
        }
        return found->second;
      }
    }
    const absl::StatusOr<Decided> decided = Ask(asked, /*element=*/nullptr);
    if (!decided.ok()) return decided.status();
    absl::MutexLock lock(&mu_);
    if (end_ != asked) continue;
    Note(*decided);
    ahead_.push_back(*decided);
  }
}

absl::Status PositionPlan::GetNext(Next* next) {
  while (true) {
    std::optional<Decided> decided;
    size_t asked;
    {
      absl::MutexLock lock(&mu_);
      asked = next_;
      if (!ahead_.empty()) {
        decided = ahead_.front();
        ahead_.pop_front();
        ++next_;
      }
    }
    if (decided.has_value()) {
      next->index = decided->index;
      if (decided->decision == Decision::kElsewhere) continue;
      next->from = decided->decision == Decision::kToRead ? From::kSource
                   : source_->Get(decided->index, &next->element) ? From::kStore
                                                                  : From::kGone;
      return absl::OkStatus();
    }
    const absl::StatusOr<Decided> own = Ask(asked, &next->element);
    if (absl::IsOutOfRange(own.status())) {
      next->from = From::kEnd;
      return absl::OkStatus();
    }
    if (!own.ok()) return own.status();
    absl::MutexLock lock(&mu_);
    if (end_ != asked) continue;
    Note(*own);
    ++next_;
    if (own->decision == Decision::kElsewhere) continue;
    next->index = own->index;
    next->from =
        own->decision == Decision::kKept ? From::kStore : From::kSource;
    return absl::OkStatus();
  }
}

bool PositionPlan::PassOver() {
  absl::MutexLock lock(&mu_);
  ++next_;
  if (ahead_.empty()) {
    ++end_;
    return false;
  }
  const Decision decision = ahead_.front().decision;
  ahead_.pop_front();
  return decision == Decision::kToRead;
}

size_t PositionPlan::position() const {
  absl::MutexLock lock(&mu_);
  return next_;
}

}  // namespace refurbish_tf
