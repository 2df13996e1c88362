// The workers of a dataset iterator: their options and their cancellation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/batches/batch_rows.h"
#include "refurbish_tf/cc/kernels/inline_function.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tensorflow/core/framework/cancellation.h"

namespace refurbish_tf {

// The value of `num_parallel_calls` that stands for tf.data.AUTOTUNE: as many
// calls as the process has CPU cores, even if their number changes, or as
// tf.data's thread pool has threads if the user has set its size.
inline constexpr int64_t kAutotuneCalls = -1;

// Fails unless `value` is kAutotuneCalls or from 0 to 1024. `name` is the name
// of the argument in the error.
absl::Status CheckParallelCalls(int64_t value,
                                absl::string_view name = "num_parallel_calls");

// Options of workers that run `functions`. `deterministic` is "true", "false"
// or "default", which follows tf.data's option `deterministic`.
OrderedWorkers::Options WorkerOptions(
    IteratorContext* ctx, int64_t num_parallel_calls,
    const std::string& deterministic,
    const std::vector<const InlineFunction*>& functions);

// What iterators of this process share (`RoomAhead::Extend`). Never destroyed.
SpareRoom* ProcessSpareRoom();

BatchRows::Options RowsOf(const Batches& batches, const DatasetBase* dataset);

// Makes the rows of a dataset's batches. `num_results`: how many results there
// can be, or negative if unknown. Also replaces the limits in `options`,
// because results in rows hold no bytes of their own: workers may be as many
// rows ahead as the limits allow, and one batch more.
std::unique_ptr<BatchRows> MakeRows(const Batches& batches,
                                    const DatasetBase* dataset,
                                    int64_t num_results, bool in_order,
                                    std::shared_ptr<BatchMemory> memory,
                                    OrderedWorkers::Options* options);

// The workers of an iterator, which are cancelled when the iterator is. Only
// `Cancel` may be called by several threads at once.
class IteratorWorkers {
 public:
  IteratorWorkers() = default;
  ~IteratorWorkers();
  IteratorWorkers(const IteratorWorkers&) = delete;
  IteratorWorkers& operator=(const IteratorWorkers&) = delete;

  absl::Status Initialize(IteratorContext* ctx);

  // Pass this to the functions that the workers run and to the iterator's
  // input, so that both are cancelled with the workers.
  CancellationManager* cancellation_manager() { return &cancellation_manager_; }
  // Returns the allocator of the iterator's batches. It keeps no spare memory
  // longer than the iterator lives. `stage` names the stage in errors.
  std::shared_ptr<BatchMemory> MemoryOfBatches(const char* stage,
                                               IteratorContext* ctx);

  // `on_cancel` is called when the workers are cancelled. `work`, `ctx` and
  // what `on_cancel` uses must live until `Stop`.
  void Start(const OrderedWorkers::Options& options, OrderedWorkers::Work* work,
             IteratorContext* ctx, std::function<void()> on_cancel)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Null before `Start` and after `Stop`.
  OrderedWorkers* get() { return workers_.get(); }
  // Waits for the calls in progress.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  CancellationManager cancellation_manager_;
  std::function<void()> deregister_fn_;
  std::shared_ptr<BatchMemory> memory_;
  std::unique_ptr<OrderedWorkers> workers_;

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  // Set between `Start` and `Stop`.
  std::function<void()> cancel_ ABSL_GUARDED_BY(mu_);
};

// An iterator with workers. A derived class must stop them before it destroys
// what they use. No workers run during a restore, because TensorFlow restores
// an iterator only before its first element is requested.
//
// Lock order: `mu_` before the workers' locks.
template <class Dataset>
class WorkersIterator : public DatasetIterator<Dataset> {
 public:
  using Params = typename DatasetIterator<Dataset>::Params;
  using DatasetIterator<Dataset>::DatasetIterator;

  bool SymbolicCheckpointCompatible() const override { return true; }

 protected:
  // A batch takes several elements of the input, and errors drop some, so the
  // ratio of input to output elements is unknown.
  std::shared_ptr<model::Node> CreateNode(
      IteratorContext*, model::Node::Args args) const override {
    return model::MakeAsyncUnknownRatioNode(std::move(args), {});
  }

  bool IsRunning() { return workers_.get() != nullptr; }

  // Gets the next piece, or null at the end. `*piece` may hold an earlier piece
  // for reuse. Adds to `*waited_nanos` how long the consumer waited.
  template <class P>
  absl::Status NextPiece(IteratorContext* ctx, std::unique_ptr<P>* piece,
                         int64_t* waited_nanos = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::unique_ptr<OrderedWorkers::Piece> next_piece = std::move(*piece);
    int64_t waited;
    this->RecordStop(ctx);
    const OrderedWorkers::Next next =
        workers_.get()->GetNext(&next_piece, &waited);
    this->RecordStart(ctx);
    if (waited_nanos != nullptr) *waited_nanos += waited;
    if (next == OrderedWorkers::Next::kEnd) return absl::OkStatus();
    if (next != OrderedWorkers::Next::kPiece) {
      return OrderedWorkers::ErrorOf(next);
    }
    piece->reset(static_cast<P*>(next_piece.release()));
    return absl::OkStatus();
  }

  // For a checkpoint: pauses the workers, and calls save(ready pieces).
  template <class Save>
  absl::Status WhileSettled(const Save& save)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<const OrderedWorkers::Piece*> ready;
    if (!IsRunning()) return save(ready);
    if (!workers_.get()->Settle(&ready)) {
      return absl::CancelledError("Iteration was cancelled.");
    }
    absl::Status status = save(ready);
    workers_.get()->Resume();
    return status;
  }

  mutable absl::Mutex mu_;
  // Started and stopped with `mu_` held.
  IteratorWorkers workers_;
};

}  // namespace refurbish_tf
