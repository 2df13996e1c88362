// `offload`: batches whose last layers an accelerator finishes. The iterator
// gathers the rows that its workers make into batches.
//
// A checkpoint continues after the last batch that was handed out:
// - After a refurbish stage, whose snapshot is small and cheap, it has a
// snapshot of the input after that batch; batches in progress are made again.
// - A symbolic checkpoint also has the input's position after that batch.
// - Otherwise it has the batches in progress.
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/kernels/input_iterator.h"
#include "refurbish_tf/cc/kernels/offload/offload_options.h"
#include "refurbish_tf/cc/kernels/offload/offload_work.h"
#include "refurbish_tf/cc/offload/offload_stage.h"
#include "tensorflow/core/util/batch_util.h"

namespace refurbish_tf {
namespace {

constexpr char kEpoch[] = "epoch";
constexpr ResultsKey kBatches = {"num_batches", "batch"};
constexpr ResultsKey kErrors = {"num_errors", "error"};
// How many batches workers may be ahead. More would take memory, and delay a
// change of the fraction.
constexpr int64_t kRoom = 2;

struct OffloadDataset : public UnaryDataset {
  OffloadDataset(OpKernelContext* ctx, const DatasetBase* input,
                 OffloadOptions options)
      : UnaryDataset(ctx, input, "Offload", options.types, options.shapes),
        offload(std::move(options)),
        offload_stage(
            Registry<OffloadStage>::Global().GetOrCreate(offload.stage, [this] {
              return std::make_shared<OffloadStage>(
                  offload.seed, offload.any_seed, offload.eighths);
            })) {}

  int64_t CardinalityInternal(CardinalityOptions options) const override {
    return offload.batches.Cardinality(input_->Cardinality(options));
  }

  const OffloadOptions offload;
  const std::shared_ptr<OffloadStage> offload_stage;
};

// Lock order: `mu_` before the workers' locks and the stage's.
class OffloadIterator : public InputIterator<OffloadDataset, OffloadWork> {
 public:
  using InputIterator::InputIterator;

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    if (!restored_errors_.empty()) {
      absl::Status status = std::move(restored_errors_.front().status);
      restored_errors_.pop_front();
      return status;
    }
    if (!iteration_.has_value()) iteration_ = stage().BeginEpoch();
    OffloadCounters& counters = *iteration_->counters;
    std::shared_ptr<OffloadBatch> batch;
    if (!restored_.empty()) {
      batch = std::move(restored_.front());
      restored_.pop_front();
    } else {
      if (!IsRunning()) Run(ctx);
      int64_t waited_nanos = 0;
      absl::Status status = Gather(ctx, &waited_nanos, &batch);
      counters.host_wait_nanos += waited_nanos;
      TF_RETURN_IF_ERROR(status);
      *end_of_sequence = batch == nullptr;
      if (*end_of_sequence) return absl::OkStatus();
      const auto now = std::chrono::steady_clock::now();
      std::optional<int64_t> since;
      if (last_.has_value()) {
        since = std::chrono::nanoseconds(now - *last_).count();
      }
      stage().Record(batch->fraction, since, waited_nanos);
      last_ = now;
    }
    ++counters.batches;
    counters.device_images += batch->num_unfinished;
    counters.host_images += batch->num_rows - batch->num_unfinished;
    position_ = batch->position;
    HandOver(ctx, std::move(batch->checkpoint));
    *out_tensors = std::move(batch->components);
    return absl::OkStatus();
  }

 protected:
  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (options().seeded) {
      return ctx->symbolic_checkpoint() ? absl::OkStatus()
                                        : SaveReadInput(ctx, writer);
    }
    int64_t position = position_;
    if (!ctx->symbolic_checkpoint()) {
      TF_RETURN_IF_ERROR(WhileSettled([&](const auto& ready) {
        mu_.AssertHeld();
        if (IsRunning()) position = work_->position();
        return SaveSettled(ctx, writer, ready);
      }));
    }
    NamedNumbers state = stage().Save();
    state.push_back({kEpoch, iteration_.has_value() ? iteration_->epoch : -1});
    state.push_back({kPosition, position});
    for (const auto& [key, value] : state) {
      TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), key, value));
    }
    return absl::OkStatus();
  }

  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (options().seeded) return RestoreInput(ctx, reader, input_);
    // Everything is checked before anything is changed.
    const CheckpointReader saved("offload", prefix(), ctx, reader);
    int64_t seed = 0, next_epoch = 0, epoch = -1, position = 0;
    TF_RETURN_IF_ERROR(saved.ReadScalar(OffloadStage::kSeed, &seed));
    TF_RETURN_IF_ERROR(saved.ReadNumber(
        OffloadStage::kNextEpoch, 0, OffloadStage::kMostEpochs, &next_epoch));
    TF_RETURN_IF_ERROR(saved.ReadNumber(kEpoch, -1, next_epoch - 1, &epoch));
    TF_RETURN_IF_ERROR(
        saved.ReadNumber(kPosition, 0, OffloadStage::kMostEpochs, &position));
    std::deque<std::shared_ptr<OffloadBatch>> batches;
    std::deque<Result> errors;
    if (!ctx->symbolic_checkpoint()) {
      TF_RETURN_IF_ERROR(ReadBatches(ctx, saved, position, &batches));
      TF_RETURN_IF_ERROR(saved.ReadResults(kErrors, {}, {}, &errors));
      for (size_t i = 0; i < errors.size(); ++i) {
        if (errors[i].status.ok()) {
          return DamagedCheckpoint("offload", "error ", i, " is none");
        }
      }
    }
    TF_RETURN_IF_ERROR(stage().CheckSeed(seed));
    TF_RETURN_IF_ERROR(RestoreInput(ctx, reader, input_));
    stage().Restore(seed, next_epoch);
    if (epoch >= 0) iteration_ = stage().BeginEpoch(epoch);
    position_ = position;
    restored_ = std::move(batches);
    restored_errors_ = std::move(errors);
    // The last batch may lack rows. The workers continue it.
    if (!restored_.empty() &&
        restored_.back()->num_rows < options().batches.size) {
      filling_ = std::move(restored_.back());
      restored_.pop_back();
    }
    return absl::OkStatus();
  }

 private:
  const OffloadOptions& options() const { return dataset()->offload; }
  OffloadStage& stage() const { return *dataset()->offload_stage; }

  void Run(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    MakeWork(ctx, options(), &stage(), *iteration_, filling_, position_,
             workers_.MemoryOfBatches("offload", ctx));
    if (options().seeded && !ctx->symbolic_checkpoint()) TakeSnapshots();
    OrderedWorkers::Options workers =
        WorkerOptions(ctx, kAutotuneCalls, "true", {});
    // The consumer does not help, because its waiting time decides the
    // fraction. It may also be the training's own thread.
    workers.consumer_helps = false;
    workers.max_pieces = kRoom * work_->pieces_per_batch();
    workers.max_small_pieces = 0;
    Start(workers);
  }

  // Takes pieces until a batch is complete. The last one may be short, or null.
  absl::Status Gather(IteratorContext* ctx, int64_t* waited_nanos,
                      std::shared_ptr<OffloadBatch>* batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::unique_ptr<OffloadPiece> rows;
    do {
      rows = nullptr;
      TF_RETURN_IF_ERROR(NextPiece(ctx, &rows, waited_nanos));
      if (rows != nullptr && rows->batch != nullptr) {
        filling_ = std::move(rows->batch);
        filling_->status.Update(rows->status);
      }
      if (rows != nullptr) TF_RETURN_IF_ERROR(rows->next_status);
    } while (rows != nullptr && rows->end < options().batches.size);
    std::shared_ptr<OffloadBatch> made = std::move(filling_);
    if (rows == nullptr) {
      HandOver(ctx, work_->Checkpoint());
      position_ = work_->position();
      if (made == nullptr) return absl::OkStatus();
      made->position = position_;
    }
    TF_RETURN_IF_ERROR(made->status);
    if (rows == nullptr) {
      if (options().batches.drop_remainder) return absl::OkStatus();
      TF_RETURN_IF_ERROR(CompleteShortBatch(options(), made.get()));
    }
    *batch = std::move(made);
    return absl::OkStatus();
  }

  // Saves the input and the batches in progress, while the workers are paused.
  absl::Status SaveSettled(
      SerializationContext* ctx, IteratorStateWriter* writer,
      const std::vector<const OrderedWorkers::Piece*>& ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    TF_RETURN_IF_ERROR(SaveInput(ctx, writer, input_));
    std::deque<std::shared_ptr<OffloadBatch>> batches = restored_;
    if (filling_ != nullptr) batches.push_back(filling_);
    std::deque<Result> errors = restored_errors_;
    for (const OrderedWorkers::Piece* piece : ready) {
      const auto& rows = static_cast<const OffloadPiece&>(*piece);
      TF_RETURN_IF_ERROR(rows.status);
      if (rows.batch != nullptr &&
          (batches.empty() || batches.back() != rows.batch)) {
        batches.push_back(rows.batch);
      }
      if (!rows.next_status.ok()) errors.push_back({rows.next_status, {}});
    }
    std::deque<Result> made;
    for (const auto& batch : batches) {
      TF_RETURN_IF_ERROR(batch->status);
      made.push_back({absl::OkStatus(), batch->components});
      Shorten(batch->num_rows, &made.back().element);
    }
    TF_RETURN_IF_ERROR(SaveResults(writer, prefix(), kBatches, made));
    return SaveResults(writer, prefix(), kErrors, errors);
  }

  // Reads saved batches. `position`: how many elements the input had yielded.
  absl::Status ReadBatches(IteratorContext* ctx, const CheckpointReader& saved,
                           int64_t position,
                           std::deque<std::shared_ptr<OffloadBatch>>* batches)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<PartialTensorShape> shapes = options().shapes;
    for (PartialTensorShape& shape : shapes) shape.set_dim(0, -1);
    std::deque<Result> made;
    TF_RETURN_IF_ERROR(
        saved.ReadResults(kBatches, options().types, shapes, &made));
    for (size_t i = 0; i < made.size(); ++i) {
      TF_RETURN_IF_ERROR(made[i].status);
      const std::vector<Tensor>& components = made[i].element;
      auto batch = std::make_shared<OffloadBatch>();
      batch->num_rows = components[0].dim_size(0);
      batch->position = position;
      for (const Tensor& component : components) {
        if (component.dim_size(0) != batch->num_rows || batch->num_rows < 1 ||
            batch->num_rows > options().batches.size ||
            (batch->num_rows < options().batches.size && i < made.size() - 1)) {
          return DamagedCheckpoint("offload", "batch ", i,
                                   " has components of ", component.dim_size(0),
                                   " rows");
        }
      }
      std::vector<Tensor> row(dataset()->input()->output_dtypes().size());
      for (size_t k = 0; k < components.size(); ++k) {
        const int64_t to = options().components[k];
        if (to >= 0) row[to] = components[k].SubSlice(0);
      }
      const auto memory = workers_.MemoryOfBatches("offload", ctx);
      TF_RETURN_IF_ERROR(MakeBatch(options(), memory.get(), row, batch.get()));
      for (size_t k = 0; k < components.size(); ++k) {
        TF_RETURN_IF_ERROR(tensorflow::batch_util::CopyContiguousSlices(
            components[k], 0, 0, batch->num_rows, &batch->components[k]));
      }
      for (int64_t k = 0; k < batch->num_rows; ++k) {
        const int32_t* const draws = batch->draws + k * options().num_columns();
        if (draws[0] < 0 || draws[0] > 1 ||
            !options().layers.CheckDraws(draws + 1).ok()) {
          return DamagedCheckpoint("offload", "batch ", i,
                                   " has impossible draws");
        }
        batch->num_unfinished += draws[0];
      }
      batches->push_back(std::move(batch));
    }
    return absl::OkStatus();
  }

  // Set when the first batch is requested, or by a restore.
  std::optional<OffloadStage::Iteration> iteration_ ABSL_GUARDED_BY(mu_);
  // Restored from a checkpoint, and handed out first.
  std::deque<std::shared_ptr<OffloadBatch>> restored_ ABSL_GUARDED_BY(mu_);
  std::deque<Result> restored_errors_ ABSL_GUARDED_BY(mu_);
  // How many input elements were read by the end of the batch handed out last.
  int64_t position_ ABSL_GUARDED_BY(mu_) = 0;
  // The batch that the consumer is filling with rows, new or restored.
  std::shared_ptr<OffloadBatch> filling_ ABSL_GUARDED_BY(mu_);
  // When the last batch that the workers made was handed out.
  std::optional<std::chrono::steady_clock::time_point> last_
      ABSL_GUARDED_BY(mu_);
};

