// What workers learn from the pieces of work that they have done: how many to
// do at once, and how far to run ahead of the consumer. Not thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace refurbish_tf {

// How long pieces take.
class PieceTimes {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // A short piece may also take a few milliseconds, while another process has
  // the CPU core.
  static constexpr std::chrono::milliseconds kLongPiece{5};
  // The most that `at_once` returns. More would save little.
  static constexpr size_t kMostAtOnce = 32;

  // How many short pieces a thread does with the lock taken once: as many as
  // take `kGroup` together.
  size_t at_once() const { return at_once_; }
  // Whether a fetch takes less than putting a thread to sleep and waking it.
  bool short_fetches() const { return short_fetches_; }
  // Whether pieces are so long that waking a thread for each result costs
  // little. False until each of `num_threads` could have made a few runs,
  // because a function's first calls take longer.
  bool are_long(int num_threads) const {
    return num_runs_ >= kLeastRuns * num_threads &&
           total_ / num_runs_ >= kLongPiece;
  }

  // Called when a thread has fetched, or run, this many pieces.
  void Fetched(int num_pieces, Duration taken) {
    short_fetches_ = taken < kShortFetch * num_pieces;
    total_ += taken;
  }
  void Ran(int num_pieces, Duration taken) {
    ++num_runs_;
    total_ += taken;
    mean_ += (taken / num_pieces - mean_) / kMeanOfRuns;
    at_once_ = std::clamp<int64_t>(kGroup / std::max(mean_, Duration(1)), 1,
                                   kMostAtOnce);
  }

 private:
  static constexpr std::chrono::microseconds kShortFetch{5};
  static constexpr std::chrono::microseconds kGroup{50};
  static constexpr int kMeanOfRuns = 8;
  static constexpr int64_t kLeastRuns = 4;

  bool short_fetches_ = true;
  int64_t num_runs_ = 0;
  Duration total_{0};
  // An average of the time to run a piece, in which the last runs count most.
  Duration mean_ = kGroup;
  size_t at_once_ = 1;
};

// Bytes for results that wait for a slow one before them. All iterators of a
// process share them, beyond their own limits. Thread-safe.
class SpareRoom {
 public:
  explicit SpareRoom(int64_t bytes) : left_(bytes) {}

  // False if fewer bytes are left.
  bool Take(int64_t bytes) {
    if (left_.fetch_sub(bytes) >= bytes) return true;
    Return(bytes);
    return false;
  }
  void Return(int64_t bytes) { left_ += bytes; }

 private:
  std::atomic<int64_t> left_;
};

// How many pieces there is room for, by the size of their results.
class RoomAhead {
 public:
  // Limits on what is ready or under way.
  struct Limits {
    // How many pieces run at once, including the consumer's. There is always
    // room for them. 0: the consumer does everything.
    int max_calls = 1;
    size_t max_pieces = 16;
    int64_t max_bytes = 1 << 24;
    // If this is above `max_bytes`, the limit on bytes rises to four of the
    // largest results per call, but not above this. With less room, workers
    // would stop whenever the consumer waits for an unusually long piece.
    int64_t max_large_bytes = 0;
    // If this is above `max_pieces`, it replaces that limit while the pieces
    // hold less than 1 MiB. With more room, threads sleep less often.
    size_t max_small_pieces = 0;
    // For `Extend`; may be null.
    SpareRoom* spare = nullptr;
    // The memory that a piece takes in addition to its result.
    int64_t bytes_beside = 1 << 10;
  };

  explicit RoomAhead(const Limits& limits) : limits_(limits) {}
  ~RoomAhead() {
    if (more_bytes_ > 0) limits_.spare->Return(more_bytes_);
  }
  RoomAhead(const RoomAhead&) = delete;

  size_t num_ready() const { return num_ready_; }
  // Called when a piece of `bytes` is ready, and when the consumer has got it.
  // `Add` returns whether this is the first piece ever: its size may show that
  // there is more room.
  bool Add(int64_t bytes) {
    ++num_ready_;
    bytes_ += bytes;
    largest_ = std::max(largest_, bytes);
    return !std::exchange(size_known_, true);
  }
  void Remove(int64_t bytes) {
    --num_ready_;
    bytes_ -= bytes;
  }

  // Whether another piece has room, with all limits divided by `part`, if
  // `num_pieces` are ready or under way. `num_to_fetch` of these await a fetch.
  bool Has(size_t num_pieces, size_t num_to_fetch, int part) const {
    const auto calls = static_cast<size_t>(limits_.max_calls);
    if (num_pieces < std::max<size_t>(1, calls / part)) return true;
    // No size is known yet. Claim no more than can run at once, because every
    // claimed piece will take memory, however much it needs.
    if (!size_known_ && num_to_fetch + 1 >= calls) return false;
    const int64_t bytes = BytesOf(num_pieces + 1);
    return num_pieces < std::max<size_t>(1, MostPieces(bytes) / part) &&
           bytes <= MostBytes() / part;
  }

  // Makes room for one more piece than `num_pieces`, until this object is
  // destroyed. False if nothing is ready, or too little spare room is left.
  bool Extend(size_t num_pieces) {
    if (limits_.spare == nullptr || num_ready_ == 0) return false;
    const int64_t bytes = BytesOf(num_pieces + 1);
    const size_t most = MostPieces(bytes);
    const size_t pieces = num_pieces + 1 - std::min(num_pieces + 1, most);
    const int64_t mean = bytes_ / num_ready_ + limits_.bytes_beside;
    const int64_t taken = std::max<int64_t>(bytes - MostBytes(), pieces * mean);
    if (taken > 0 && !limits_.spare->Take(taken)) return false;
    more_pieces_ += pieces;
    more_bytes_ += std::max<int64_t>(taken, 0);
    return true;
  }

 private:
  static constexpr int64_t kLargePerCall = 4;
  static constexpr int64_t kSmallBytes = 1 << 20;

  // The bytes of this many pieces. A piece under way counts as the largest.
  int64_t BytesOf(size_t num_pieces) const {
    return bytes_ + static_cast<int64_t>(num_pieces - num_ready_) * largest_;
  }
  size_t MostPieces(int64_t bytes) const {
    const size_t small = bytes < kSmallBytes ? limits_.max_small_pieces : 0;
    return std::max(limits_.max_pieces, small) + more_pieces_;
  }
  int64_t MostBytes() const {
    const int64_t large = kLargePerCall * limits_.max_calls * largest_;
    return std::max(limits_.max_bytes,
                    std::min(limits_.max_large_bytes, large)) +
           more_bytes_;
  }

  const Limits limits_;
  size_t num_ready_ = 0;
  int64_t bytes_ = 0;
  // The most bytes that a piece ever held, and whether any was ever ready.
  int64_t largest_ = 0;
  bool size_known_ = false;
  // What `Extend` has added to the limits.
  size_t more_pieces_ = 0;
  int64_t more_bytes_ = 0;
};

}  // namespace refurbish_tf
