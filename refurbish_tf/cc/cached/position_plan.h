// Which positions of an order have kept elements, and which must be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/cached/cached_source.h"
#include "refurbish_tf/cc/plan/requests.h"

namespace refurbish_tf {

// The plan of one iterator of `cached`. Its elements come in the order of an
// index mapper. The source reads those that are not kept, in the same order,
// perhaps with its own threads that ask ahead. So the first caller decides,
// once for each position, where its element comes from. Kept elements on disk
// are read ahead, as far as the mapper can be asked without waiting. Those
// missing at that time are decided at their turn, because another job may read
// them first.
//
// Thread-safe. The mapper may wait, so no lock is held while it is asked: two
// threads may ask it for the same position, and the decision that is noted
// first counts. Lock order: `mu_`, then those of the store.
class PositionPlan {
 public:
  // The index at a position. NotFound if it belongs to another source,
  // OutOfRange at the end. Always the same answer, except for other errors.
  using Mapper = std::function<absl::StatusOr<size_t>(size_t position)>;

  PositionPlan(std::shared_ptr<CachedSource> source, Mapper mapper,
               size_t first)
      : source_(std::move(source)),
        mapper_(std::move(mapper)),
        read_ahead_(source_->store().store().MakeReadAhead()),
        next_(first),
        decided_end_(first),
        wanted_end_(first),
        end_(first) {}

  // What the source's mapper answers: the index of the `n`-th element to read.
  absl::StatusOr<size_t> Request(size_t n) ABSL_LOCKS_EXCLUDED(mu_);

  enum class From {
    kStore,   // It is kept, and must be loaded.
    kSource,  // It is the next one that the source yields.
    kEnd,
  };
  struct Next {
    From from = From::kEnd;
    size_t position = 0;
    uint32_t index = 0;
    bool loaded = false;
    Sample element;
  };
  // The next element to hand out. After an error the plan has not moved. Called
  // by one thread at a time.
  absl::Status GetNext(Next* next) ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the element of a `kStore`. Returns false if it is gone; the source
  // does not yield it.
  bool Load(Next* next);

  // Passes over the next position; none may belong to another source. Returns
  // whether the source still yields its element, because it was requested.
  bool PassOver() ABSL_LOCKS_EXCLUDED(mu_);

  // The position of the next element to hand out.
  size_t position() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // kOpen: it was not kept when the mapper was asked.
  enum class Decision : uint8_t { kElsewhere, kKept, kOpen, kToRead };
  struct Decided {
    Decision decision;
    uint32_t index;
  };

  // Asks the mapper for a position. `element`: if not null, gets the element if
  // that is kept in memory.
  absl::StatusOr<Decided> Ask(size_t position, Sample* element) const;
  // Notes what the mapper has said about `end_`.
  void Note(Decided decided) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Decides all positions before `end`, which must be noted.
  void Decide(size_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks ahead and queues reads while there is room for them.
  void ReadAhead() ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<CachedSource> source_;
  const Mapper mapper_;
  // Null if reading takes no time. A ticket is a position.
  const std::unique_ptr<SampleMap<Sample>::ReadAhead> read_ahead_;

  mutable std::mutex mu_;
  // Positions before `end_` are noted; `ahead_` are those from `next_` on.
  // Those before `decided_end_` are decided, and reads of those before
  // `wanted_end_` are queued.
  size_t next_ ABSL_GUARDED_BY(mu_);
  size_t decided_end_ ABSL_GUARDED_BY(mu_);
  size_t wanted_end_ ABSL_GUARDED_BY(mu_);
  size_t end_ ABSL_GUARDED_BY(mu_);
  std::deque<Decided> ahead_ ABSL_GUARDED_BY(mu_);
  // The elements to read, and how many reads were begun: all but the last of
  // these have ended.
  Requests to_read_ ABSL_GUARDED_BY(mu_);
  size_t num_begun_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf
