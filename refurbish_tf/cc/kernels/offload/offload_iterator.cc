// The iterator of an offload stage: gathers the rows of its workers into
// batches.
//
// A checkpoint is of the batches that were handed out:
// - After a refurbish stage, whose checkpoint is small and cheap, it is the
//   input's after the last batch; batches in progress are made again.
// - A symbolic checkpoint is also the input's.
// - Otherwise it holds the batches in progress.
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/input_iterator.h"
#include "refurbish_tf/cc/kernels/offload/offload_dataset.h"
#include "refurbish_tf/cc/kernels/offload/offload_work.h"
#include "tensorflow/core/util/batch_util.h"

namespace refurbish_tf {
namespace {

constexpr char kEpoch[] = "epoch";
constexpr char kNumBatches[] = "num_batches";
constexpr char kBatch[] = "batch";
constexpr char kNumErrors[] = "num_errors";
constexpr char kError[] = "error";
// Far more batches and errors than there ever are at once.
constexpr int64_t kMostSaved = 1 << 20;
// In batches. More would take memory, and delay a change of the fraction.
constexpr int64_t kRoom = 2;

}  // namespace

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
      absl::Status status = std::move(restored_errors_.front());
      restored_errors_.pop_front();
      return status;
    }
    if (!iteration_.has_value()) iteration_ = stage().Begin();
    if (!restored_.empty()) {
      std::shared_ptr<OffloadBatch> batch = std::move(restored_.front());
      restored_.pop_front();
      HandOut(ctx, batch.get(), out_tensors);
      return absl::OkStatus();
    }
    if (!IsRunning()) Run(ctx);
    std::shared_ptr<OffloadBatch> batch;
    int64_t waited_nanos = 0;
    absl::Status status = Gather(ctx, &waited_nanos, &batch, end_of_sequence);
    iteration_->counters->host_wait_nanos += waited_nanos;
    if (*end_of_sequence) {
      if (work_->at_end() != nullptr) saved_ = work_->at_end();
      position_ = work_->position();
    }
    if (batch != nullptr) {
      *end_of_sequence = false;
      const auto now = std::chrono::steady_clock::now();
      std::optional<int64_t> since;
      if (last_.has_value())
        since = std::chrono::nanoseconds(now - *last_).count();
      stage().Record(batch->fraction, since, waited_nanos);
      last_ = now;
      HandOut(ctx, batch.get(), out_tensors);
    }
    return status;
  }

 protected:
  std::shared_ptr<model::Node> CreateNode(
      IteratorContext*, model::Node::Args args) const override {
    return model::MakeAsyncKnownRatioNode(std::move(args), options().batch_size,
                                          {});
  }

  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    int64_t position = position_;
    if (!ctx->symbolic_checkpoint()) {
      if (!options().seeded) {
        TF_RETURN_IF_ERROR(WhileSettled([&](const auto& ready) {
          mu_.AssertHeld();
          if (IsRunning()) position = work_->position();
          return SaveSettled(ctx, writer, ready);
        }));
      } else if (saved_ != nullptr) {
        TF_RETURN_IF_ERROR(saved_->GetStatus());
        TF_RETURN_IF_ERROR(saved_->Save(writer));
      } else {
        TF_RETURN_IF_ERROR(SaveInput(ctx, writer, input_));
      }
    }
    if (options().seeded) return absl::OkStatus();
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
    // Everything is checked before anything is changed.
    const CheckpointReader saved("offload", prefix(), ctx, reader);
    int64_t seed = 0, next_epoch = 0, epoch = -1, position = 0;
    Batches batches;
    std::deque<absl::Status> errors;
    if (!options().seeded) {
      TF_RETURN_IF_ERROR(saved.ReadScalar(OffloadStage::kSeed, &seed));
      TF_RETURN_IF_ERROR(saved.ReadNumber(
          OffloadStage::kNextEpoch, 0, OffloadStage::kMostEpochs, &next_epoch));
      TF_RETURN_IF_ERROR(saved.ReadNumber(kEpoch, -1, next_epoch - 1, &epoch));
      TF_RETURN_IF_ERROR(
          saved.ReadNumber(kPosition, 0, OffloadStage::kMostEpochs, &position));
      if (!ctx->symbolic_checkpoint()) {
        TF_RETURN_IF_ERROR(ReadBatches(ctx, saved, &batches, &errors));
      }
      TF_RETURN_IF_ERROR(stage().CheckSeed(seed));
    }
    workers_.Stop();
    TF_RETURN_IF_ERROR(RestoreInput(ctx, reader, input_));
    if (!options().seeded) stage().Restore(seed, next_epoch);
    iteration_.reset();
    if (epoch >= 0) iteration_ = stage().Begin(epoch);
    position_ = position;
    restored_ = std::move(batches);
    restored_errors_ = std::move(errors);
    saved_ = nullptr;
    filling_ = nullptr;
    // A batch that lacks rows is continued.
    if (!restored_.empty() &&
        restored_.back()->num_rows < options().batch_size) {
      filling_ = std::move(restored_.back());
      restored_.pop_back();
    }
    return absl::OkStatus();
  }

 private:
  using Batches = std::deque<std::shared_ptr<OffloadBatch>>;

  const OffloadOptions& options() const {
    return dataset()->arguments_.options;
  }
  OffloadStage& stage() const { return *dataset()->stage_; }

  void Run(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const OffloadWork::Told told =
        ctx->symbolic_checkpoint() ? OffloadWork::Told::kSymbolic
        : options().seeded         ? OffloadWork::Told::kSnapshots
                                   : OffloadWork::Told::kLater;
    MakeWork(ctx, options(), &stage(), *iteration_, told, Memory(ctx));
    if (told == OffloadWork::Told::kSnapshots) {
      saved_ = std::make_shared<MemoryCheckpoint>(work_->Snapshot());
    }
    work_->GoOn(filling_, position_);
    OrderedWorkers::Options workers =
        WorkerOptions(ctx, kAutotuneCalls, "true", {});
    // The consumer may be the training's own thread. While it helped, it would
    // not be seen to wait.
    workers.consumer_helps = false;
    workers.max_pieces = kRoom * work_->pieces_per_batch();
    workers.max_small_pieces = 0;
    Start(workers);
  }

  // Takes pieces until a batch is whole. At the end `*batch` may be a part.
  absl::Status Gather(IteratorContext* ctx, int64_t* waited_nanos,
                      std::shared_ptr<OffloadBatch>* batch, bool* end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (true) {
      std::unique_ptr<OffloadPiece> rows;
      int64_t waited = 0;
      TF_RETURN_IF_ERROR(NextPiece(ctx, &rows, &waited));
      *waited_nanos += waited;
      *end = rows == nullptr;
      if (rows != nullptr && rows->begin < rows->end) {
        filling_ = std::move(rows->batch);
        lost_.Update(rows->status);
      }
      if (*end || rows->last) {
        std::shared_ptr<OffloadBatch> made = std::move(filling_);
        absl::Status status = std::exchange(lost_, absl::OkStatus());
        if (!status.ok() || made == nullptr) return status;
        if (*end) {
          if (options().drop_remainder) return status;
          TF_RETURN_IF_ERROR(CompleteShortBatch(options(), made.get()));
        }
        *batch = std::move(made);
        return status;
      }
      if (!rows->next_status.ok()) return rows->next_status;
    }
  }

  void HandOut(IteratorContext* ctx, OffloadBatch* batch,
               std::vector<Tensor>* out_tensors)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    OffloadCounters& counters = *iteration_->counters;
    ++counters.batches;
    counters.device_images += batch->num_unfinished;
    counters.host_images += batch->num_rows - batch->num_unfinished;
    if (batch->checkpoint != nullptr) {
      if (ctx->symbolic_checkpoint()) {
        ctx->MergeCheckpoint(batch->checkpoint.get());
      } else {
        saved_ = std::move(batch->checkpoint);
      }
      position_ = batch->position;
    }
    *out_tensors = std::move(batch->components);
  }

  // Saves the input and the batches in progress, while the workers rest.
  absl::Status SaveSettled(
      SerializationContext* ctx, IteratorStateWriter* writer,
      const std::vector<const OrderedWorkers::Piece*>& ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    TF_RETURN_IF_ERROR(SaveInput(ctx, writer, input_));
    Batches batches = restored_;
    const auto add = [&batches](const std::shared_ptr<OffloadBatch>& batch) {
      if (batch != nullptr && (batches.empty() || batches.back() != batch)) {
        batches.push_back(batch);
      }
    };
    add(filling_);
    TF_RETURN_IF_ERROR(lost_);
    std::deque<absl::Status> errors = restored_errors_;
    for (const OrderedWorkers::Piece* piece : ready) {
      const auto& rows = static_cast<const OffloadPiece&>(*piece);
      TF_RETURN_IF_ERROR(rows.status);
      add(rows.batch);
      if (!rows.next_status.ok()) errors.push_back(rows.next_status);
    }
    for (size_t i = 0; i < batches.size(); ++i) {
      Result result;
      for (const Tensor& component : batches[i]->components) {
        result.element.push_back(component.Slice(0, batches[i]->num_rows));
      }
      TF_RETURN_IF_ERROR(
          SaveResult(writer, prefix(), absl::StrCat(kBatch, "_", i), result));
    }
    for (size_t i = 0; i < errors.size(); ++i) {
      TF_RETURN_IF_ERROR(SaveResult(writer, prefix(),
                                    absl::StrCat(kError, "_", i),
                                    Result{errors[i], {}}));
    }
    TF_RETURN_IF_ERROR(writer->WriteScalar(
        prefix(), kNumBatches, static_cast<int64_t>(batches.size())));
    return writer->WriteScalar(prefix(), kNumErrors,
                               static_cast<int64_t>(errors.size()));
  }

  std::shared_ptr<BatchMemory> Memory(IteratorContext* ctx)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return workers_.MemoryOfBatches("offload", ctx);
  }

  absl::Status ReadBatches(IteratorContext* ctx, const CheckpointReader& saved,
                           Batches* batches, std::deque<absl::Status>* errors)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    int64_t num_batches = 0, num_errors = 0;
    TF_RETURN_IF_ERROR(
        saved.ReadNumber(kNumBatches, 0, kMostSaved, &num_batches));
    TF_RETURN_IF_ERROR(
        saved.ReadNumber(kNumErrors, 0, kMostSaved, &num_errors));
    std::vector<PartialTensorShape> shapes;
    for (const PartialTensorShape& shape : options().shapes) {
      shapes.push_back(PartialTensorShape({-1}));
      for (int dim = 1; dim < shape.dims(); ++dim) {
        shapes.back().AddDim(shape.dim_size(dim));
      }
    }
    for (int64_t i = 0; i < num_batches; ++i) {
      Result result;
      TF_RETURN_IF_ERROR(saved.ReadResult(absl::StrCat(kBatch, "_", i),
                                          options().types, shapes, &result));
      TF_RETURN_IF_ERROR(result.status);
      auto batch = std::make_shared<OffloadBatch>();
      batch->num_rows = result.element[0].dim_size(0);
      for (const Tensor& component : result.element) {
        if (component.dim_size(0) != batch->num_rows || batch->num_rows < 1 ||
            batch->num_rows > options().batch_size ||
            (batch->num_rows < options().batch_size && i < num_batches - 1)) {
          return DamagedCheckpoint("offload", "batch ", i,
                                   " has components of ", component.dim_size(0),
                                   " rows");
        }
      }
      std::vector<Tensor> row(dataset()->num_input_components());
      for (size_t k = 0; k < options().components.size(); ++k) {
        const int64_t to = options().components[k];
        if (to >= 0) row[to] = result.element[k].SubSlice(0);
      }
      TF_RETURN_IF_ERROR(
          MakeBatch(options(), Memory(ctx).get(), row, batch.get()));
      for (size_t k = 0; k < result.element.size(); ++k) {
        TF_RETURN_IF_ERROR(tensorflow::batch_util::CopyContiguousSlices(
            result.element[k], 0, 0, batch->num_rows, &batch->components[k]));
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
    for (int64_t i = 0; i < num_errors; ++i) {
      Result result;
      TF_RETURN_IF_ERROR(
          saved.ReadResult(absl::StrCat(kError, "_", i), {}, {}, &result));
      if (result.status.ok()) {
        return DamagedCheckpoint("offload", "error ", i, " is none");
      }
      errors->push_back(std::move(result.status));
    }
    return absl::OkStatus();
  }

  // Set when the first batch is requested, or by a checkpoint.
  std::optional<OffloadStage::Iteration> iteration_ ABSL_GUARDED_BY(mu_);
  // Batches and errors of a checkpoint, which are handed out first.
  Batches restored_ ABSL_GUARDED_BY(mu_);
  std::deque<absl::Status> restored_errors_ ABSL_GUARDED_BY(mu_);
  // The input after the last batch that was handed out, if snapshots save it;
  // and how many elements it had yielded, for symbolic checkpoints.
  std::shared_ptr<MemoryCheckpoint> saved_ ABSL_GUARDED_BY(mu_);
  int64_t position_ ABSL_GUARDED_BY(mu_) = 0;
  // The batch in progress, and what went wrong with its pieces.
  std::shared_ptr<OffloadBatch> filling_ ABSL_GUARDED_BY(mu_);
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
  // When the last batch that the workers made was handed out.
  std::optional<std::chrono::steady_clock::time_point> last_
      ABSL_GUARDED_BY(mu_);
};

DatasetBase* MakeOffloadDataset(OpKernelContext* ctx, const DatasetBase* input,
                                OffloadArguments arguments) {
  return new IteratedBy<OffloadDataset, OffloadIterator>(ctx, input,
                                                         std::move(arguments));
}

}  // namespace refurbish_tf
