// Which positions of an order are kept elements, and which are to be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/stage/cached_source.h"

namespace refurbish_tf {

// The plan of one iterator of `cached`. Its elements come in the order that an
// index mapper says. The source reads those that are not kept, in the same
// order, perhaps with threads of its own that ask ahead: to them, positions of
// kept elements belong to another source, as in `concatenate`. So what comes
// from where is decided once for each position, by whoever asks first.
//
// Thread-safe. The mapper may wait, so no lock is held while it is asked: two
// threads may ask it for the same position, and the decision noted first
// counts.
class PositionPlan {
 public:
  // The index at a position. NotFound if it belongs to another source,
  // OutOfRange at the end. Always the same answer, but for other errors.
  using Mapper = std::function<absl::StatusOr<size_t>(size_t position)>;

  // Begins at the position `first`.
  PositionPlan(std::shared_ptr<CachedSource> source, Mapper mapper,
               size_t first)
      : source_(std::move(source)),
        mapper_(std::move(mapper)),
        next_(first),
        end_(first) {}

  // What the source's mapper answers: the index, if that is to be read.
  absl::StatusOr<size_t> Request(size_t position) ABSL_LOCKS_EXCLUDED(mu_);

  enum class From {
    kStore,   // It was kept, and is in `element`.
    kSource,  // It is the next one that the source yields.
    kGone,    // It was kept, so the source passes over it, and is gone.
    kEnd,
  };
  struct Next {
    From from = From::kEnd;
    uint32_t index = 0;
    Sample element;
  };
  // The next element that is to be handed out. With an error the plan stays
  // where it is. For one thread at a time.
  absl::Status GetNext(Next* next) ABSL_LOCKS_EXCLUDED(mu_);

  // Passes over the next position, if none belongs to another source. Returns
  // whether the source yields its element all the same, as it was asked for.
  bool PassOver() ABSL_LOCKS_EXCLUDED(mu_);

  // The position of the next element that is to be handed out.
  size_t position() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class Decision : uint8_t { kElsewhere, kKept, kToRead };
  struct Decided {
    Decision decision;
    uint32_t index;
  };

  // Asks the mapper for a position. `element`: if not null, gets the element if
  // it is kept.
  absl::StatusOr<Decided> Ask(size_t position, Sample* element) const;
  // Notes what was decided for `end_`.
  void Note(Decided decided) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<CachedSource> source_;
  const Mapper mapper_;

  mutable absl::Mutex mu_;
  // Positions before `end_` are decided; `ahead_` are those from `next_` on.
  size_t next_ ABSL_GUARDED_BY(mu_);
  size_t end_ ABSL_GUARDED_BY(mu_);
  std::deque<Decided> ahead_ ABSL_GUARDED_BY(mu_);
  // Positions and indices of all that are to be read, in order. Kept to the
  // end, as `concatenate` counts anew for each of its sources.
  std::vector<std::pair<size_t, uint32_t>> to_read_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
