// Which positions of an order are kept elements, and which are to be read.
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
#include "refurbish_tf/cc/kernels/sources/cached_source.h"
#include "refurbish_tf/cc/plan/requests.h"

namespace refurbish_tf {

// The plan of one iterator of `cached`. Its elements come in the order that an
// index mapper says. The source reads those that are not kept, in the same
// order, perhaps with threads of its own that ask ahead. So what comes from
// where is decided once for each position, by whoever asks first. Kept
// elements on disk are read ahead, as far as the mapper can be asked without
// waiting. What is missing then is decided at its turn: another job may read it
// meanwhile.
//
// Thread-safe. The mapper may wait, so no lock is held while it is asked: two
// threads may ask it for the same position, and the decision noted first
// counts. Lock order: `mu_`, then those of the store.
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
        read_ahead_(source_->store().store().MakeReadAhead()),
        next_(first),
        decided_end_(first),
        wanted_end_(first),
        end_(first) {}

  // What the source's mapper answers: the index of the `n`-th element that is
  // to be read.
  absl::StatusOr<size_t> Request(size_t n) ABSL_LOCKS_EXCLUDED(mu_);

  enum class From {
    kStore,   // It is kept, and to be loaded.
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
  // The next element that is to be handed out. With an error the plan stays
  // where it is. For one thread at a time.
  absl::Status GetNext(Next* next) ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the element of a `kStore`. False if it is gone, while the source
  // passes over it.
  bool Load(Next* next);

  // Passes over the next position, if none belongs to another source. Returns
  // whether the source yields its element all the same, as it was asked for.
  bool PassOver() ABSL_LOCKS_EXCLUDED(mu_);

  // The position of the next element that is to be handed out.
  size_t position() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // kOpen: it was not kept when the mapper was asked.
  enum class Decision : uint8_t { kElsewhere, kKept, kOpen, kToRead };
  struct Decided {
    Decision decision;
    uint32_t index;
  };

  // Asks the mapper for a position. `element`: if not null, gets the element if
  // it is kept in memory.
  absl::StatusOr<Decided> Ask(size_t position, Sample* element) const;
  // Notes what the mapper has said of `end_`.
  void Note(Decided decided) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Decides all positions before `end`, which are noted.
  void Decide(size_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks ahead and queues reads, as many as there is room for.
  void ReadAhead() ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<CachedSource> source_;
  const Mapper mapper_;
  // Null if reading takes no time. A ticket is a position.
  const std::unique_ptr<CacheStore<Sample>::ReadAhead> read_ahead_;

  mutable std::mutex mu_;
  // Positions before `end_` are noted; `ahead_` are those from `next_` on.
  // Those before `decided_end_` are decided, and reads of those before
  // `wanted_end_` are queued.
  size_t next_ ABSL_GUARDED_BY(mu_);
  size_t decided_end_ ABSL_GUARDED_BY(mu_);
  size_t wanted_end_ ABSL_GUARDED_BY(mu_);
  size_t end_ ABSL_GUARDED_BY(mu_);
  std::deque<Decided> ahead_ ABSL_GUARDED_BY(mu_);
  // What is to be read, and how many reads were begun: all before the last of
  // these have ended.
  Requests to_read_ ABSL_GUARDED_BY(mu_);
  size_t num_begun_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf
