// The records of TFRecord files, by index.
//
// Reads ahead follow whatever says which record is next: the position with the
// step between the last two (`shard` skips the same number again and again),
// the splits of a tf.data service, or an index mapper. A mapper may wait
// (`Epoch::Request`), so only the workers ask it, never the consumer.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/sources/record_work.h"
#include "refurbish_tf/cc/kernels/sources/tensorflow_files.h"
#include "refurbish_tf/cc/sources/open_files.h"
#include "refurbish_tf/cc/sources/record_index.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tensorflow/core/data/split_utils.h"

namespace refurbish_tf {
namespace {

using tensorflow::data::ParseVectorArgument;

constexpr char kTfrecordType[] = "Tfrecord";
constexpr char kTfrecordStage[] = "rtf.sources.tfrecord";
constexpr char kNumRequests[] = "num_requests";
constexpr char kNumPending[] = "num_pending";
constexpr char kPending[] = "pending";

constexpr int64_t kMaxRequests = int64_t{1} << 62;
// Far more records than are ever ready at once.
constexpr int64_t kMaxPending = 1 << 20;

// After a `Skip` over at most so many records of the plan these are read and
// dropped; after a longer one the workers are started anew.
constexpr int64_t kMostPassed = 16;

struct TfrecordArguments {
  std::vector<tstring> files;
  std::string index_dir;
  // The name of the index, the same in every copy of the dataset.
  std::string index;
  int64_t num_parallel_reads = 0;

  int64_t num_threads() const { return NumReads(num_parallel_reads); }
};

class TfrecordDataset : public NamedDataset {
 public:
  TfrecordDataset(OpKernelContext* ctx, TfrecordArguments arguments,
                  std::shared_ptr<const RecordIndex> index)
      : NamedDataset(ctx, kTfrecordType, {DT_STRING}, {PartialTensorShape({})}),
        arguments_(std::move(arguments)),
        index_(std::move(index)) {}

  int64_t CardinalityInternal(CardinalityOptions) const override {
    return index_->num_records();
  }
  absl::Status RandomIndexingCompatible() const override {
    return absl::OkStatus();
  }

  absl::Status MakeSplitProviders(std::vector<std::unique_ptr<SplitProvider>>*
                                      split_providers) const override {
    split_providers->push_back(
        std::make_unique<tensorflow::data::IndexSplitProvider>(
            index_->num_records()));
    return absl::OkStatus();
  }

  absl::Status Get(OpKernelContext*, int64_t index,
                   std::vector<Tensor>* out_tensors) const override {
    return GetRecord(index, out_tensors);
  }
  absl::Status Get(AnyContext, int64_t index,
                   std::vector<Tensor>* out_tensors) const override {
    return GetRecord(index, out_tensors);
  }

 protected:
  absl::Status AsGraphDefInternal(SerializationContext* ctx,
                                  DatasetGraphDefBuilder* b,
                                  Node** output) const override {
    return OpWriter(ctx, b)
        .Vector(arguments_.files)
        .Scalar(arguments_.index_dir)
        .Scalar(arguments_.index)
        .Scalar(arguments_.num_parallel_reads)
        .Write(this, output);
  }

 private:
  friend class TfrecordIterator;

  absl::Status GetRecord(int64_t index,
                         std::vector<Tensor>* out_tensors) const {
    TF_RETURN_IF_ERROR(CheckRandomAccessCompatible(index));
    out_tensors->resize(1);
    return ReadTensor(*index_, index, /*since=*/0, &out_tensors->front());
  }

  const TfrecordArguments arguments_;
  const std::shared_ptr<const RecordIndex> index_;
};

// One of three things says which records come, for the whole life of an
// iterator: their order; the splits that a service hands out; or an index
// mapper, which is known only when the first element is asked for.
class TfrecordIterator : public WorkersIterator<TfrecordDataset> {
 public:
  explicit TfrecordIterator(const Params& params)
      : WorkersIterator(params),
        num_records_(dataset()->index_->num_records()) {}

  ~TfrecordIterator() override {
    workers_.Cancel();
    workers_.Stop();
  }

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    since_ = OpenFiles::Global().Now();
    TF_RETURN_IF_ERROR(workers_.Initialize(ctx));
    if (ctx->split_providers().empty()) return absl::OkStatus();
    TF_ASSIGN_OR_RETURN(splits_, GetSingleSplitProvider(ctx, dataset()));
    return absl::OkStatus();
  }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    if (ctx->index_mapper() != nullptr) {
      if (!IsRunning()) {
        Start(ctx, RequestedRecords(num_records_, ctx->index_mapper(),
                                    num_requests_));
      }
      return Next(ctx, out_tensors, end_of_sequence);
    }
    if (splits_ != nullptr) return NextSplit(ctx, out_tensors, end_of_sequence);
    if (position_ >= num_records_) {
      *end_of_sequence = true;
      return absl::OkStatus();
    }
    const int64_t wanted = position_++;
    Plan(ctx, wanted);
    while (true) {
      absl::Status status = Next(ctx, out_tensors, end_of_sequence);
      if (last_read_ >= wanted || *end_of_sequence ||
          absl::IsCancelled(status)) {
        return status;
      }
    }
  }

 protected:
  std::shared_ptr<model::Node> CreateNode(
      IteratorContext*, model::Node::Args args) const override {
    return model::MakeSourceNode(std::move(args));
  }

  absl::Status SkipInternal(IteratorContext* ctx, int num_to_skip,
                            bool* end_of_sequence, int* num_skipped) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (ctx->index_mapper() == nullptr && splits_ == nullptr) {
        const int64_t skipped =
            std::min<int64_t>(num_to_skip, num_records_ - position_);
        position_ += skipped;
        *num_skipped = static_cast<int>(skipped);
        *end_of_sequence = skipped < num_to_skip;
        return absl::OkStatus();
      }
    }
    return WorkersIterator::SkipInternal(ctx, num_to_skip, end_of_sequence,
                                         num_skipped);
  }

  // Records read ahead are read again after a restore.
  absl::Status SaveInternal(SerializationContext*,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kPosition, position_));
    TF_RETURN_IF_ERROR(
        writer->WriteScalar(prefix(), kNumRequests, num_requests_));
    if (splits_ == nullptr) return absl::OkStatus();
    return WhileSettled(
        [&](const auto& ready) { return SaveSplits(writer, ready); });
  }

  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    // Everything is checked before anything is changed.
    const CheckpointReader saved(kTfrecordStage, prefix(), ctx, reader);
    int64_t position = 0, num_requests = 0;
    TF_RETURN_IF_ERROR(saved.ReadNumber(kPosition, 0, num_records_, &position));
    TF_RETURN_IF_ERROR(
        saved.ReadNumber(kNumRequests, 0, kMaxRequests, &num_requests));
    if (splits_ != nullptr) {
      int64_t num_pending = 0;
      TF_RETURN_IF_ERROR(
          saved.ReadNumber(kNumPending, 0, kMaxPending, &num_pending));
      std::deque<int64_t> pending;
      for (int64_t i = 0; i < num_pending; ++i) {
        TF_RETURN_IF_ERROR(saved.ReadNumber(absl::StrCat(kPending, "_", i), 0,
                                            num_records_ - 1,
                                            &pending.emplace_back()));
      }
      TF_RETURN_IF_ERROR(splits_->Restore(
          [this](const std::string& key) { return full_name(key); }, reader));
      pending_ = std::move(pending);
    }
    position_ = position;
    last_wanted_ = position - 1;
    num_requests_ = num_requests;
    return absl::OkStatus();
  }

 private:
  void Start(IteratorContext* ctx, NextRecord next, bool may_wait = true)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    workers_.Stop();
    IteratorContext::Params params(ctx);
    params.cancellation_manager = workers_.cancellation_manager();
    // Else the mapper would live as long as the iterator.
    params.index_mapper = nullptr;
    workers_ctx_.emplace(std::move(params));
    work_ = std::make_unique<RecordWork>(dataset()->index_, since_,
                                         std::move(next), may_wait);
    OrderedWorkers::Options options =
        WorkerOptions(ctx, dataset()->arguments_.num_threads(), "true", {});
    // A mapper that was asked too far ahead waits until earlier records are
    // taken, and it is the consumer that takes them.
    options.consumer_helps = !may_wait;
    // A symbolic checkpoint is taken with each element: nothing may be read
    // ahead.
    if (splits_ != nullptr && ctx->symbolic_checkpoint()) options.max_calls = 0;
    workers_.Start(options, work_.get(), &*workers_ctx_, nullptr);
  }

  // Makes the workers read `wanted` and the records that are likely to follow.
  void Plan(IteratorContext* ctx, int64_t wanted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int64_t step = wanted - last_wanted_;
    const bool regular = step == last_step_;
    last_wanted_ = wanted;
    last_step_ = step;
    const int64_t ahead = wanted - last_read_ - plan_step_;
    if (IsRunning() && (!regular || step == plan_step_) && ahead >= 0 &&
        ahead % plan_step_ == 0 && ahead / plan_step_ <= kMostPassed) {
      return;
    }
    plan_step_ = regular ? step : 1;
    last_read_ = wanted - plan_step_;
    Start(ctx, RecordsInOrder(num_records_, wanted, plan_step_),
          /*may_wait=*/false);
  }

  absl::Status NextSplit(IteratorContext* ctx, std::vector<Tensor>* out_tensors,
                         bool* end_of_sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!pending_.empty()) {
      const int64_t record = pending_.front();
      pending_.pop_front();
      out_tensors->resize(1);
      absl::Status status =
          ReadTensor(*dataset()->index_, record, since_, &out_tensors->front());
      if (!status.ok()) out_tensors->clear();
      return status;
    }
    if (!IsRunning()) {
      Start(ctx, SplitRecords(num_records_, splits_));
    }
    return Next(ctx, out_tensors, end_of_sequence);
  }

  absl::Status Next(IteratorContext* ctx, std::vector<Tensor>* out_tensors,
                    bool* end_of_sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    out_tensors->clear();
    std::unique_ptr<RecordPiece> record;
    int64_t waited_nanos;
    TF_RETURN_IF_ERROR(NextPiece(ctx, &record, &waited_nanos));
    if (record == nullptr) {
      *end_of_sequence = true;
      return absl::OkStatus();
    }
    last_read_ = record->index;
    num_requests_ = record->num_requests;
    if (record->status.ok()) out_tensors->push_back(std::move(record->tensor));
    return record->status;
  }

  absl::Status SaveSplits(
      IteratorStateWriter* writer,
      const std::vector<const OrderedWorkers::Piece*>& ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<int64_t> pending(pending_.begin(), pending_.end());
    for (const OrderedWorkers::Piece* piece : ready) {
      const int64_t index = static_cast<const RecordPiece*>(piece)->index;
      if (index >= 0) pending.push_back(index);
    }
    for (size_t i = 0; i < pending.size(); ++i) {
      TF_RETURN_IF_ERROR(writer->WriteScalar(
          prefix(), absl::StrCat(kPending, "_", i), pending[i]));
    }
    TF_RETURN_IF_ERROR(writer->WriteScalar(
        prefix(), kNumPending, static_cast<int64_t>(pending.size())));
    return splits_->Save(
        [this](const std::string& key) { return full_name(key); }, writer);
  }

  const int64_t num_records_;

  // When the iterator began.
  int64_t since_ ABSL_GUARDED_BY(mu_) = 0;
  // In order: the next record to hand out.
  int64_t position_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t last_wanted_ ABSL_GUARDED_BY(mu_) = -1;
  int64_t last_step_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t plan_step_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t last_read_ ABSL_GUARDED_BY(mu_) = -1;
  // By a mapper: how often it was asked up to the record handed out last.
  int64_t num_requests_ ABSL_GUARDED_BY(mu_) = 0;
  // By splits: what provides them, else null; and the records of a checkpoint
  // that were not yet handed out.
  std::shared_ptr<SplitProvider> splits_ ABSL_GUARDED_BY(mu_);
  std::deque<int64_t> pending_ ABSL_GUARDED_BY(mu_);
  std::optional<IteratorContext> workers_ctx_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<RecordWork> work_ ABSL_GUARDED_BY(mu_);
};

