#include "refurbish_tf/cc/refurbish/order_watch.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace refurbish_tf {
namespace {

constexpr size_t kMostWatched = 128;

// How many elements must have moved, and how many more for each one that has
// not. If elements are drawn from few values, such as several equal images that
// may be flipped, about as many come at other positions by chance as do not: by
// the sequential probability ratio test (Wald, 1945), one such source in
// 100,000 is refused. If the order changes, nearly all elements move.
constexpr uint32_t kLeastMoved = 20;
constexpr uint32_t kForEachOther = 3;

// Elements drawn from few values are equal within an epoch as often as across
// two. So it is evidence if elements move and none comes twice, however few are
// read or move. An element that comes twice reduces the evidence, and each
// counts only a few times.
constexpr double kEvidence = 12;
constexpr double kTwice = 6;
constexpr uint32_t kMostTimes = 16;

// How many elements must have repeated. A source of few values, such as one
// image with ten labels, may yield them in turn, and end.
constexpr uint32_t kComeAgain = 8;
constexpr uint32_t kFewValues = 16;
constexpr uint32_t kLongForFewValues = 1000;
// A source that ends may yield each of its elements ten times, in up to this
// many elements in total.
constexpr uint32_t kLong = 10'000;
// Without a fixed order, this many, or all, must come more than kOften times.
constexpr size_t kMany = 64;
constexpr uint32_t kOften = 10;

}  // namespace

bool WatchedElements::Add(uint32_t index, uint32_t sum) {
  if (index >= read.size()) read.resize(index + 1);
  read[index] = true;
  ++num_read;
  if (!IsWatched(sum)) return false;
  const auto [found, is_new] = seen.emplace(sum, Seen{index, index});
  found->second.first = std::min(found->second.first, index);
  found->second.last = std::max(found->second.last, index);
  if (!is_new) ++found->second.times;
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
  if (present_.HasRead(index)) return {moved_, std::nullopt};
  Noted noted;
  const bool again = present_.Add(index, sum);
  if (again && !period_told_) noted.period = FindPeriod();
  period_told_ |= noted.period.has_value();
  if (!moved_.has_value()) moved_ = FindMoved(index, sum, again);
  noted.moved = moved_;
  return noted;
}

std::optional<OrderWatch::Moved> OrderWatch::FindMoved(uint32_t index,
                                                       uint32_t sum,
                                                       bool again) {
  const bool is_watched = known_.IsWatched(sum) && present_.IsWatched(sum);
  if (!is_watched || !known_.HasRead(index)) return std::nullopt;
  const auto found = known_.seen.find(sum);
  const bool is_new = found == known_.seen.end();
  if (!is_new && found->second.times > 1) return std::nullopt;
  if (again) evidence_ -= kTwice;
  if (is_new) ++num_others_;
  if (is_new || again) return std::nullopt;
  WatchedElements::Seen& seen = found->second;
  const bool has_moved = seen.first != index;
  if (seen.later == 0) ++(has_moved ? num_moved_ : num_others_);
  if (has_moved && seen.later < kMostTimes) {
    const double others = present_.num_read - 1;
    evidence_ += others / (others + known_.num_read);
  }
  ++seen.later;
  // Otherwise a new element may come from a position that was not read then.
  const bool most_known = known_.num_read >= known_.read.size() / 10 * 9;
  const bool is_certain =
      evidence_ >= kEvidence ||
      (most_known && num_moved_ >= kLeastMoved + kForEachOther * num_others_);
  if (!has_moved || !is_certain) return std::nullopt;
  return Moved{seen.first, index};
}

std::optional<uint32_t> OrderWatch::FindPeriod() {
  const size_t num_seen = present_.seen.size();
  uint32_t period = 0;
  size_t often = 0;
  for (const auto& [sum, seen] : present_.seen) {
    const uint32_t span = seen.last - seen.first;
    period = std::gcd(period, span);
    // Equal elements that follow each other do not count.
    often += seen.times > kOften && span > present_.num_read / 2;
  }
  std::optional<uint32_t> in_no_order;
  const bool is_long = num_seen >= kFewValues || present_.num_read >= kLong;
  if (is_long && often >= std::min(num_seen, kMany)) in_no_order = 0;
  if (period < 2) return in_no_order;
  // True duplicates have no period, but their distances have a common divisor.
  if (period < num_seen * present_.every / 2) return in_no_order;
  const uint32_t least =
      std::max(3 * period, period < kFewValues ? kLongForFewValues
                                               : std::min(10 * period, kLong));
  const auto comes_again = [least](const auto& each) {
    return each.second.last - each.second.first >= least;
  };
  const auto number =
      std::count_if(present_.seen.begin(), present_.seen.end(), comes_again);
  if (number < std::min(period, kComeAgain)) return in_no_order;
  return period;
}

}  // namespace refurbish_tf
