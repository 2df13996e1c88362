#include "refurbish_tf/cc/stage/order_watch.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace refurbish_tf {
namespace {

constexpr size_t kMostWatched = 128;

// How many must have moved, and how many more for each one that has not. Where
// an element is drawn from few values, such as one of several equal images that
// may be flipped, about as many come at other positions by chance as do not: by
// the sequential probability ratio test (Wald, 1945) one such source in 100,000
// is refused. Where the order changes, nearly all move.
constexpr uint32_t kLeastMoved = 20;
constexpr uint32_t kForEachOther = 3;

// How many elements must have come again. A source of a few values, such as one
// image with ten labels, may have them in turn, and ends.
constexpr uint32_t kComeAgain = 8;
constexpr uint32_t kFewValues = 16;
constexpr uint32_t kLongForFewValues = 1000;
// A source of so many elements may have had each of them for ten times, and
// end.
constexpr uint32_t kLong = 10'000;

}  // namespace

bool WatchedElements::Add(uint32_t index, uint32_t sum) {
  if (HasRead(index)) return false;
  if (index >= read.size()) read.resize(index + 1);
  read[index] = true;
  ++num_read;
  if (!IsWatched(sum)) return false;
  const auto [found, is_new] = seen.emplace(sum, Seen{index, index});
  found->second.first = std::min(found->second.first, index);
  found->second.last = std::max(found->second.last, index);
  while (seen.size() > kMostWatched) {
    every *= 2;
    for (auto each = seen.begin(); each != seen.end();) {
      each = IsWatched(each->first) ? std::next(each) : seen.erase(each);
    }
  }
  return !is_new;
}

OrderWatch::Noted OrderWatch::Note(uint64_t epoch, uint32_t index,
                                   uint32_t sum) {
  std::lock_guard<std::mutex> lock(mu_);
  if (epoch_ != epoch) {
    if (present_.num_read > known_.num_read) {
      known_ = std::move(present_);
      num_moved_ = num_others_ = 0;
    }
    present_ = WatchedElements();
    epoch_ = epoch;
  }
  Noted noted;
  if (present_.Add(index, sum) && !period_told_) noted.period = FindPeriod();
  if (!moved_.has_value()) moved_ = FindMoved(index, sum);
  noted.moved = moved_;
  return noted;
}

std::optional<OrderWatch::Moved> OrderWatch::FindMoved(uint32_t index,
                                                       uint32_t sum) {
  if (!known_.IsWatched(sum) || !known_.HasRead(index)) return std::nullopt;
  // Else what is new may have come at a position that was not read then.
  if (known_.num_read < known_.read.size() / 10 * 9) return std::nullopt;
  const auto found = known_.seen.find(sum);
  if (found == known_.seen.end()) {
    ++num_others_;
    return std::nullopt;
  }
  WatchedElements::Seen& seen = found->second;
  if (seen.first != seen.last || std::exchange(seen.counted, true)) {
    return std::nullopt;
  }
  ++(seen.first == index ? num_others_ : num_moved_);
  if (seen.first == index ||
      num_moved_ < kLeastMoved + kForEachOther * num_others_) {
    return std::nullopt;
  }
  return Moved{seen.first, index};
}

std::optional<uint32_t> OrderWatch::FindPeriod() {
  uint32_t period = 0;
  for (const auto& [sum, seen] : present_.seen) {
    period = std::gcd(period, seen.last - seen.first);
  }
  if (period < 2) return std::nullopt;
  // As true duplicates have no period, but a common divisor.
  if (period < present_.seen.size() * present_.every / 2) return std::nullopt;
  const uint32_t least =
      std::max(3 * period, period < kFewValues ? kLongForFewValues
                                               : std::min(10 * period, kLong));
  const auto comes_again = [least](const auto& each) {
    return each.second.last - each.second.first >= least;
  };
  const auto number =
      std::count_if(present_.seen.begin(), present_.seen.end(), comes_again);
  if (number < std::min(period, kComeAgain)) return std::nullopt;
  period_told_ = true;
  return period;
}

}  // namespace refurbish_tf
