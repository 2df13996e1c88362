// Which positions of an order have kept elements, and which must be read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/cached/cached_source.h"
#include "refurbish_tf/cc/plan/requests.h"
#include "refurbish_tf/cc/refurbish/non_blocking_requests.h"

namespace refurbish_tf {

// The plan of one iterator of `cached`. An index mapper says which element
// belongs to each position. The source reads those that are not kept, in the
// same order, perhaps with its own threads, which call `Request` ahead of
// `GetNext`. So the first of the two calls for a position decides, for both,
// where its element comes from. Kept elements on disk are read ahead, as far as
// the mapper can be asked without waiting. If an element is missing at that
// time, whether to read it from the source is decided only at its turn, because
// another job may store it first.
//
// Thread-safe. The mapper may wait, so no lock is held while it is asked: two
// threads may ask it for the same position, and the decision that is noted
// first counts. Lock order: `mu_`, then the locks of the store.
class PositionPlan {
 public:
  // The index at a position. NotFound if the position belongs to another
  // source, OutOfRange at the end. Except for other errors, the answer for a
  // position never changes.
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

  // For the source's own index mapper: the index of the `n`-th element, from 0,
  // that the source must read. NotFound if it was already read.
  absl::StatusOr<size_t> Request(size_t n) ABSL_LOCKS_EXCLUDED(mu_) {
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

  enum class From {
    kStore,   // It is kept; call `Load`.
    kSource,  // The source yields it next.
    kEnd,
  };
  struct Next {
    From from = From::kEnd;
    size_t position = 0;
    uint32_t index = 0;
    bool loaded = false;
    Sample element;
  };
  // The next element to hand out. After an error the plan has not moved. For
  // one thread at a time.
  absl::Status GetNext(Next* next) ABSL_LOCKS_EXCLUDED(mu_) {
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
        next->loaded =
            read_ahead_ == nullptr && own->decision == Decision::kKept;
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
  // Gets the element of a `kStore`. Returns false if it has left the store. The
  // caller must then read it, because the source does not yield it.
  bool Load(Next* next) {
    if (next->loaded) return true;
    if (read_ahead_ == nullptr)
      return source_->Get(next->index, &next->element);
    read_ahead_->Start();
    Generation found;
    bool foreign;
    return read_ahead_->Get({next->position, next->index, {}}, &next->element,
                            &found, &foreign);
  }

  // Skips the next position; all positions must belong to this source. Returns
  // whether the source will still yield its element, because it was requested.
  bool PassOver() ABSL_LOCKS_EXCLUDED(mu_) {
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
        is_wanted =
            decision == Decision::kKept && passed.position < wanted_end_;
        if (decision == Decision::kToRead) to_read_.NoteRead(num_begun_++);
      }
    }
    // The element was queued to be read, and only `Load` ends that read.
    if (read_ahead_ != nullptr && is_wanted) Load(&passed);
    return decision == Decision::kToRead;
  }

  size_t position() const ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    return next_;
  }

 private:
  // How far `ReadAhead` asks beyond the next position.
  static constexpr size_t kMostPositionsAhead = 128;

  // kElsewhere: the position belongs to another source. kOpen: its element was
  // not kept when the mapper was asked.
  enum class Decision : uint8_t { kElsewhere, kKept, kOpen, kToRead };
  struct Decided {
    Decision decision;
    uint32_t index;
  };

  // Asks the mapper for a position. If `element` is not null, and the element
  // is kept in memory, also gets the element.
  absl::StatusOr<Decided> Ask(size_t position, Sample* element) const {
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
  // Notes what the mapper has said about position `end_`.
  void Note(Decided decided) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ahead_.push_back(decided);
    ++end_;
  }
  // Decides where the elements before position `end`, all noted, come from.
  void Decide(size_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
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
  // Asks the mapper ahead, and queues reads while there is room for them.
  void ReadAhead() ABSL_LOCKS_EXCLUDED(mu_) {
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

  const std::shared_ptr<CachedSource> source_;
  const Mapper mapper_;
  // Null if the store is in memory. The ticket of a read is its position.
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
  // The elements that the source must read, and how many of these reads have
  // begun. Every read that has begun, except the last, has ended.
  Requests to_read_ ABSL_GUARDED_BY(mu_);
  size_t num_begun_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf
