#include "refurbish_tf/cc/kernels/sources/cached_reads.h"

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/kernels/source_checks/source_probe.h"

namespace refurbish_tf {

OrderedWorkers::Claimed CachedReads::Claim(
    std::unique_ptr<OrderedWorkers::Piece>* piece) {
  if (ended_) return OrderedWorkers::Claimed::kEnd;
  *piece = std::make_unique<CachedPiece>();
  return OrderedWorkers::Claimed::kFetch;
}

OrderedWorkers::Outcome CachedReads::Fetch(OrderedWorkers::Piece* piece) {
  auto& element = static_cast<CachedPiece&>(*piece);
  if (!ended_) element.status = plan_->GetNext(&element.next);
  element.position = plan_->position();
  if (!element.status.ok()) return OrderedWorkers::Outcome::kDone;
  if (element.next.from == PositionPlan::From::kEnd) ended_ = true;
  return ended_                ? OrderedWorkers::Outcome::kDropped
         : element.next.loaded ? OrderedWorkers::Outcome::kDone
                               : OrderedWorkers::Outcome::kRun;
}

OrderedWorkers::Outcome CachedReads::Run(OrderedWorkers::Piece* piece) {
  auto& element = static_cast<CachedPiece&>(*piece);
  element.status = Get(&element.next);
  return OrderedWorkers::Outcome::kDone;
}

int64_t CachedReads::Bytes(const OrderedWorkers::Piece& piece) const {
  return SampleBytes(static_cast<const CachedPiece&>(piece).next.element);
}

absl::Status CachedReads::Get(PositionPlan::Next* next) {
  if (next->from == PositionPlan::From::kStore && plan_->Load(next)) {
    return absl::OkStatus();
  }
  std::unique_ptr<LoneInput> input;
  {
    absl::MutexLock lock(&mu_);
    if (!idle_.empty()) {
      input = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (input == nullptr) {
    input =
        std::make_unique<LoneInput>(&source_, absl::StrCat(prefix_, "Alone"));
  }
  bool end = false;
  absl::Status status = input->Read(&ctx_, next->index, &next->element, &end);
  {
    absl::MutexLock lock(&mu_);
    idle_.push_back(std::move(input));
  }
  TF_RETURN_IF_ERROR(status);
  return end ? OtherLength("fewer than") : Keep(next);
}

absl::Status CachedReads::Keep(PositionPlan::Next* next) {
  uint32_t sum = 0;
  SourceChecks& checks = elements_->source_checks();
  if (elements_->store().disk() != nullptr && checks.checks()) {
    sum = ElementSum(next->element);
    TF_RETURN_IF_ERROR(
        CheckElement(&checks, kCached, &source_, &ctx_, next->index, sum));
  }
  elements_->Put(next->index, sum, &next->element);
  return absl::OkStatus();
}

absl::Status CachedReads::OtherLength(const char* comparison) const {
  return absl::DataLossError(absl::StrCat(
      "The source of cached yields ", comparison,
      " the elements that it was asked for, of the ", elements_->num_elements(),
      " that it should have. Use a source that is the same in every epoch."));
}

}  // namespace refurbish_tf
