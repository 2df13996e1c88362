// `cached`: a source by index whose elements are kept in a store, as many as it
// has room for. The result can also be read by index.
//
// The source is always read through the index mapper of a `PositionPlan`, which
// leaves out kept elements. So the source's threads read ahead only what is
// missing. A checkpoint is a position, from which the source is read again. The
// source is also read again after an error, because it may have read a part of
// an element, as `batch` does.
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/cached/cached_source.h"
#include "refurbish_tf/cc/cached/position_plan.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/kernels/source_checks/check_source.h"
#include "refurbish_tf/cc/kernels/source_checks/source_probe.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"

namespace refurbish_tf {
namespace {

constexpr char kCached[] = "cached";

// The limit of a position in a checkpoint. It may exceed the number of
// elements: with an index mapper, some positions belong to other sources.
constexpr int64_t kMostPositions = int64_t{1} << 62;

class CachedDataset : public UnaryDataset {
 public:
  CachedDataset(OpKernelContext* ctx, const DatasetBase* input,
                int64_t num_parallel_reads,
                std::shared_ptr<CachedSource> elements)
      : UnaryDataset(ctx, input, "Cached"),
        num_parallel_reads_(num_parallel_reads),
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

 private:
  friend class CachedIterator;

  template <class Context>
  absl::Status GetAt(Context ctx, int64_t index,
                     std::vector<Tensor>* element) const {
    TF_RETURN_IF_ERROR(CheckRandomAccessCompatible(index));
    if (elements_->Get(index, element)) return absl::OkStatus();
    TF_RETURN_IF_ERROR(input_->Get(ctx, index, element));
    // A store on disk also needs a checksum, which is not computed here, so
    // only a store in memory keeps the element.
    if (elements_->store().source_sums() == nullptr) {
      elements_->Put(index, /*sum=*/0, element);
    }
    return absl::OkStatus();
  }

  // How many threads the source has. If 0 or -1, it uses tf.data's pool.
  const int64_t num_parallel_reads_;
  const std::shared_ptr<CachedSource> elements_;
};

// `mu_` is held while the input and the store are read, as in every iterator of
// tf.data. Lock order: `mu_`, then the plan's lock, then the store's locks. The
// plan's lock is not held while an index mapper takes its locks.
class CachedIterator : public DatasetIterator<CachedDataset> {
 public:
  using DatasetIterator<CachedDataset>::DatasetIterator;

  bool SymbolicCheckpointCompatible() const override { return true; }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    Begin(ctx);
    PositionPlan::Next next;
    TF_RETURN_IF_ERROR(plan_->GetNext(&next));
    switch (next.from) {
      case PositionPlan::From::kStore:
        if (plan_->Load(&next)) {
          *out_tensors = std::move(next.element);
          return absl::OkStatus();
        }
        TF_RETURN_IF_ERROR(ReadAlone(ctx, next.index, out_tensors));
        break;
      case PositionPlan::From::kEnd:
        *end_of_sequence = true;
        return ReadInput(ctx, nullptr);
      case PositionPlan::From::kSource:
        TF_RETURN_IF_ERROR(ReadInput(ctx, out_tensors));
        break;
    }
    return Keep(ctx, next.index, out_tensors);
  }

 protected:
  std::shared_ptr<model::Node> CreateNode(
      IteratorContext*, model::Node::Args args) const override {
    return model::MakeUnknownRatioNode(std::move(args));
  }

  absl::Status SkipInternal(IteratorContext* ctx, int num_to_skip,
                            bool* end_of_sequence, int* num_skipped) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (ctx->index_mapper() != nullptr) {
      return DatasetIterator<CachedDataset>::SkipInternal(
          ctx, num_to_skip, end_of_sequence, num_skipped);
    }
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    Begin(ctx);
    const auto num_elements =
        static_cast<size_t>(dataset()->elements_->num_elements());
    for (*num_skipped = 0; *num_skipped < num_to_skip; ++*num_skipped) {
      if (plan_->position() >= num_elements) {
        *end_of_sequence = true;
        return ReadInput(ctx, nullptr);
      }
      std::vector<Tensor> unwanted;
      // The error of a skipped element does not matter, but after an error the
      // input must be made again.
      if (plan_->PassOver() && !ReadInput(ctx, &unwanted).ok()) Begin(ctx);
    }
    return absl::OkStatus();
  }

  absl::Status SaveInternal(SerializationContext*,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const int64_t position = plan_ == nullptr ? first_ : plan_->position();
    return writer->WriteScalar(prefix(), kPosition, position);
  }

  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const CheckpointReader saved(kCached, prefix(), ctx, reader);
    int64_t position = 0;
    if (const std::optional<int64_t> count = ctx->restored_element_count()) {
      // With a global shuffle, TensorFlow says how many elements the consumer
      // has. The saved position also counts what a later stage had read ahead.
      position = *count;
    } else {
      TF_RETURN_IF_ERROR(
          saved.ReadNumber(kPosition, 0, kMostPositions, &position));
    }
    input_.reset();
    plan_.reset();
    input_failed_ = false;
    first_ = position;
    return absl::OkStatus();
  }

 private:
  // Makes the plan at the first request, which brings the index mapper.
  void Begin(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (input_failed_) {
      // The input is destroyed here and not when it fails, because its threads
      // may wait in the index mapper until the consumer has the error.
      input_.reset();
      first_ = plan_->position();
      plan_.reset();
      input_failed_ = false;
    }
    if (plan_ != nullptr) return;
    PositionPlan::Mapper mapper = ctx->index_mapper();
    if (mapper == nullptr) mapper = [](size_t position) { return position; };
    plan_ = std::make_shared<PositionPlan>(dataset()->elements_,
                                           std::move(mapper), first_);
  }

  // Reads the input's next element or, if `element` is null, its end. The end
  // is read so that the threads of the input finish, and so that a longer
  // source is noticed even if every element came from the store.
  absl::Status ReadInput(IteratorContext* ctx, std::vector<Tensor>* element)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool at_end = element == nullptr;
    std::vector<Tensor> past_the_end;
    if (at_end) element = &past_the_end;
    bool end = false;
    absl::Status status = MakeInput(ctx);
    if (status.ok()) status = input_->GetNext(&*mapped_, element, &end);
    if (status.ok() && end != at_end) {
      status = OtherLength(end ? "fewer" : "more");
    }
    input_failed_ = !status.ok();
    return status;
  }

  absl::Status MakeInput(IteratorContext* ctx)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (input_ == nullptr) {
      IteratorContext::Params params = InputParams(ctx);
      const int64_t reads = dataset()->num_parallel_reads_;
      if (reads > 0) {
        params.runner = [this, reads](std::function<void()> run) {
          std::call_once(has_pool_, [this, reads] {
            pool_ = std::make_unique<tensorflow::thread::ThreadPool>(
                tensorflow::Env::Default(), kCached, reads);
          });
          pool_->Schedule(std::move(run));
        };
        params.runner_threadpool_size = static_cast<int>(reads);
      }
      IteratorContext unmapped(params);
      TF_RETURN_IF_ERROR(
          dataset()->input()->MakeIterator(&unmapped, this, prefix(), &input_));
      // Made once: copying a context takes as long as reading a small element.
      params.index_mapper = [plan = plan_](size_t n) {
        return plan->Request(n);
      };
      mapped_.emplace(std::move(params));
    }
    return absl::OkStatus();
  }

  // Reads one element that the input leaves out, with an input of its own. This
  // is needed only if the element's record on disk is damaged or was removed.
  absl::Status ReadAlone(IteratorContext* ctx, uint32_t index,
                         std::vector<Tensor>* element)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    IteratorContext::Params params = InputParams(ctx);
    IteratorContext unmapped(params);
    std::unique_ptr<IteratorBase> input;
    TF_RETURN_IF_ERROR(dataset()->input()->MakeIterator(
        &unmapped, nullptr, absl::StrCat(prefix(), "Again"), &input));
    params.index_mapper = [index](size_t position) -> absl::StatusOr<size_t> {
      if (position == 0) return index;
      return OutOfRange("Only one element is read.");
    };
    IteratorContext mapped(std::move(params));
    bool end = false;
    TF_RETURN_IF_ERROR(input->GetNext(&mapped, element, &end));
    return end ? OtherLength("fewer") : absl::OkStatus();
  }

  absl::Status Keep(IteratorContext* ctx, uint32_t index,
                    std::vector<Tensor>* element)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CachedSource& elements = *dataset()->elements_;
    uint32_t sum = 0;
    if (elements.store().source_sums() != nullptr &&
        elements.source_checks().checks()) {
      sum = ElementChecksum(*element);
      TF_RETURN_IF_ERROR(CheckElement(&elements.source_checks(), kCached,
                                      dataset()->input(), ctx, index, sum));
    }
    elements.Put(index, sum, element);
    return absl::OkStatus();
  }

  absl::Status OtherLength(const char* comparison) const {
    return DataLoss("The source of cached yields ", comparison,
                    " elements than requested, although it should have ",
                    dataset()->elements_->num_elements(),
                    ". Use a source that is the same in every epoch.");
  }

  // The parameters for making an input, without an index mapper. The input's
  // threads must not begin to read before a request brings one.
  static IteratorContext::Params InputParams(IteratorContext* ctx) {
    IteratorContext::Params params(ctx);
    params.warm_start = false;
    params.index_mapper = nullptr;
    params.symbolic_checkpoint = false;
    return params;
  }

  absl::Mutex mu_;
  // The position at which the plan begins.
  int64_t first_ ABSL_GUARDED_BY(mu_) = 0;
  // Whether the plan and the input must be made again.
  bool input_failed_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<PositionPlan> plan_ ABSL_GUARDED_BY(mu_);
  // The input's own threads, if any. Made when its first function runs.
  std::once_flag has_pool_;
  std::unique_ptr<tensorflow::thread::ThreadPool> pool_;
  // The context in which the input is read, with the plan as index mapper.
  std::optional<IteratorContext> mapped_ ABSL_GUARDED_BY(mu_);
  // The last member, to be destroyed first: its threads use the others.
  std::unique_ptr<IteratorBase> input_ ABSL_GUARDED_BY(mu_);
};

absl::Status CheckIsByIndex(const DatasetBase* input,
                            const SourceFacts& facts) {
  if (facts.hinted) {
    return InvalidArgument(
        "The source of cached has a shard with SHARD_HINT, which is filled in "
        "later, so its elements have no positions yet. Shard after cached.");
  }
  const DatasetBase* const stream = FirstStream(input);
  if (stream == nullptr) return absl::OkStatus();
  return InvalidArgument(
      "The source of cached must be read by index, with a known number of "
      "elements, but ",
      stream->type_string(),
      " makes it a stream. Use Dataset.cache(), which keeps all elements of a "
      "stream or none; or read by index: TFRecord files with "
      "rtf.sources.tfrecord, Python objects with rtf.sources.data_source.");
}

absl::StatusOr<DatasetBase*> MakeCached(OpKernelContext* ctx,
                                        DatasetBase* input) {
  std::string stage, store_name;
  int64_t max_bytes, num_parallel_reads;
  TF_RETURN_IF_ERROR(GetScalars(ctx, "stage", &stage, "store", &store_name,
                                "max_bytes", &max_bytes, "num_parallel_reads",
                                &num_parallel_reads));
  TF_RETURN_IF_ERROR(
      CheckParallelCalls(num_parallel_reads, "num_parallel_reads"));
  SourceFacts facts;
  TF_RETURN_IF_ERROR(CheckSource(ctx, input, kCached, &facts));
  TF_RETURN_IF_ERROR(CheckIsByIndex(input, facts));
  TF_ASSIGN_OR_RETURN(std::shared_ptr<SampleStore> store,
                      SampleStore::GetOrCreate(store_name, max_bytes));
  std::shared_ptr<CachedSource> elements = CachedSource::GetOrCreate(stage);
  TF_RETURN_IF_ERROR(elements->Configure(
      input->Cardinality(CardinalityOptions()), facts.shard.names,
      std::move(store), {input->output_dtypes(), input->output_shapes()}));
  SampleStore& kept = elements->store();
  SourceChecks& checks = elements->source_checks();
  if (kept.source_sums() != nullptr &&
      checks.Begin(facts.kind, kept.source_sums(),
                   Platform(facts.computes_floats), Shard()) &&
      checks.checks()) {
    TF_RETURN_IF_ERROR(ProbeSource(ctx, input, kCached, &checks, kept.store()));
  }
  return new IteratedBy<CachedDataset, CachedIterator>(
      ctx, input, num_parallel_reads, std::move(elements));
}

REFURBISH_TF_KERNEL("CachedDataset", UnaryDatasetOp<MakeCached>);

}  // namespace
}  // namespace refurbish_tf
