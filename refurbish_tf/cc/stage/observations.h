// What a stage sees of how it is used, and tells Python if it looks like a mistake.
#ifndef REFURBISH_TF_CC_STAGE_OBSERVATIONS_H_
#define REFURBISH_TF_CC_STAGE_OBSERVATIONS_H_

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/stage/notices.h"

namespace refurbish_tf {

// Which part of an epoch is asked of an iterator, by what is behind the stage. A
// middle that is as long as what is left is a rest.
enum class Part { kAll, kFirst, kMiddle, kRest };

// What is behind a stage, as one of its iterators sees it.
struct Use {
  Part part = Part::kAll;
  bool cached = false;
};

// Of one stage, by all its iterators.
//
// Lock order: any lock but that of `Notices`, then `mu_`.
class Observations {
 public:
  explicit Observations(std::string stage) : stage_(std::move(stage)) {}

  // Whether nobody has seen yet if the labels of the source come sorted.
  bool WantLabelOrder() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return !label_order_seen_;
  }

  // Of a whole epoch, most of which was fresh.
  void SetLabelOrder(bool sorted) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (sorted && !label_order_seen_) Notices::Global().Post("sorted", stage_);
    label_order_seen_ = true;
  }

  // An iterator is made for it. Where it yields a part, Python is to look for what is
  // behind the stage, and to see whether two parts together are all. That takes it a
  // while, so it is asked when a part is new, and then a few times only.
  void NoteUse(const Use& use) ABSL_LOCKS_EXCLUDED(mu_) {
    if (use.part == Part::kAll && !use.cached) return;
    absl::MutexLock lock(&mu_);
    if (use.part == Part::kAll) {
      // A few elements may well be kept, to be looked at.
      if (!has_cached_) Notices::Global().Post("cached", stage_);
      has_cached_ = true;
      return;
    }
    bool& seen = use.part == Part::kFirst    ? has_first_
                 : use.part == Part::kMiddle ? has_middle_
                                             : has_rest_;
    const bool both = has_first_ && (has_middle_ || has_rest_);
    if (std::exchange(seen, true) && (!both || num_asked_ == kMostAsked)) return;
    if (both) ++num_asked_;
    Notices::Global().Post(has_rest_ ? "split" : "split_if_all", stage_);
  }

 private:
  static constexpr int kMostAsked = 4;

  const std::string stage_;
  mutable absl::Mutex mu_;
  bool label_order_seen_ ABSL_GUARDED_BY(mu_) = false;
  bool has_cached_ ABSL_GUARDED_BY(mu_) = false;
  bool has_first_ ABSL_GUARDED_BY(mu_) = false;
  bool has_middle_ ABSL_GUARDED_BY(mu_) = false;
  bool has_rest_ ABSL_GUARDED_BY(mu_) = false;
  int num_asked_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STAGE_OBSERVATIONS_H_
