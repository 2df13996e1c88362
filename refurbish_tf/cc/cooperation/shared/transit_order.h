// Decides what to use at a place of an epoch's order whose sample is not kept,
// while other jobs run on the same store.
//
// The rule: the job uses the oldest sample in transit that the epoch still
// needs in a generation that the job has not used. If there is none, it uses
// the next sample of its own order that no other job is preparing. Nobody
// waits, and no job knows what another one needs. OneAccess (Kakaraparthi et
// al., HotCloud 2019) serves jobs that run in step. Here each job has its own
// order and pace, yet together they prepare only about as many samples as one
// job would. A job that is alone follows its own order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "refurbish_tf/cc/plan/schedule.h"
#include "refurbish_tf/cc/store/disk/transit/transit_ring.h"

namespace refurbish_tf {

// How many claims may be refused while one place is decided. Each takes a
// system call, with the locks of the epoch and the workers held. After that, a
// sample is prepared although another job prepares it. Sixteen jobs with 20
// samples under way each had 4 claims refused on average and 300 at most.
inline constexpr uint32_t kMostRefused = 64;

// For one epoch. Not thread-safe.
class TransitOrder {
 public:
  // Uses nothing before position `from` of the ring. The job's own order begins
  // at place `first` of `num_places`.
  TransitOrder(const TransitRing* ring, uint64_t from, uint32_t first,
               uint32_t num_places)
      : ring_(*ring),
        from_(from),
        cursor_(from),
        place_(first),
        num_places_(num_places) {}

  // The position of the oldest entry that is `usable(index, tag)`. An entry is
  // checked only once in this epoch, unless it was still being written.
  template <class Usable>
  std::optional<uint64_t> Oldest(const Usable& usable) {
    const uint64_t head = ring_.head();
    // If the file was cut by another program, the head starts over.
    if (cursor_ > head) cursor_ = std::max(head, from_);
    // The oldest eighth may be replaced before it is read.
    const uint64_t readable = ring_.num_units() - ring_.num_units() / 8;
    const uint64_t first = head > readable ? head - readable : 0;
    for (size_t n = pending_.size(); n > 0; --n) {
      const uint64_t position = pending_.front();
      pending_.pop_front();
      if (position < first) continue;
      const TransitRing::Entry entry = ring_.At(position);
      if (IsUsable(entry, position, usable)) return position;
    }
    cursor_ = std::max(cursor_, first);
    while (cursor_ < head) {
      const uint64_t position = cursor_;
      const TransitRing::Entry entry = ring_.At(position);
      cursor_ = entry.next;
      if (IsUsable(entry, position, usable)) return position;
    }
    return std::nullopt;
  }

  // The next sample of the job's own order, `at(place)`, that is
  // `needed(index)` and that `claim(index, also_claimed)` claims. At the end of
  // the order, and after kMostRefused refusals, it may be a sample that other
  // jobs have claimed. Empty only if no sample is needed.
  template <class At, class Needed, class Claim>
  std::optional<uint32_t> NextOwn(const At& at, const Needed& needed,
                                  const Claim& claim) {
    uint32_t refused = 0;
    const auto claims = [&](uint32_t index, bool also_claimed) {
      if (!needed(index)) return false;
      if (claim(index, also_claimed || refused >= kMostRefused)) return true;
      ++refused;
      passed_over_.push_back(index);
      return false;
    };
    const auto again = [&](size_t most, bool also_claimed) {
      std::optional<uint32_t> found;
      for (size_t n = std::min(most, passed_over_.size()); n > 0 && !found;
           --n) {
        const uint32_t index = passed_over_.front();
        passed_over_.pop_front();
        if (claims(index, also_claimed)) found = index;
      }
      return found;
    };
    if (const auto found = again(kMostAgain, false)) return found;
    while (place_ < num_places_) {
      const uint32_t index = at(place_++).index;
      if (claims(index, false)) return index;
    }
    const auto free = again(passed_over_.size(), false);
    return free ? free : again(passed_over_.size(), true);
  }

  // A sample of the ring was replaced before it was read: it is needed again.
  void GiveBack(uint32_t index) { passed_over_.push_front(index); }

 private:
  // How many samples that other jobs had claimed are tried again at each place:
  // checking whether a job is alive takes a system call.
  static constexpr size_t kMostAgain = 2;

  template <class Usable>
  bool IsUsable(const TransitRing::Entry& entry, uint64_t position,
                const Usable& usable) {
    // Checked again later, when it may be complete.
    if (entry.state == TransitRing::Entry::State::kPending) {
      pending_.push_back(position);
    }
    return entry.state == TransitRing::Entry::State::kThere &&
           usable(entry.index, entry.tag);
  }

  const TransitRing& ring_;
  const uint64_t from_;
  // The next position of the ring to check.
  uint64_t cursor_;
  // Earlier positions whose records were still being written.
  std::deque<uint64_t> pending_;
  // The next place of the order to check.
  uint32_t place_;
  const uint32_t num_places_;
  // Samples of earlier places that others claimed, or that are needed again.
  std::deque<uint32_t> passed_over_;
};

}  // namespace refurbish_tf