class OffloadDatasetOp : public UnaryDatasetOpKernel {
 public:
  explicit OffloadDatasetOp(OpKernelConstruction* ctx)
      : UnaryDatasetOpKernel(ctx) {
    std::vector<std::string> layers;
    OP_REQUIRES_OK(
        ctx, GetAttrs(ctx, "layers", &layers, "batch_size",
                      &attrs_.batches.size, "num_parts", &attrs_.num_parts,
                      "eighths", &attrs_.eighths, "group", &attrs_.group,
                      "tables", &attrs_.tables, "drop_remainder",
                      &attrs_.batches.drop_remainder, "image", &attrs_.image,
                      "image_height", &attrs_.size.height, "image_width",
                      &attrs_.size.width, "image_frames", &attrs_.frames,
                      "seeded", &attrs_.seeded, "any_seed", &attrs_.any_seed,
                      "components", &attrs_.components, "output_types",
                      &attrs_.types, "output_shapes", &attrs_.shapes));
    OP_REQUIRES_VALUE(attrs_.layers, ctx, LayerChain::Parse(layers));
    attrs_.policy_layers = attrs_.layers.UpToLastPolicy();
    OP_REQUIRES_OK(ctx, attrs_.CheckAttributes());
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override {
    OffloadOptions options = attrs_;
    OP_REQUIRES_OK(
        ctx, GetScalars(ctx, "stage", &options.stage, "seed", &options.seed));
    OP_REQUIRES_OK(ctx, options.CheckComponents(*input));
    *output = new IteratedBy<OffloadDataset, OffloadIterator>(
        ctx, input, std::move(options));
  }

 private:
  OffloadOptions attrs_;
};

absl::Status SaveOffloadState(OpKernelContext* ctx) {
  TF_ASSIGN_OR_RETURN(const auto stage,
                      FindStage<OffloadStage>(ctx, "offload"));
  SetNamedRows(ctx, {stage->Save()});
  return absl::OkStatus();
}

// The state is checked, because it may come from a damaged backup.
absl::Status RestoreOffloadState(OpKernelContext* ctx) {
  TF_ASSIGN_OR_RETURN(const auto stage,
                      FindStage<OffloadStage>(ctx, "offload"));
  const Tensor& state = ctx->input(1);
  if (state.shape() != TensorShape({2})) {
    return DamagedCheckpoint("offload", "its state has shape ",
                             state.shape().DebugString(),
                             ", but must have [2]");
  }
  const auto values = state.vec<int64_t>();
  if (values(1) < 0 || values(1) > OffloadStage::kMostEpochs) {
    return DamagedCheckpoint("offload", "its next epoch is ", values(1));
  }
  TF_RETURN_IF_ERROR(stage->CheckSeed(values(0)));
  stage->Restore(values(0), values(1));
  return absl::OkStatus();
}

REFURBISH_TF_KERNEL("OffloadDataset", OffloadDatasetOp);
REFURBISH_TF_KERNEL("OffloadCounts", FunctionOp<SetCounts<OffloadStage>>);
REFURBISH_TF_KERNEL("OffloadState", FunctionOp<SaveOffloadState>);
REFURBISH_TF_KERNEL("OffloadRestore", FunctionOp<RestoreOffloadState>);

}  // namespace
}  // namespace refurbish_tf
