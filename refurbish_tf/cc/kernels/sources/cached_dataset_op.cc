// The elements of a source by index, of which as many are kept as a store has
// room for. It stays a source by index.
//
// The source is always read through an index mapper. With one reader that is
// the mapper of a `PositionPlan`, which leaves out what is kept: threads of the
// source read ahead just what is missing. With several each has an input of its
// own (`LoneInput`), as a source may read one element after the other. A
// checkpoint is a position: the source is read anew from there. So it is after
// an error of the source, which may have read a part of an element then, as
// `batch` does.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/source_checks/check_source.h"
#include "refurbish_tf/cc/kernels/source_checks/random_access.h"
#include "refurbish_tf/cc/kernels/source_checks/source_probe.h"
#include "refurbish_tf/cc/kernels/sources/cached_reads.h"
#include "refurbish_tf/cc/stage/cached_source.h"
#include "refurbish_tf/cc/stage/position_plan.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"

namespace refurbish_tf {
namespace {

constexpr char kCachedType[] = "Cached";

// With an index mapper there may be more positions than elements, as some
// belong to other sources.
constexpr int64_t kMostPositions = int64_t{1} << 62;

// With several readers, elements that are skipped are read and dropped if they
// are so few; for more of them the readers begin anew.
constexpr int kMostReadPast = 16;

struct CachedArguments {
  std::string stage;
  std::string store;
  int64_t max_bytes;
  int64_t num_parallel_reads;
};

class CachedDataset : public UnaryDataset {
 public:
  CachedDataset(OpKernelContext* ctx, const DatasetBase* input,
                CachedArguments arguments,
                std::shared_ptr<CachedSource> elements)
      : UnaryDataset(ctx, input, kCachedType),
        arguments_(std::move(arguments)),
        elements_(std::move(elements)) {}

  absl::Status RandomIndexingCompatible() const override {
    return input_->RandomIndexingCompatible();
  }
  absl::Status Get(OpKernelContext* ctx, int64_t index,
                   std::vector<Tensor>* out_tensors) const override {
    return GetAt(ctx, index, out_tensors);
  }
  absl::Status Get(AnyContext ctx, int64_t index,
                   std::vector<Tensor>* out_tensors) const override {
    return GetAt(ctx, index, out_tensors);
  }

 protected:
  absl::Status AsGraphDefInternal(SerializationContext* ctx,
                                  DatasetGraphDefBuilder* b,
                                  Node** output) const override {
    return OpWriter(ctx, b)
        .Input(input_)
        .Scalar(arguments_.stage)
        .Scalar(arguments_.store)
        .Scalar(arguments_.max_bytes)
        .Scalar(arguments_.num_parallel_reads)
        .Write(this, output);
  }

 private:
  friend class CachedIterator;

  template <class Context>
  absl::Status GetAt(Context ctx, int64_t index,
                     std::vector<Tensor>* element) const {
    TF_RETURN_IF_ERROR(CheckRandomAccessCompatible(index));
    if (elements_->Get(index, element)) return absl::OkStatus();
    TF_RETURN_IF_ERROR(input_->Get(ctx, index, element));
    // On disk an element has a checksum by which another source is found.
    if (elements_->store().disk() == nullptr) {
      elements_->Put(index, /*sum=*/0, element);
    }
    return absl::OkStatus();
  }

  const CachedArguments arguments_;
  const std::shared_ptr<CachedSource> elements_;
};

// `mu_` is held while the input and the store are read, as in every iterator of
// tf.data while it reads its input. Lock order: `mu_`, then those of the
// workers, then the plan's; those of an index mapper and of the store are taken
// with the plan's not held.
class CachedIterator : public WorkersIterator<CachedDataset> {
 public:
  using WorkersIterator<CachedDataset>::WorkersIterator;

  ~CachedIterator() override {
    workers_.Cancel();
    workers_.Stop();
  }

  absl::Status Initialize(IteratorContext* ctx) override {
    return workers_.Initialize(ctx);
  }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    Begin(ctx);
    PositionPlan::Next next;
    absl::Status status = IsRunning() ? NextRead(ctx, &next) : ReadNext(&next);
    *end_of_sequence = status.ok() && next.from == PositionPlan::From::kEnd;
    if (*end_of_sequence) return ReadToEnd();
    *out_tensors = std::move(next.element);
    return status;
  }

 protected:
  std::shared_ptr<model::Node> CreateNode(
      IteratorContext*, model::Node::Args args) const override {
    return model::MakeUnknownRatioNode(std::move(args));
  }

  absl::Status SkipInternal(IteratorContext* ctx, int num_to_skip,
                            bool* end_of_sequence, int* num_skipped) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    bool passes;
    {
      absl::MutexLock lock(&mu_);
      passes = IsRunning() && num_to_skip <= kMostReadPast;
    }
    if (ctx->index_mapper() != nullptr || passes) {
      return WorkersIterator::SkipInternal(ctx, num_to_skip, end_of_sequence,
                                           num_skipped);
    }
    absl::MutexLock lock(&mu_);
    const auto num_elements =
        static_cast<size_t>(dataset()->elements_->num_elements());
    if (dataset()->arguments_.num_parallel_reads != 1) {
      const size_t left = num_elements - std::min(position_, num_elements);
      *num_skipped = std::min<size_t>(num_to_skip, left);
      *end_of_sequence = *num_skipped < num_to_skip;
      Reset(position_ + *num_skipped);
      if (!*end_of_sequence) return absl::OkStatus();
      Begin(ctx);
      return ReadToEnd();
    }
    *end_of_sequence = false;
    Begin(ctx);
    for (*num_skipped = 0; *num_skipped < num_to_skip; ++*num_skipped) {
      if (plan_->position() >= num_elements) {
        *end_of_sequence = true;
        return ReadToEnd();
      }
      std::vector<Tensor> unwanted;
      const bool was_asked_for = plan_->PassOver();
      position_ = plan_->position();
      if (was_asked_for) TF_RETURN_IF_ERROR(ReadInput(&unwanted));
    }
    return absl::OkStatus();
  }

  absl::Status SaveInternal(SerializationContext*,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return writer->WriteScalar(prefix(), kPosition,
                               static_cast<int64_t>(position_));
  }

  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const CheckpointReader saved(kCached, prefix(), ctx, reader);
    int64_t position = 0;
    if (const std::optional<int64_t> count = ctx->restored_element_count()) {
      // A globally shuffled pipeline knows better: what a stage behind has read
      // ahead it drops.
      position = *count;
    } else {
      TF_RETURN_IF_ERROR(
          saved.ReadNumber(kPosition, 0, kMostPositions, &position));
    }
    Reset(position);
    return absl::OkStatus();
  }

 private:
  // Begins anew at a position, when the next element is asked for.
  void Reset(size_t position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    workers_.Stop();
    input_.reset();
    plan_.reset();
    input_failed_ = false;
    position_ = position;
  }

  // Makes the plan, when the first element is asked for: only then is an index
  // mapper known.
  void Begin(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // Not when it failed: its threads may wait for the index mapper until the
    // one that reads it knows of the error.
    if (input_failed_) Reset(position_);
    if (plan_ != nullptr) return;
    PositionPlan::Mapper mapper = ctx->index_mapper();
    if (mapper == nullptr) mapper = [](size_t position) { return position; };
    plan_ = std::make_shared<PositionPlan>(dataset()->elements_,
                                           std::move(mapper), position_);
    // A thread of an input must not begin to read before the first request
    // comes with an index mapper.
    IteratorContext::Params params(ctx);
    params.warm_start = false;
    params.index_mapper = nullptr;
    params.symbolic_checkpoint = false;
    params.cancellation_manager = workers_.cancellation_manager();
    unmapped_.emplace(params);
    reads_.emplace(dataset()->input(), prefix(), dataset()->elements_, plan_,
                   *unmapped_);
    if (dataset()->arguments_.num_parallel_reads == 1) return;
    OrderedWorkers::Options options = WorkerOptions(
        ctx, NumReads(dataset()->arguments_.num_parallel_reads), "true", {});
    // The mapper may wait for the consumer.
    options.consumer_helps = false;
    workers_.Start(options, &*reads_, &*unmapped_, nullptr);
  }

  // The next element of several readers.
  absl::Status NextRead(IteratorContext* ctx, PositionPlan::Next* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::unique_ptr<CachedPiece> piece;
    int64_t waited_nanos;
    TF_RETURN_IF_ERROR(NextPiece(ctx, &piece, &waited_nanos));
    // Nothing comes after the end.
    if (piece == nullptr) return absl::OkStatus();
    *next = std::move(piece->next);
    position_ = piece->position;
    return piece->status;
  }

  // The next element of one reader.
  absl::Status ReadNext(PositionPlan::Next* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    TF_RETURN_IF_ERROR(plan_->GetNext(next));
    position_ = plan_->position();
    if (next->from == PositionPlan::From::kStore) return reads_->Get(next);
    if (next->from == PositionPlan::From::kEnd) return absl::OkStatus();
    TF_RETURN_IF_ERROR(ReadInput(&next->element));
    return reads_->Keep(next);
  }

  absl::Status ReadInput(std::vector<Tensor>* element)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    bool end = false;
    absl::Status status = MakeInput();
    if (status.ok()) status = input_->GetNext(&*mapped_, element, &end);
    if (status.ok() && end) {
      status = reads_->OtherLength("fewer than");
    }
    input_failed_ = !status.ok();
    return status;
  }

  // Does nothing if there is one. `first`: how many of the elements that are to
  // be read others have read.
  absl::Status MakeInput(size_t first = 0) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (input_ != nullptr) return absl::OkStatus();
    TF_RETURN_IF_ERROR(
        dataset()->input()->MakeIterator(&*unmapped_, this, prefix(), &input_));
    // Once: copying a context takes as long as reading a small element.
    IteratorContext::Params params(&*unmapped_);
    params.index_mapper = [plan = plan_, first](size_t n) {
      return plan->Request(first + n);
    };
    mapped_.emplace(std::move(params));
    return absl::OkStatus();
  }

  // As a stage does with its source, so that what reads ahead there ends.
  absl::Status ReadToEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    bool end = false;
    std::vector<Tensor> past_the_end;
    // An input of which nothing was read may tell that it has grown.
    absl::Status status = MakeInput(plan_->num_to_read());
    if (status.ok()) status = input_->GetNext(&*mapped_, &past_the_end, &end);
    if (status.ok() && !end) {
      status = reads_->OtherLength("more than");
    }
    input_failed_ = !status.ok();
    return status;
  }

  // Of the next element that is to be handed out.
  size_t position_ ABSL_GUARDED_BY(mu_) = 0;
  // The plan and the input are no longer used.
  bool input_failed_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<PositionPlan> plan_ ABSL_GUARDED_BY(mu_);
  // The contexts in which inputs are made, and in which `input_` is read.
  std::optional<IteratorContext> unmapped_ ABSL_GUARDED_BY(mu_);
  std::optional<IteratorContext> mapped_ ABSL_GUARDED_BY(mu_);
  std::optional<CachedReads> reads_ ABSL_GUARDED_BY(mu_);
  // Of one reader. Destroyed first.
  std::unique_ptr<IteratorBase> input_ ABSL_GUARDED_BY(mu_);
};

