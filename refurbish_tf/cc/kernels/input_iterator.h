// Iterators whose workers read the input.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/stages_upstream.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tensorflow/core/framework/dataset_options.pb.h"

namespace refurbish_tf {

// Work whose pieces, of type `P`, are fetched from the input.
template <class P>
class InputWork : public OrderedWorkers::Work {
 public:
  using Piece = P;

  // `ctx` is the input's. Both must outlive this object.
  InputWork(IteratorBase* input, IteratorContext* ctx)
      : input_(*input), ctx_(*ctx) {}

  // From now on, `Checkpoint` takes snapshots of the input, which reads these
  // stages.
  void TakeSnapshots(std::vector<std::shared_ptr<Stage>> stages) {
    takes_snapshots_ = true;
    stages_ = std::move(stages);
  }

  OrderedWorkers::Claimed Claim(
      std::unique_ptr<OrderedWorkers::Piece>* piece) override {
    if (input_ended_) return OrderedWorkers::Claimed::kEnd;
    *piece = std::make_unique<P>();
    return OrderedWorkers::Claimed::kFetch;
  }
  OrderedWorkers::Outcome Run(OrderedWorkers::Piece*) override {
    return OrderedWorkers::Outcome::kDone;
  }
  int64_t Bytes(const OrderedWorkers::Piece&) const override { return 0; }

  // A snapshot of the input; or, for a symbolic checkpoint, its changes since
  // the last call; or null, if the iterator saves the input itself. Called by
  // one thread at a time, and never while an element is read.
  std::unique_ptr<MemoryCheckpoint> Checkpoint() {
    if (takes_snapshots_) return Snapshot();
    if (!ctx_.symbolic_checkpoint()) return nullptr;
    auto changes = std::make_unique<MemoryCheckpoint>(ctx_.id_registry());
    changes->Merge(ctx_.checkpoint());
    return changes;
  }

 protected:
  IteratorContext& ctx() { return ctx_; }
  const DataTypeVector& input_types() const { return input_.output_dtypes(); }

  // For `Fetch`. Returns false at the end of the input.
  bool Read(Result* result) {
    if (input_ended_) return false;
    bool end = false;
    result->status = input_.GetNext(&ctx_, &result->element, &end);
    if (end && result->status.ok()) input_ended_ = true;
    return !input_ended_;
  }

 private:
  std::unique_ptr<MemoryCheckpoint> Snapshot() {
    // The policy of `tf.train.Checkpoint`, but without its warnings.
    const bool allowed =
        ctx_.options() != nullptr &&
        ctx_.options()->optional_external_state_policy_case() ==
            tensorflow::data::Options::kExternalStatePolicy &&
        ctx_.options()->external_state_policy() !=
            tensorflow::data::ExternalStatePolicy::POLICY_FAIL;
    SerializationContext::Params params;
    params.resource_mgr = nullptr;  // TensorFlow does not initialize it.
    params.external_state_policy =
        allowed ? tensorflow::data::ExternalStatePolicy::POLICY_IGNORE
                : tensorflow::data::ExternalStatePolicy::POLICY_FAIL;
    SerializationContext ctx(std::move(params));
    auto snapshot = std::make_unique<MemoryCheckpoint>(ids_);
    // An input that cannot be saved can still be read.
    snapshot->UpdateStatus(input_.Save(&ctx, snapshot.get()));
    for (const auto& stage : stages_) {
      snapshot->UpdateStatus(SaveNextEpoch(snapshot.get(), *stage));
    }
    return snapshot;
  }

  bool takes_snapshots_ = false;
  std::vector<std::shared_ptr<Stage>> stages_;
  IteratorBase& input_;
  IteratorContext& ctx_;
  const std::shared_ptr<MemoryCheckpoint::IdRegistry> ids_ =
      std::make_shared<MemoryCheckpoint::IdRegistry>();
  std::atomic<bool> input_ended_{false};
};

// An iterator with workers that do `Work`, an InputWork. `Work` may only use
// what it or the dataset owns: the members of the derived class are destroyed
// before the workers stop.
template <class Dataset, class Work>
class InputIterator : public WorkersIterator<Dataset> {
 public:
  using typename WorkersIterator<Dataset>::Params;
  using WorkersIterator<Dataset>::WorkersIterator;

  // The input is destroyed first: it has registered callbacks with the
  // cancellation manager of `workers_`.
  ~InputIterator() override {
    workers_.Cancel();
    workers_.Stop();
    input_.reset();
  }

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    TF_RETURN_IF_ERROR(workers_.Initialize(ctx));
    IteratorContext input_ctx = InputContext(ctx);
    TF_RETURN_IF_ERROR(this->dataset()->input()->MakeIterator(
        &input_ctx, this, this->prefix(), &input_));
    ctx->MergeCheckpoint(input_ctx.checkpoint());
    return absl::OkStatus();
  }

 protected:
  using WorkersIterator<Dataset>::mu_;
  using WorkersIterator<Dataset>::workers_;

  IteratorContext InputContext(IteratorContext* ctx) {
    IteratorContext::Params params(ctx);
    params.cancellation_manager = workers_.cancellation_manager();
    return IteratorContext(std::move(params));
  }

  // Called before `Start`. `arguments`: those of `Work` after the input's.
  template <class... Arguments>
  void MakeWork(IteratorContext* ctx, Arguments&&... arguments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    input_ctx_.emplace(InputContext(ctx));
    work_.emplace(input_.get(), &*input_ctx_,
                  std::forward<Arguments>(arguments)...);
  }

  // Called after `MakeWork`: checkpoints hold a snapshot of the input, not what
  // was read ahead. It is cheap if the input buffers nothing.
  void TakeSnapshots() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    work_->TakeSnapshots(StagesUpstream(*this->dataset()->input()));
    snapshot_ = work_->Checkpoint();
  }

  void Start(const OrderedWorkers::Options& options)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    workers_.Start(options, &*work_, &*input_ctx_, nullptr);
  }

  // Notes that the input is handed out up to this checkpoint, if there is one.
  void HandOver(IteratorContext* ctx,
                std::unique_ptr<MemoryCheckpoint> checkpoint)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (checkpoint == nullptr) return;
    if (snapshot_ != nullptr) {
      snapshot_ = std::move(checkpoint);
    } else {
      ctx->MergeCheckpoint(checkpoint.get());
    }
  }

  // Saves the input as it was after what was handed out, if there are
  // snapshots, or as it is.
  absl::Status SaveReadInput(SerializationContext* ctx,
                             IteratorStateWriter* writer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (snapshot_ == nullptr) return this->SaveInput(ctx, writer, input_);
    TF_RETURN_IF_ERROR(snapshot_->GetStatus());
    return snapshot_->Save(writer);
  }

  // Not guarded by `mu_`, because the workers also read it, one at a time and
  // never while they are settled.
  std::unique_ptr<IteratorBase> input_;
  // Both set when the first element is requested.
  std::optional<IteratorContext> input_ctx_;
  std::optional<Work> work_ ABSL_GUARDED_BY(mu_);

 private:
  // With snapshots: the input after what was handed out.
  std::unique_ptr<MemoryCheckpoint> snapshot_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
