// Data echoing with an adaptive factor, `echo(e=AUTOTUNE)`: repeats the newest
// element of the input while no newer one is ready.
//
// A fresh element that is ready is always yielded first. Otherwise the newest
// one is repeated; after `max_e` yields the iterator waits for the next. A
// thread of the iterator reads the input ahead.
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/counters.h"
#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/base/stopwatch.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/kernels/unary_dataset.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/dataset_options.pb.h"
#include "tensorflow/core/util/determinism.h"

namespace refurbish_tf {
namespace {

constexpr char kAdaptiveEchoType[] = "AdaptiveEcho";
constexpr char kMaxEchoingFactor[] = "max_echoing_factor";
constexpr char kStage[] = "stage";
constexpr char kNumBuffered[] = "num_buffered";
constexpr char kBuffered[] = "buffered";

// How many elements are read ahead of the newest one that was yielded. One is
// enough for the rate; the second spares the reading thread a wait when
// elements come in bursts.
constexpr size_t kBufferSize = 2;

// Counts what an iterator has yielded; may outlive the iterator.
struct EchoCounters : Counters {
  Count fresh{this, "fresh"};
  Count repeated{this, "repeated"};
  Count fresh_wait_nanos{this, "fresh_wait_nanos"};
};

// The counts of a stage, one entry for each iterator that was read.
class EchoStage {
 public:
  std::shared_ptr<EchoCounters> Begin() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    counters_.push_back(std::make_shared<EchoCounters>());
    return counters_.back();
  }

  std::vector<std::shared_ptr<const EchoCounters>> Counts() const
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return {counters_.begin(), counters_.end()};
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::shared_ptr<EchoCounters>> counters_ ABSL_GUARDED_BY(mu_);
};

class AdaptiveEchoDatasetOp : public UnaryDatasetOpKernel {
 public:
  using UnaryDatasetOpKernel::UnaryDatasetOpKernel;

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override;

 private:
  class Dataset;
};

class AdaptiveEchoDatasetOp::Dataset : public UnaryDataset {
 public:
  Dataset(OpKernelContext* ctx, const DatasetBase* input, std::string stage,
          int64_t max_factor)
      : UnaryDataset(ctx, input, kAdaptiveEchoType),
        stage_id_(std::move(stage)),
        max_factor_(max_factor),
        stage_(Registry<EchoStage>::Global().GetOrCreate(
            stage_id_, [] { return std::make_shared<EchoStage>(); })) {}

  int64_t CardinalityInternal(CardinalityOptions options) const override {
    const int64_t cardinality = input_->Cardinality(options);
    return cardinality <= 0 ? cardinality : kUnknownCardinality;
  }

 protected:
  std::unique_ptr<IteratorBase> MakeIteratorInternal(
      const std::string& prefix) const override;

  absl::Status AsGraphDefInternal(SerializationContext* ctx,
                                  DatasetGraphDefBuilder* b,
                                  Node** output) const override {
    Node* input = nullptr;
    TF_RETURN_IF_ERROR(b->AddInputDataset(ctx, input_, &input));
    Node* stage = nullptr;
    TF_RETURN_IF_ERROR(b->AddScalar(tstring(stage_id_), &stage));
    Node* max_factor = nullptr;
    TF_RETURN_IF_ERROR(b->AddScalar(max_factor_, &max_factor));
    return b->AddDataset(this, {input, stage, max_factor}, output);
  }

 private:
  class Iterator;

  const std::string stage_id_;
  const int64_t max_factor_;
  const std::shared_ptr<EchoStage> stage_;
};

// Lock order: `input_mu_` before `mu_`.
class AdaptiveEchoDatasetOp::Dataset::Iterator
    : public DatasetIterator<Dataset> {
 public:
  explicit Iterator(const Params& params) : DatasetIterator<Dataset>(params) {}

  ~Iterator() override {
    Cancel();
    if (deregister_fn_) deregister_fn_();
    // Joins the thread, which uses everything else.
    thread_.reset();
  }

  bool SymbolicCheckpointCompatible() const override { return true; }

  // For the profiler.
  TraceMeMetadata GetTraceMeMetadata() const override ABSL_LOCKS_EXCLUDED(mu_) {
    TraceMeMetadata metadata = {
        {"stage", dataset()->stage_id_},
        {"max_e", absl::StrCat(dataset()->max_factor_)}};
    absl::MutexLock lock(&mu_);
    if (counters_ != nullptr && counters_->fresh > 0) {
      const double fresh = counters_->fresh;
      metadata.push_back({"echoing_factor",
                          absl::StrCat((fresh + counters_->repeated) / fresh)});
    }
    return metadata;
  }

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(input_mu_, mu_) {
    if (ctx->options() != nullptr &&
        ctx->options()->optional_deterministic_case() ==
            tensorflow::data::Options::kDeterministic &&
        ctx->options()->deterministic()) {
      return absl::InvalidArgumentError(
          "e=AUTOTUNE repeats elements depending on timing, but the option "
          "deterministic=True asks for the same stream each time. Give echo a "
          "number as e, or leave the option at its default.");
    }
    // May have been set after the stage was built.
    if (tensorflow::OpDeterminismRequired()) {
      return absl::InvalidArgumentError(
          "e=AUTOTUNE repeats elements depending on timing, but "
          "tf.config.experimental.enable_op_determinism() or the environment "
          "variable TF_DETERMINISTIC_OPS asks for the same stream each time. "
          "Give echo a number as e, or turn op determinism off.");
    }
    TF_RETURN_IF_ERROR(tensorflow::RegisterCancellationCallback(
        ctx->cancellation_manager(), [this] { Cancel(); }, &deregister_fn_));
    IteratorContext::Params params(ctx);
    params.cancellation_manager = &cancellation_manager_;
    IteratorContext input_ctx(std::move(params));
    absl::MutexLock lock(&input_mu_);
    TF_RETURN_IF_ERROR(dataset()->input_->MakeIterator(&input_ctx, this,
                                                       prefix(), &input_impl_));
    ctx->MergeCheckpoint(input_ctx.checkpoint());
    return absl::OkStatus();
  }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (counters_ == nullptr) counters_ = dataset()->stage_->Begin();
    EnsureThread(ctx);
    *end_of_sequence = false;
    while (!cancelled_) {
      if (!buffer_.empty()) return TakeFresh(ctx, out_tensors);
      if (input_ended_) {
        newest_.clear();
        *end_of_sequence = true;
        return absl::OkStatus();
      }
      if (num_yields_ > 0 && num_yields_ < dataset()->max_factor_) {
        ++num_yields_;
        ++counters_->repeated;
        *out_tensors = newest_;
        return absl::OkStatus();
      }
      RecordStop(ctx);
      {
        Stopwatch wait(&counters_->fresh_wait_nanos);
        changed_.Wait(&mu_);
      }
      RecordStart(ctx);
    }
    return absl::CancelledError("Iteration was cancelled.");
  }

