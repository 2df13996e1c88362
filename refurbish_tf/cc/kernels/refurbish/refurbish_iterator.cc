// The iterator of a refurbish stage: runs an epoch of the stage on workers.
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/inline_function.h"
#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/refurbish/position_checkpoint.h"
#include "refurbish_tf/cc/kernels/refurbish/refurbish_dataset.h"
#include "refurbish_tf/cc/kernels/refurbish/sample_work.h"
#include "refurbish_tf/cc/kernels/refurbish/source_reader.h"
#include "refurbish_tf/cc/kernels/stages_upstream.h"

namespace refurbish_tf {
namespace {

constexpr char kEnded[] = "ended";

// How many pieces are taken with one lock. Taking more would save little.
constexpr size_t kPiecesAtOnce = 64;

}  // namespace

// Yields every sample of an epoch once.
//
// Lock order: `mu_`, then the locks of the workers.
class RefurbishIterator : public WorkersIterator<RefurbishDataset> {
 public:
  using WorkersIterator::WorkersIterator;
  ~RefurbishIterator() override {
    workers_.Cancel();
    workers_.Stop();
    absl::MutexLock lock(&mu_);
    if (to_be_restored_) dataset()->stage_->NoteLostPosition();
    running_.source.reset();
    if (epoch_ != nullptr) dataset()->stage_->LeaveEpoch(*epoch_);
  }

  // Begins no epoch: an iterator may be made and never read.
  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      to_be_restored_ = ctx->is_restoring();
    }
    TF_RETURN_IF_ERROR(workers_.Initialize(ctx));
    const RefurbishArguments& arguments = dataset()->arguments_;
    functions_.partial.with_seed = arguments.partial_seed;
    functions_.partial.with_time = arguments.partial_generation;
    functions_.final.with_seed = arguments.final_seed;
    functions_.final.with_time = arguments.final_epoch;
    functions_.sample_types = arguments.sample_types;
    TF_RETURN_IF_ERROR(
        dataset()->partial_->Instantiate(ctx, &functions_.partial.function));
    if (dataset()->final_ == nullptr) return absl::OkStatus();
    return dataset()->final_->Instantiate(ctx, &functions_.final.function);
  }
  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    if (!end_status_.ok()) return std::exchange(end_status_, absl::OkStatus());
    *end_of_sequence = ended_;
    if (ended_) return absl::OkStatus();
    if (epoch_ == nullptr) {
      // An iterator made for a restore gets here if the saved one had no epoch.
      to_be_restored_ = false;
      absl::StatusOr<std::shared_ptr<Epoch>> epoch =
          dataset()->stage_->StartEpoch();
      if (!epoch.ok()) return epoch.status();
      epoch_ = *std::move(epoch);
    }
    if (!IsRunning()) StartWorkers(ctx);
    bool has_element = false, last = false;
    if (running_.rows == nullptr) {
      TF_RETURN_IF_ERROR(ReadSample(ctx, out_tensors, &has_element, &last));
    } else {
      TF_RETURN_IF_ERROR(ReadBatch(ctx, out_tensors, &has_element, &last));
      // A consumer that knows the number of batches never requests the
      // remainder that is dropped, and the epoch would not end.
      const BatchRows::Options& options = running_.rows->options();
      if (!last && options.drop_remainder &&
          epoch_->num_to_come() < options.batch_size) {
        std::vector<Tensor> dropped;
        bool has_dropped;
        end_status_ = ReadBatch(ctx, &dropped, &has_dropped, &last);
        if (!end_status_.ok()) return absl::OkStatus();
      }
    }
    if (!last) return absl::OkStatus();
    if (has_element) {
      // The epoch ends here, not when the end is requested: a consumer that
      // knows the number of elements, such as Keras, never requests it.
      EndWithElement();
      return absl::OkStatus();
    }
    absl::Status status = End();
    *end_of_sequence = status.ok();
    return status;
  }

 protected:
  // Saves only the position: not what is in progress, nor what the store holds,
  // nor the state of the source, which is read again for what is still to come.
  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    EpochPosition saved = dataset()->stage_->Save();
    if (epoch_ != nullptr) epoch_->Save(&saved);
    // With symbolic checkpoints, TensorFlow also saves an iterator that was
    // made for a restore, before the stage has its position.
    if (ctx->symbolic_checkpoint() && !to_be_restored_) {
      TF_RETURN_IF_ERROR(SaveNextEpoch(writer, *dataset()->stage_));
    }
    TF_RETURN_IF_ERROR(
        writer->WriteScalar(prefix(), kEnded, static_cast<int64_t>(ended_)));
    return WritePosition(writer, prefix(), dataset()->stage_->id(),
                         std::move(saved));
  }
  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    to_be_restored_ = false;
    const CheckpointReader checkpoint("refurbish", prefix(), ctx, reader);
    EpochPosition saved;
    TF_RETURN_IF_ERROR(ReadPosition(checkpoint, &saved));
    int64_t ended = 0;
    TF_RETURN_IF_ERROR(checkpoint.ReadScalar(kEnded, &ended));
    absl::StatusOr<std::shared_ptr<Epoch>> epoch =
        dataset()->stage_->RestoreAndResume(saved);
    if (!epoch.ok()) return epoch.status();
    epoch_ = *std::move(epoch);
    ended_ = ended;
    return absl::OkStatus();
  }

 private:
  // What the workers of an epoch use. Each member outlives those after it.
  struct Running {
    std::unique_ptr<FunctionContexts> contexts;
    std::unique_ptr<SourceReader> source;
    std::unique_ptr<BatchRows> rows;
    std::unique_ptr<SampleWork> work;
  };

  void StartWorkers(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const RefurbishDataset& stage = *dataset();
    std::vector<const InlineFunction*> functions = {stage.partial_.get()};
    if (stage.final_ != nullptr) functions.push_back(stage.final_.get());
    OrderedWorkers::Options options =
        WorkerOptions(ctx, stage.arguments_.num_parallel_calls,
                      stage.arguments_.deterministic, functions);
    options.spare = ProcessSpareRoom();
    running_.contexts = std::make_unique<FunctionContexts>(
        ctx, workers_.cancellation_manager(), options.max_calls);
    running_.source = std::make_unique<SourceReader>(
        stage.input_, this, prefix(), epoch_,
        ShuffleBufferSize::FromArgument(stage.arguments_.shuffle_buffer_size),
        stage.stage_->order_seed());
    if (const Batches& batches = stage.arguments_.batches; batches.size > 0) {
      running_.rows =
          MakeRows(batches, &stage, epoch_->num_samples(), options.in_order,
                   workers_.MemoryOfBatches("refurbish", ctx), &options);
    }
    running_.work = std::make_unique<SampleWork>(
        &functions_, running_.contexts.get(), stage.stage_.get(), epoch_,
        running_.source.get(), running_.rows.get());
    workers_.Start(options, running_.work.get(), &running_.contexts->usual,
                   [epoch = epoch_.get()] { epoch->Close(); });
  }
  // Gets the next sample or batch, if there is one. `*last`: whether nothing
  // follows in this epoch.
  absl::Status ReadSample(IteratorContext* ctx, std::vector<Tensor>* element,
                          bool* has_element, bool* last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    SamplePiece* sample;
    TF_RETURN_IF_ERROR(TakePiece(ctx, &sample));
    *has_element = sample != nullptr;
    *last = !*has_element;
    if (*last) return absl::OkStatus();
    TF_RETURN_IF_ERROR(HandOut(*sample, last));
    Count(*sample);
    *element = std::move(sample->tensors);
    return absl::OkStatus();
  }
  absl::Status ReadBatch(IteratorContext* ctx, std::vector<Tensor>* batch,
                         bool* has_batch, bool* last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    BatchRows& rows = *running_.rows;
    const bool in_order = rows.options().in_order;
    SamplePiece* sample = nullptr;
    bool whole = false;
    while (!whole && !*last) {
      TF_RETURN_IF_ERROR(TakePiece(ctx, &sample));
      if (sample == nullptr) break;
      absl::Status status;
      // If samples are not in order, each is handed out later, with its batch.
      if (in_order || !sample->status.ok()) status = HandOut(*sample, last);
      if (status.ok()) Count(*sample);
      TF_RETURN_IF_ERROR(rows.Gather(std::move(status), sample->row,
                                     *sample->place.index, &whole));
    }
    std::vector<uint32_t> gathered;
    *has_batch = rows.TakeBatch(batch, &gathered);
    for (const uint32_t index : gathered) *last |= epoch_->HandedOut(index);
    *last |= sample == nullptr;
    return absl::OkStatus();
  }
  // Gets the next piece, or null at the end. It still belongs to `pieces_`.
  absl::Status TakePiece(IteratorContext* ctx, SamplePiece** piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    *piece = nullptr;
    if (next_piece_ == num_pieces_) {
      if (pieces_.empty()) {
        pieces_.resize(running_.rows == nullptr ? 1 : kPiecesAtOnce);
      }
      int64_t waited_nanos = 0;
      TF_RETURN_IF_ERROR(NextPiece(ctx, &pieces_[0], &waited_nanos));
      if (pieces_[0] == nullptr) return absl::OkStatus();
      next_piece_ = 0;
      num_pieces_ = 1;
      if (pieces_.size() > 1) {
        num_pieces_ +=
            workers_.get()->TakeReady(absl::MakeSpan(pieces_).subspan(1));
      }
      if (static_cast<const SamplePiece&>(*pieces_[0]).fresh) {
        epoch_->counters().fresh_wait_nanos += waited_nanos;
      }
      // Without this, only puts check memory, and a cached epoch has no puts.
      epoch_->sample_store().store().LookAtMemory();
    }
    *piece = static_cast<SamplePiece*>(pieces_[next_piece_++].get());
    return absl::OkStatus();
  }
  // Notes that a sample, or its error, is handed out, and returns the error.
  // `*last`: whether it is known to be the last one of the epoch.
  absl::Status HandOut(const SamplePiece& sample, bool* last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // If an element fails because its iterator is cancelled, it is not counted
    // as handed out.
    if (!sample.status.ok() && workers_.cancellation_manager()->IsCancelled()) {
      return sample.status;
    }
    told_ |= absl::IsDataLoss(sample.status);
    *last = epoch_->HandedOut(sample.place.index);
    return sample.status;
  }
  void Count(const SamplePiece& sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    EpochCounters& counters = epoch_->counters();
    ++(sample.fresh ? counters.fresh : counters.cached);
    if (sample.place.missing) ++counters.missing;
    if (sample.place.from_other_jobs) ++counters.from_other_jobs;
  }
  // Ends the epoch in the call that returns its last element.
  void EndWithElement() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    end_status_ = End();
    if (!end_status_.ok() && !told_ && !absl::IsCancelled(end_status_) &&
        !workers_.cancellation_manager()->IsCancelled()) {
      dataset()->stage_->NoteEndError(end_status_);
    }
  }
  // Ends the epoch. Returns an error that was found only then.
  absl::Status End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ended_ = true;
    num_pieces_ = next_piece_ = 0;
    workers_.Stop();
    absl::Status status = running_.source->ReadToEnd(&running_.contexts->usual);
    running_.source.reset();
    status.Update(running_.work->LateError());
    running_ = Running();
    const std::shared_ptr<Epoch> epoch = std::move(epoch_);
    status.Update(dataset()->stage_->EndEpoch(*epoch));
    return status;
  }

  // Set by `Initialize`. The functions are null before.
  SampleWork::Functions functions_;

  // Null until an element is requested, and again after the end.
  std::shared_ptr<Epoch> epoch_ ABSL_GUARDED_BY(mu_);
  Running running_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  // Whether this iterator was made for a restore that has not happened yet.
  bool to_be_restored_ ABSL_GUARDED_BY(mu_) = false;
  // Whether the error of a changed source was returned in place of an element.
  bool told_ ABSL_GUARDED_BY(mu_) = false;
  // The error found after the last element; returned once.
  absl::Status end_status_ ABSL_GUARDED_BY(mu_);

  // Pieces that were taken from the workers at once. Some are handed out
  // already; all are given back for reuse.
  std::vector<std::unique_ptr<OrderedWorkers::Piece>> pieces_
      ABSL_GUARDED_BY(mu_);
  size_t num_pieces_ ABSL_GUARDED_BY(mu_) = 0;
  size_t next_piece_ ABSL_GUARDED_BY(mu_) = 0;
};

std::unique_ptr<IteratorBase> RefurbishDataset::MakeIteratorInternal(
    const std::string& prefix) const {
  return std::make_unique<RefurbishIterator>(
      RefurbishIterator::Params{this, IteratorPrefix(prefix)});
}

}  // namespace refurbish_tf
