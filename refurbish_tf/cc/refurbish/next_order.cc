#include "refurbish_tf/cc/refurbish/next_order.h"

#include <utility>

#include "tensorflow/core/platform/env.h"

namespace refurbish_tf {
namespace {

// Fewer samples are arranged in a millisecond or two.
constexpr uint32_t kLeastSamples = 1 << 16;

EpochSchedule MakeOrder(const NextOrder::Of& of) {
  return of.schedule != nullptr
             ? of.schedule->Epoch(of.epoch)
             : EpochSchedule::AllFresh(of.options, of.num_samples, of.epoch);
}

bool IsSameOrder(const NextOrder::Of& a, const NextOrder::Of& b) {
  return a.schedule == b.schedule && a.options.seed == b.options.seed &&
         a.options.order_seed == b.options.order_seed &&
         a.num_samples == b.num_samples && a.epoch == b.epoch;
}

}  // namespace

EpochSchedule NextOrder::Take(const Of& wanted) {
  std::shared_ptr<Made> made;
  {
    absl::MutexLock lock(&mu_);
    made = std::move(made_);
    made_ = nullptr;
  }
  if (made == nullptr || !IsSameOrder(made->of, wanted))
    return MakeOrder(wanted);
  made->done.WaitForNotification();
  return *std::move(made->order);
}

void NextOrder::Begin(const Of& next) {
  if (next.num_samples < kLeastSamples) return;
  auto made = std::make_shared<Made>(next);
  // Holds all that it needs: nobody waits for one that was dropped.
  tensorflow::Env::Default()->SchedClosure([made] {
    made->order = MakeOrder(made->of);
    made->done.Notify();
  });
  absl::MutexLock lock(&mu_);
  made_ = std::move(made);
}

int64_t NextOrder::bytes() const {
  absl::MutexLock lock(&mu_);
  return made_ == nullptr ? 0 : made_->of.num_samples * sizeof(uint32_t);
}

}  // namespace refurbish_tf