class CachedDatasetOp : public UnaryDatasetOpKernel {
 public:
  using UnaryDatasetOpKernel::UnaryDatasetOpKernel;

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override {
    CachedArguments arguments;
    OP_REQUIRES_OK(
        ctx, GetScalars(ctx, "stage", &arguments.stage, "store",
                        &arguments.store, "max_bytes", &arguments.max_bytes,
                        "num_parallel_reads", &arguments.num_parallel_reads));
    OP_REQUIRES_OK(ctx, CheckParallelCalls(arguments.num_parallel_reads,
                                           "num_parallel_reads"));
    SourceFacts facts;
    OP_REQUIRES_OK(ctx, CheckSource(ctx, input, kCached, &facts));
    OP_REQUIRES_OK(ctx, CheckIsByIndex(input, facts));
    absl::StatusOr<std::shared_ptr<SampleStore>> store =
        SampleStore::GetOrCreate(arguments.store, arguments.max_bytes);
    OP_REQUIRES_OK(ctx, store.status());
    std::shared_ptr<CachedSource> elements =
        CachedSource::GetOrCreate(arguments.stage);
    OP_REQUIRES_OK(
        ctx, elements->Configure(
                 input->Cardinality(CardinalityOptions()), facts.shard.names,
                 *store, {input->output_dtypes(), input->output_shapes()}));
    DiskStore* const disk = elements->store().disk();
    SourceChecks& checks = elements->source_checks();
    if (disk != nullptr &&
        checks.Begin(facts.kind, &disk->source_sums(),
                     Platform(facts.computes_floats), Shard()) &&
        checks.checks()) {
      OP_REQUIRES_OK(ctx, ProbeSource(ctx, input, kCached, &checks, *disk));
    }
    *output = new IteratedBy<CachedDataset, CachedIterator>(
        ctx, input, std::move(arguments), std::move(elements));
  }

 private:
  static absl::Status CheckIsByIndex(const DatasetBase* input,
                                     const SourceFacts& facts) {
    if (facts.hinted) {
      return absl::InvalidArgumentError(
          "The source of cached has a shard with SHARD_HINT, which is filled in "
          "later, so its elements have no positions yet. Shard after cached.");
    }
    const DatasetBase* const stream = FirstStream(input);
    if (stream == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "The source of cached must be one that is read by index, with a known "
        "number of elements, but ",
        stream->type_string(),
        " makes it a stream. Use Dataset.cache(), which keeps all elements of a "
        "stream or none; or read by index: rtf.sources.tfrecord reads TFRecord "
        "files so, rtf.sources.data_source Python objects."));
  }
};

REFURBISH_TF_KERNEL("CachedDataset", CachedDatasetOp);

}  // namespace
}  // namespace refurbish_tf
