// The upstream op of a refurbish stage: lets through just the samples that have
// to be prepared.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/check_source.h"
#include "refurbish_tf/cc/kernels/stage.h"
#include "refurbish_tf/cc/schedule/random.h"
#include "tensorflow/core/data/name_utils.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/op_requires.h"

namespace refurbish_tf {
namespace {

using tensorflow::DataTypeVector;
using tensorflow::Node;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;
using tensorflow::data::CardinalityOptions;
using tensorflow::data::DatasetBase;
using tensorflow::data::DatasetContext;
using tensorflow::data::DatasetIterator;
using tensorflow::data::IteratorBase;
using tensorflow::data::IteratorContext;
using tensorflow::data::IteratorStateReader;
using tensorflow::data::IteratorStateWriter;
using tensorflow::data::ParseScalarArgument;
using tensorflow::data::SerializationContext;
using tensorflow::data::TraceMeMetadata;
using tensorflow::data::UnaryDatasetOpKernel;

constexpr char kDatasetType[] = "StaleSamples";
constexpr char kOutputTypes[] = "output_types";
constexpr char kOutputShapes[] = "output_shapes";
constexpr char kStage[] = "stage";
constexpr char kSeed[] = "seed";
constexpr char kShuffleBufferSize[] = "shuffle_buffer_size";

class StaleSamplesDatasetOp : public UnaryDatasetOpKernel {
 public:
  explicit StaleSamplesDatasetOp(OpKernelConstruction* ctx)
      : UnaryDatasetOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kOutputTypes, &output_types_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kOutputShapes, &output_shapes_));
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override;

 private:
  class Dataset;

  DataTypeVector output_types_;
  std::vector<PartialTensorShape> output_shapes_;
};

// Whether the elements of `dataset` can be asked for in any order, by an index
// mapper, and some of them left out. `RandomIndexingCompatible` does not tell:
// `cache` and `take` promise more than their inputs can do, so does whatever has
// an infinite input, such as `enumerate`, and `assert_cardinality` counts. So this
// holds for what is known to keep the promise; everything else is read as a
// stream, which is always right.
bool SupportsRandomAccess(const DatasetBase* dataset) {
  static const auto* const kKnown = new std::unordered_set<std::string>{
      "BatchDataset",       "BatchDatasetV2",       "ConcatenateDataset",
      "MapDataset",         "OptionsDataset",       "ParallelBatchDataset",
      "ParallelMapDatasetV2", "PrefetchDataset",    "RangeDataset",
      "RefurbishTf>EchoDataset", "RepeatDataset",   "ShardDataset",
      "SkipDataset",        "TakeDataset",          "TensorDataset",
      "TensorSliceDataset", "ZipDataset"};
  if (kKnown->count(dataset->type_string()) == 0 ||
      !dataset->RandomIndexingCompatible().ok() ||
      dataset->Cardinality(CardinalityOptions()) < 0) {
    return false;
  }
  std::vector<const DatasetBase*> inputs;
  if (!dataset->InputDatasets(&inputs).ok()) return false;
  return std::all_of(inputs.begin(), inputs.end(), SupportsRandomAccess);
}

class StaleSamplesDatasetOp::Dataset : public DatasetBase {
 public:
  Dataset(OpKernelContext* ctx, const DatasetBase* input,
          std::shared_ptr<Stage> stage, int64_t seed,
          int64_t shuffle_buffer_size, bool hinted,
          const DataTypeVector& output_types,
          const std::vector<PartialTensorShape>& output_shapes)
      : DatasetBase(DatasetContext(ctx)),
        input_(input),
        stage_(std::move(stage)),
        seed_(seed),
        shuffle_buffer_size_(shuffle_buffer_size),
        hinted_(hinted),
        random_access_(SupportsRandomAccess(input)),
        with_seed_(output_types.size() ==
                   input->output_dtypes().size() + 2),
        output_types_(output_types),
        output_shapes_(output_shapes) {
    input_->Ref();
    stage_->SetRandomAccess(random_access_);
  }