 protected:
  std::shared_ptr<model::Node> CreateNode(
      IteratorContext*, model::Node::Args args) const override {
    return model::MakeAsyncUnknownRatioNode(std::move(args), {});
  }

  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(input_mu_, mu_) {
    // A symbolic checkpoint is the input's, from when the newest element had
    // been read; elements read ahead are read again.
    if (ctx->symbolic_checkpoint()) return absl::OkStatus();
    absl::MutexLock input_lock(&input_mu_);
    absl::MutexLock lock(&mu_);
    TF_RETURN_IF_ERROR(SaveInput(ctx, writer, input_impl_));
    TF_RETURN_IF_ERROR(writer->WriteScalar(
        prefix(), kNumBuffered, static_cast<int64_t>(buffer_.size())));
    for (size_t k = 0; k < buffer_.size(); ++k) {
      TF_RETURN_IF_ERROR(SaveResult(
          writer, prefix(), absl::StrCat(kBuffered, "_", k), buffer_[k].read));
    }
    return absl::OkStatus();
  }

  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(input_mu_, mu_) {
    absl::MutexLock input_lock(&input_mu_);
    absl::MutexLock lock(&mu_);
    if (ctx->symbolic_checkpoint()) {
      return RestoreInput(ctx, reader, input_impl_);
    }
    // Everything is checked before anything is changed.
    std::deque<Buffered> buffer;
    TF_RETURN_IF_ERROR(ReadBuffer(ctx, reader, &buffer));
    TF_RETURN_IF_ERROR(RestoreInput(ctx, reader, input_impl_));
    buffer_ = std::move(buffer);
    for (const Buffered& buffered : buffer_) {
      if (buffered.read.status.ok()) {
        RecordBufferEnqueue(ctx, buffered.read.element);
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Buffered {
    Result read;
    MemoryCheckpoint checkpoint;
  };

  absl::Status ReadBuffer(IteratorContext* ctx, IteratorStateReader* reader,
                          std::deque<Buffered>* buffer) const {
    const CheckpointReader saved("echo", prefix(), ctx, reader);
    int64_t num_buffered = 0;
    TF_RETURN_IF_ERROR(
        saved.ReadNumber(kNumBuffered, 0, kBufferSize, &num_buffered));
    for (int64_t k = 0; k < num_buffered; ++k) {
      Buffered buffered{{}, MemoryCheckpoint(ctx->id_registry())};
      TF_RETURN_IF_ERROR(saved.ReadResult(
          absl::StrCat(kBuffered, "_", k), dataset()->output_dtypes(),
          dataset()->output_shapes(), &buffered.read));
      buffer->push_back(std::move(buffered));
    }
    return absl::OkStatus();
  }

  absl::Status TakeFresh(IteratorContext* ctx, std::vector<Tensor>* out_tensors)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Buffered buffered = std::move(buffer_.front());
    buffer_.pop_front();
    changed_.SignalAll();
    ctx->MergeCheckpoint(&buffered.checkpoint);
    if (!buffered.read.status.ok()) return buffered.read.status;
    RecordBufferDequeue(ctx, buffered.read.element);
    newest_ = std::move(buffered.read.element);
    num_yields_ = 1;
    ++counters_->fresh;
    *out_tensors = newest_;
    return absl::OkStatus();
  }

  void EnsureThread(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (thread_ != nullptr) return;
    IteratorContext::Params params(ctx);
    params.cancellation_manager = &cancellation_manager_;
    auto input_ctx = std::make_shared<IteratorContext>(std::move(params));
    thread_ = ctx->StartThread(
        "refurbish_tf_echo", [this, input_ctx] { ReadAhead(input_ctx.get()); });
  }

  void ReadAhead(IteratorContext* ctx) ABSL_LOCKS_EXCLUDED(input_mu_, mu_) {
    RecordStart(ctx);
    while (true) {
      {
        absl::MutexLock lock(&mu_);
        while (!cancelled_ && buffer_.size() >= kBufferSize) {
          RecordStop(ctx);
          changed_.Wait(&mu_);
          RecordStart(ctx);
        }
        if (cancelled_) break;
      }
      // Held until the element is in the buffer, so that a checkpoint misses no
      // element.
      absl::MutexLock input_lock(&input_mu_);
      std::vector<Tensor> element;
      bool end_of_sequence = false;
      absl::Status status =
          input_impl_->GetNext(ctx, &element, &end_of_sequence);
      absl::MutexLock lock(&mu_);
      changed_.SignalAll();
      if (status.ok() && end_of_sequence) {
        input_ended_ = true;
        break;
      }
      if (status.ok()) RecordBufferEnqueue(ctx, element);
      // After the merge the context's own checkpoint can take the next element.
      MemoryCheckpoint checkpoint(ctx->id_registry());
      checkpoint.Merge(ctx->checkpoint());
      buffer_.push_back(
          {{std::move(status), std::move(element)}, std::move(checkpoint)});
    }
    RecordStop(ctx);
  }

  void Cancel() ABSL_LOCKS_EXCLUDED(mu_) {
    cancellation_manager_.StartCancel();
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    changed_.SignalAll();
  }

  CancellationManager cancellation_manager_;
  std::function<void()> deregister_fn_;

  absl::Mutex input_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  std::unique_ptr<IteratorBase> input_impl_ ABSL_GUARDED_BY(input_mu_);

  mutable absl::Mutex mu_;
  absl::CondVar changed_;
  // Null until the first element is requested.
  std::shared_ptr<EchoCounters> counters_ ABSL_GUARDED_BY(mu_);
  std::deque<Buffered> buffer_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool input_ended_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Tensor> newest_ ABSL_GUARDED_BY(mu_);
  int64_t num_yields_ ABSL_GUARDED_BY(mu_) = 0;  // Of `newest_`.
  std::unique_ptr<Thread> thread_;
};

std::unique_ptr<IteratorBase>
AdaptiveEchoDatasetOp::Dataset::MakeIteratorInternal(
    const std::string& prefix) const {
  return std::make_unique<Iterator>(
      Iterator::Params{this, IteratorPrefix(prefix)});
}

void AdaptiveEchoDatasetOp::MakeDataset(OpKernelContext* ctx,
                                        DatasetBase* input,
                                        DatasetBase** output) {
  tstring stage;
  OP_REQUIRES_OK(ctx, ParseScalarArgument<tstring>(ctx, kStage, &stage));
  int64_t max_factor = 0;
  OP_REQUIRES_OK(
      ctx, ParseScalarArgument<int64_t>(ctx, kMaxEchoingFactor, &max_factor));
  OP_REQUIRES(ctx, max_factor >= 1,
              absl::InvalidArgumentError(absl::StrCat(
                  "max_e must be a whole number of at least 1, got ",
                  max_factor, ".")));
  *output = new Dataset(ctx, input, stage, max_factor);
}

absl::Status EchoCounts(OpKernelContext* ctx) {
  const std::shared_ptr<EchoStage> stage =
      Registry<EchoStage>::Global().Find(ctx->input(0).scalar<tstring>()());
  std::vector<NamedNumbers> iterators;
  if (stage != nullptr) {
    for (const auto& counts : stage->Counts()) {
      iterators.push_back(counts->Read());
    }
  }
  SetNamedRows(ctx, iterators);
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(
    Name("RefurbishTf>AdaptiveEchoDataset").Device(DEVICE_CPU),
    AdaptiveEchoDatasetOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>EchoCounts").Device(DEVICE_CPU),
                        FunctionOp<EchoCounts>);

}  // namespace
}  // namespace refurbish_tf
