// How an iterator of `cached` gets the elements that its plan wants.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/sources/lone_input.h"
#include "refurbish_tf/cc/stage/cached_source.h"
#include "refurbish_tf/cc/stage/position_plan.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"

namespace refurbish_tf {

// For messages.
inline constexpr char kCached[] = "cached";

struct CachedPiece : OrderedWorkers::Piece {
  PositionPlan::Next next;
  size_t position = 0;  // Of the plan, after this.
  absl::Status status;
};

// The work of several readers: to decide what is next, and to load it or to
// read it, each with an input of its own. One reader uses its methods as well.
class CachedReads : public OrderedWorkers::Work {
 public:
  // `ctx` is that of the inputs, without an index mapper. `source` must outlive
  // this object.
  CachedReads(const DatasetBase* source, std::string prefix,
              std::shared_ptr<CachedSource> elements,
              std::shared_ptr<PositionPlan> plan, IteratorContext ctx)
      : source_(*source),
        prefix_(std::move(prefix)),
        elements_(std::move(elements)),
        plan_(std::move(plan)),
        ctx_(std::move(ctx)) {}

  OrderedWorkers::Claimed Claim(
      std::unique_ptr<OrderedWorkers::Piece>* piece) override;
  OrderedWorkers::Outcome Fetch(OrderedWorkers::Piece* piece) override;
  OrderedWorkers::Outcome Run(OrderedWorkers::Piece* piece) override;
  int64_t Bytes(const OrderedWorkers::Piece& piece) const override;

  // Loads an element, or reads it alone and keeps it: what is not kept; and
  // what the source was told to pass over and is gone, as its record on disk is
  // damaged or somebody has removed it. Thread-safe.
  absl::Status Get(PositionPlan::Next* next) ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps an element that was read. Thread-safe.
  absl::Status Keep(PositionPlan::Next* next);
  // The error of a source that yields fewer, or more, than it should.
  absl::Status OtherLength(const char* comparison) const;

 private:
  const DatasetBase& source_;
  const std::string prefix_;
  const std::shared_ptr<CachedSource> elements_;
  const std::shared_ptr<PositionPlan> plan_;
  IteratorContext ctx_;
  std::atomic<bool> ended_{false};
  absl::Mutex mu_;
  std::vector<std::unique_ptr<LoneInput>> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