  ~Dataset() override { input_->Unref(); }

  const DataTypeVector& output_dtypes() const override { return output_types_; }

  const std::vector<PartialTensorShape>& output_shapes() const override {
    return output_shapes_;
  }

  std::string DebugString() const override {
    return tensorflow::data::name_utils::DatasetDebugString(kDatasetType);
  }

  // That of the source, which is what the op downstream needs to know. How many
  // elements come out depends on the epoch.
  int64_t CardinalityInternal(CardinalityOptions options) const override {
    // What `shard` says of itself before it is filled in means nothing.
    return hinted_ ? tensorflow::data::kUnknownCardinality
                   : input_->Cardinality(options);
  }

  absl::Status InputDatasets(
      std::vector<const DatasetBase*>* inputs) const override {
    inputs->push_back(input_);
    return absl::OkStatus();
  }

  absl::Status CheckExternalState() const override {
    return input_->CheckExternalState();
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
    TF_RETURN_IF_ERROR(b->AddScalar(tstring(stage_->id()), &stage));
    Node* seed = nullptr;
    TF_RETURN_IF_ERROR(b->AddScalar(seed_, &seed));
    Node* shuffle_buffer_size = nullptr;
    TF_RETURN_IF_ERROR(
        b->AddScalar(shuffle_buffer_size_, &shuffle_buffer_size));
    return b->AddDataset(this, {input, stage, seed, shuffle_buffer_size},
                         output);
  }

 private:
  class Iterator;

  const DatasetBase* const input_;
  const std::shared_ptr<Stage> stage_;
  const int64_t seed_;
  const int64_t shuffle_buffer_size_;
  const bool hinted_;  // The source has a shard that is not filled in.
  const bool random_access_;
  const bool with_seed_;
  const DataTypeVector output_types_;
  const std::vector<PartialTensorShape> output_shapes_;
};

class StaleSamplesDatasetOp::Dataset::Iterator
    : public DatasetIterator<Dataset> {
 public:
  explicit Iterator(const Params& params) : DatasetIterator<Dataset>(params) {}

  bool SymbolicCheckpointCompatible() const override { return true; }

  TraceMeMetadata GetTraceMeMetadata() const override {
    return {{"source", dataset()->random_access_ ? "random access" : "stream"}};
  }

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    epoch_ = EpochHandover::Take(dataset()->stage_.get());
    if (epoch_ == nullptr) {
      return absl::FailedPreconditionError(
          "This dataset is a part of a refurbish stage and cannot be iterated "
          "by itself.");
    }
    random_.emplace(DeriveKey(static_cast<uint64_t>(dataset()->seed_),
                              Purpose::kShuffleBuffer, epoch_->number()));
    // The stage may have been used before the source had a length.
    random_access_ = dataset()->random_access_ && epoch_->scheduled_length();
    IteratorContext::Params params(ctx);
    // A thread of a random-access source must not begin to read before the first
    // request comes with its index mapper.
    if (random_access_) params.warm_start = false;
    IteratorContext input_ctx(std::move(params));
    TF_RETURN_IF_ERROR(dataset()->input_->MakeIterator(
        &input_ctx, this, prefix(), &input_impl_));
    ctx->MergeCheckpoint(input_ctx.checkpoint());
    epoch_->BeginInput(random_access_ ? Epoch::Source::kRandomAccess
                                      : Epoch::Source::kStream);
    return absl::OkStatus();
  }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    if (!failed_.ok()) return failed_;
    std::optional<uint32_t> index;
    absl::Status status =
        random_access_ ? ReadRequested(ctx, out_tensors, &index)
                       : ReadShuffled(ctx, out_tensors, &index);
    if (!index.has_value()) {
      *end_of_sequence = status.ok();
      return status;
    }
    Tensor index_tensor = epoch_->Emitted(*index);
    if (!status.ok()) return status;
    out_tensors->push_back(std::move(index_tensor));
    if (dataset()->with_seed_) {
      Tensor seed(ctx->allocator({}), tensorflow::DT_INT32, TensorShape({2}));
      const auto values = StatelessSeed(epoch_->seed(),
                                        Purpose::kPartialFunction,
                                        epoch_->PreparedGeneration(*index), *index);
      seed.vec<int32_t>()(0) = values[0];
      seed.vec<int32_t>()(1) = values[1];
      out_tensors->push_back(std::move(seed));
    }
    return absl::OkStatus();
  }

 protected:
  std::shared_ptr<tensorflow::data::model::Node> CreateNode(
      IteratorContext*,
      tensorflow::data::model::Node::Args args) const override {
    return tensorflow::data::model::MakeUnknownRatioNode(std::move(args));
  }

  // The epoch knows all there is to know, and the op downstream saves it: on
  // restoring, this iterator and its input are made anew.
  absl::Status SaveInternal(SerializationContext*,
                            IteratorStateWriter*) override {
    return absl::OkStatus();
  }
  absl::Status RestoreInternal(IteratorContext*, IteratorStateReader*) override {
    return absl::OkStatus();
  }

 private:
  struct Element {
    std::vector<Tensor> tensors;
    uint32_t index;
  };

  // The three below read the next sample to prepare. `index` is empty at the
  // end; with an error, it is that of the sample that failed, if there is one.

  absl::Status ReadRequested(IteratorContext* ctx, std::vector<Tensor>* tensors,
                             std::optional<uint32_t>* index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    IteratorContext::Params params(ctx);
    params.index_mapper = [epoch = epoch_](size_t n) {
      return epoch->Request(n);
    };
    IteratorContext mapped(std::move(params));
    bool end = false;
    absl::Status status = input_impl_->GetNext(&mapped, tensors, &end);
    ctx->MergeCheckpoint(mapped.checkpoint());
    if (status.ok() && end) return status;
    *index = epoch_->Requested(num_read_);
    if (index->has_value()) ++num_read_;
    if (status.ok() && !index->has_value()) {
      return absl::InternalError(absl::StrCat(
          dataset()->input_->DebugString(),
          " yields elements that were not asked for."));
    }
    return status;
  }

  absl::Status ReadShuffled(IteratorContext* ctx, std::vector<Tensor>* tensors,
                            std::optional<uint32_t>* index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (dataset()->shuffle_buffer_size_ <= 1) {
      return ReadStream(ctx, tensors, index);
    }
    while (!stream_ended_ && static_cast<int64_t>(buffer_.size()) <
                                 dataset()->shuffle_buffer_size_) {
      Element element;
      std::optional<uint32_t> read;
      absl::Status status = ReadStream(ctx, &element.tensors, &read);
      if (!status.ok()) {
        *index = read;
        return status;
      }
      if (!read.has_value()) break;
      element.index = *read;
      RecordBufferEnqueue(ctx, element.tensors);
      buffer_.push_back(std::move(element));
    }
    if (buffer_.empty()) return absl::OkStatus();
    std::swap(buffer_[random_->Below(buffer_.size())], buffer_.back());
    *tensors = std::move(buffer_.back().tensors);
    *index = buffer_.back().index;
    buffer_.pop_back();
    RecordBufferDequeue(ctx, *tensors);
    return absl::OkStatus();
  }

  absl::Status ReadStream(IteratorContext* ctx, std::vector<Tensor>* tensors,
                          std::optional<uint32_t>* index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!stream_ended_) {
      const Epoch::Advance advance = epoch_->AdvanceStream();
      for (int64_t i = 0; i < advance.pass_over; ++i) {
        bool end = false;
        int skipped = 0;
        // One by one: after an error in a longer stretch it would be unknown how
        // far the input has come, and with it which sample comes next. That an
        // element which nobody wants fails is of no interest.
        absl::Status status =
            input_impl_->Skip(ctx, /*num_to_skip=*/1, &end, &skipped);
        if (absl::IsCancelled(status)) return status;
        if (status.ok() && end) {
          failed_ = OtherLength("fewer than");
          return failed_;
        }
      }
      if (advance.wanted) {
        bool end = false;
        absl::Status status = input_impl_->GetNext(ctx, tensors, &end);
        if (!status.ok()) {
          *index = advance.index;
          return status;
        }
        if (!end) {
          *index = advance.index;
          return absl::OkStatus();
        }
        stream_ended_ = true;
        if (epoch_->num_samples() == kUnknownSamples) {
          epoch_->StreamEnded();
        } else {
          failed_ = OtherLength("fewer than");
        }
        return failed_;
      }
      if (advance.at_end) {
        // A `cache` upstream keeps its contents only when it is read to its end.
        bool end = false;
        std::vector<Tensor> past_the_end;
        failed_ = input_impl_->GetNext(ctx, &past_the_end, &end);
        if (failed_.ok() && !end) failed_ = OtherLength("more than");
        TF_RETURN_IF_ERROR(failed_);
        stream_ended_ = true;
      }
    }
    return absl::OkStatus();
  }

  absl::Status OtherLength(const char* comparison) const {
    return absl::DataLossError(absl::StrCat(
        "The source of refurbish yields ", comparison, " the ",
        epoch_->num_samples(),
        " elements it had before, so its samples cannot be told apart by "
        "position. Use a source that is the same in every epoch."));
  }

  absl::Mutex mu_;
  std::unique_ptr<IteratorBase> input_impl_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Epoch> epoch_ ABSL_GUARDED_BY(mu_);
  bool random_access_ ABSL_GUARDED_BY(mu_) = false;
  size_t num_read_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Element> buffer_ ABSL_GUARDED_BY(mu_);
  std::optional<RandomStream> random_ ABSL_GUARDED_BY(mu_);
  bool stream_ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
};

std::unique_ptr<IteratorBase>
StaleSamplesDatasetOp::Dataset::MakeIteratorInternal(
    const std::string& prefix) const {
  return std::make_unique<Iterator>(Iterator::Params{
      this, tensorflow::data::name_utils::IteratorPrefix(kDatasetType, prefix)});
}

void StaleSamplesDatasetOp::MakeDataset(OpKernelContext* ctx,
                                        DatasetBase* input,
                                        DatasetBase** output) {
  tstring stage_id;
  OP_REQUIRES_OK(ctx, ParseScalarArgument<tstring>(ctx, kStage, &stage_id));
  int64_t seed;
  OP_REQUIRES_OK(ctx, ParseScalarArgument<int64_t>(ctx, kSeed, &seed));
  int64_t shuffle_buffer_size;
  OP_REQUIRES_OK(ctx, ParseScalarArgument<int64_t>(ctx, kShuffleBufferSize,
                                                   &shuffle_buffer_size));
  OP_REQUIRES(ctx, shuffle_buffer_size >= 0,
              absl::InvalidArgumentError(absl::StrCat(
                  "shuffle_buffer_size must be at least 0, got ",
                  shuffle_buffer_size, ".")));
  Shards shards;
  OP_REQUIRES_OK(ctx, CheckSource(ctx, input, &shards));
  std::shared_ptr<Stage> stage = Stage::GetOrCreate(stage_id);
  if (!shards.hinted) OP_REQUIRES_OK(ctx, stage->SetShards(shards.names));
  *output = new Dataset(ctx, input, std::move(stage), seed, shuffle_buffer_size,
                        shards.hinted, output_types_, output_shapes_);
}

REGISTER_KERNEL_BUILDER(
    Name("RefurbishTf>StaleSamplesDataset").Device(tensorflow::DEVICE_CPU),
    StaleSamplesDatasetOp);

}  // namespace
}  // namespace refurbish_tf
