// Whether the labels of a stream come sorted.
#ifndef REFURBISH_TF_CC_SCHEDULE_LABEL_ORDER_H_
#define REFURBISH_TF_CC_SCHEDULE_LABEL_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace refurbish_tf {

// Sees labels one by one. For one thread at a time.
class LabelOrder {
 public:
  void Add(int64_t label) {
    if (count_ == 0 || label != last_) ++num_runs_;
    last_ = label;
    ++count_;
    // So many different numbers are no classes, and are not to fill the memory.
    if (counts_.size() <= kMostClasses) ++counts_[label];
  }

  int64_t count() const { return count_; }

  // Whether equal labels follow each other in at most an eighth of the runs that
  // a random order would have. Few labels are never called sorted, as they have
  // few runs in any order; nor is one class, nor numbers that are all different.
  bool IsSorted() const {
    if (counts_.size() < 2 || counts_.size() > kMostClasses) return false;
    double neighbours = 0;  // That are equal in a random order, on average.
    for (const auto& [label, count] : counts_) {
      neighbours += static_cast<double>(count) * (count - 1) / count_;
    }
    return kRunsInOne * num_runs_ <= count_ - neighbours;
  }

 private:
  static constexpr size_t kMostClasses = 1 << 16;
  static constexpr double kRunsInOne = 8;

  int64_t last_ = 0;
  int64_t count_ = 0;
  int64_t num_runs_ = 0;
  std::unordered_map<int64_t, int64_t> counts_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_SCHEDULE_LABEL_ORDER_H_