class TfrecordDatasetOp : public DatasetOpKernel {
 public:
  using DatasetOpKernel::DatasetOpKernel;

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase** output) override {
    TfrecordArguments arguments;
    OP_REQUIRES_OK(
        ctx, ParseVectorArgument<tstring>(ctx, "files", &arguments.files));
    OP_REQUIRES_OK(ctx,
                   GetScalars(ctx, "index_dir", &arguments.index_dir, "index",
                              &arguments.index, "num_parallel_reads",
                              &arguments.num_parallel_reads));
    OP_REQUIRES_OK(ctx, CheckParallelCalls(arguments.num_parallel_reads,
                                           "num_parallel_reads"));
    IndexOptions options;
    options.directory = arguments.index_dir;
    options.num_threads = static_cast<int>(arguments.num_threads());
    options.access = AccessTo;
    absl::Status status;
    // A rewrite of the graph makes the dataset again, from the same files.
    std::shared_ptr<const RecordIndex> index =
        Registry<const RecordIndex>::Global().GetOrCreate(
            arguments.index, [&]() -> std::shared_ptr<const RecordIndex> {
              const std::vector<std::string> paths(arguments.files.begin(),
                                                   arguments.files.end());
              auto made = LoadOrMakeIndex(paths, options);
              if (!made.ok()) status = Printable(made.status());
              return made.ok() ? *std::move(made) : nullptr;
            });
    OP_REQUIRES_OK(ctx, status);
    *output = new IteratedBy<TfrecordDataset, TfrecordIterator>(
        ctx, std::move(arguments), std::move(index));
  }
};

REFURBISH_TF_KERNEL("TfrecordDataset", TfrecordDatasetOp);

}  // namespace
}  // namespace refurbish_tf
