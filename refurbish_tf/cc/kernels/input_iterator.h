// Iterators whose workers read the input.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/stages_upstream.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tensorflow/core/framework/dataset_options.pb.h"

namespace refurbish_tf {

// Work that fetches its pieces, of type `P`, from the iterator's input.
template <class P>
class InputWork : public OrderedWorkers::Work {
 public:
  using Piece = P;

  // `ctx` is the context of `input`. Both must outlive this object.
  InputWork(IteratorBase* input, IteratorContext* ctx)
      : input_(*input), ctx_(*ctx) {}

  // From now on, `Checkpoint` takes snapshots of the input. Each includes the
  // number of the next epoch of every stage in `stages`, which the input reads.
  void TakeSnapshots(std::vector<std::shared_ptr<Stage>> stages) {
    takes_snapshots_ = true;
    stages_ = std::move(stages);
  }

  Claimed Claim(std::unique_ptr<OrderedWorkers::Piece>* piece) override {
    if (input_ended_) return Claimed::kEnd;
    *piece = std::make_unique<P>();
    return Claimed::kFetch;
  }
  Outcome Run(OrderedWorkers::Piece*) override { return Outcome::kDone; }
  int64_t Bytes(const OrderedWorkers::Piece&) const override { return 0; }

  // After `TakeSnapshots`, returns a snapshot of the input. Without snapshots,
  // returns the input's changes since the last call if checkpoints are
  // symbolic, otherwise null: then the iterator saves the input itself. Called
  // by one thread at a time, and never while an element is read.
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

  // Reads the next element, for `Fetch`. Returns false at the end of the input.
  bool Read(Result* result) {
    if (input_ended_) return false;
    bool end = false;
    result->status = input_.GetNext(&ctx_, &result->element, &end);
    if (end && result->status.ok()) input_ended_ = true;
    return !input_ended_;
  }

 private:
  std::unique_ptr<MemoryCheckpoint> Snapshot() {
    // Follows the option external_state_policy as `tf.train.Checkpoint` does,
    // but without a warning for each snapshot.
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
    // The error is kept in the snapshot and returned only if it is saved: an
    // input that cannot be saved can still be read.
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

// An iterator whose workers do `Work`, a subclass of InputWork. `Work` must
// only use what it or the dataset owns: the members of the derived class are
// destroyed before the workers stop.
template <class Dataset, class Work>
class InputIterator : public WorkersIterator<Dataset> {
 public:
  using typename WorkersIterator<Dataset>::Params;
  using WorkersIterator<Dataset>::WorkersIterator;

  // The input is destroyed before `workers_`, because the input has registered
  // callbacks with their cancellation manager.
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

  // Creates `work_`. Must be called before `Start`. `arguments`: further
  // arguments for the constructor of `Work`.
  template <class... Arguments>
  void MakeWork(IteratorContext* ctx, Arguments&&... arguments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    input_ctx_.emplace(InputContext(ctx));
    work_.emplace(input_.get(), &*input_ctx_,
                  std::forward<Arguments>(arguments)...);
  }

  // Must be called after `MakeWork`. From then on a checkpoint holds a snapshot
  // of the input after the last element handed out, not the elements that were
  // read ahead. Snapshots are cheap if the input buffers nothing.
  void TakeSnapshots() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    work_->TakeSnapshots(StagesUpstream(*this->dataset()->input()));
    snapshot_ = work_->Checkpoint();
  }

  void Start(const OrderedWorkers::Options& options)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    workers_.Start(options, &*work_, &*input_ctx_, nullptr);
  }

  // Notes that all elements before `checkpoint`, unless null, are handed out.
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

  // Saves the input: its last snapshot or, without snapshots, its state.
  absl::Status SaveReadInput(SerializationContext* ctx,
                             IteratorStateWriter* writer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (snapshot_ == nullptr) return this->SaveInput(ctx, writer, input_);
    TF_RETURN_IF_ERROR(snapshot_->GetStatus());
    return snapshot_->Save(writer);
  }

  // Not guarded by `mu_`, because workers also read the input, one at a time
  // and never while they are settled.
  std::unique_ptr<IteratorBase> input_;
  // Both are set when the first element is requested.
  std::optional<IteratorContext> input_ctx_;
  std::optional<Work> work_ ABSL_GUARDED_BY(mu_);

 private:
  // The input after the last element handed out. Null without snapshots.
  std::unique_ptr<MemoryCheckpoint> snapshot_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf
