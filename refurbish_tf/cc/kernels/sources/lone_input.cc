#include "refurbish_tf/cc/kernels/sources/lone_input.h"

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/stage/ask_ahead.h"

namespace refurbish_tf {

// What the input is asked for.
class LoneInput::Asked {
 public:
  void Add(uint32_t index) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    last_ = index;
    ++count_;
    changed_.SignalAll();
  }

  void Close() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    changed_.SignalAll();
  }

  // What the index mapper answers.
  absl::StatusOr<size_t> At(size_t position) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    while (position >= count_) {
      if (closed_) return absl::CancelledError("The input is no longer used.");
      if (AskingAhead::OnThisThread()) {
        return absl::UnavailableError("No other element is asked for.");
      }
      changed_.Wait(&mu_);
    }
    // Whoever asks is another one of several sources, as in `concatenate`,
    // which each count from 0.
    if (position + 1 < count_) return absl::NotFoundError("It was read.");
    return last_;
  }

 private:
  absl::Mutex mu_;
  absl::CondVar changed_;
  size_t count_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t last_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

void LoneInput::Drop() {
  if (asked_ != nullptr) asked_->Close();
  input_.reset();
}

absl::Status LoneInput::Read(IteratorContext* ctx, uint32_t index,
                             std::vector<Tensor>* element, bool* end) {
  if (input_ == nullptr) {
    IteratorContext::Params params(ctx);
    // Many inputs would wait for the few threads of TensorFlow's pool.
    params.runner = [](std::function<void()> run) { run(); };
    IteratorContext unmapped(params);
    TF_RETURN_IF_ERROR(
        source_->MakeIterator(&unmapped, nullptr, prefix_, &input_));
    asked_ = std::make_shared<Asked>();
    params.index_mapper = [asked = asked_](size_t position) {
      return asked->At(position);
    };
    mapped_.emplace(std::move(params));
  }
  asked_->Add(index);
  absl::Status status = input_->GetNext(&*mapped_, element, end);
  if (!status.ok() || *end) Drop();
  return status;
}

}  // namespace refurbish_tf
