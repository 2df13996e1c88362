// The downstream op of a refurbish stage: every sample once an epoch, prepared
// ones from upstream and the others from the cache store.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/stage.h"
#include "tensorflow/core/data/name_utils.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/dataset_options.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/op_requires.h"

namespace refurbish_tf {
namespace {

using tensorflow::AttrValue;
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
using tensorflow::data::UnaryDatasetOpKernel;

constexpr char kDatasetType[] = "RefurbishedSamples";
constexpr char kOutputTypes[] = "output_types";
constexpr char kOutputShapes[] = "output_shapes";
constexpr char kEviction[] = "eviction";
constexpr char kShuffle[] = "shuffle";
constexpr char kInOrder[] = "in_order";
constexpr char kStage[] = "stage";
constexpr char kSeed[] = "seed";
constexpr char kOrderSeed[] = "order_seed";
constexpr char kReuseFactor[] = "reuse_factor";
constexpr char kStore[] = "store";
constexpr char kMaxBytes[] = "max_bytes";

class RefurbishedSamplesDatasetOp : public UnaryDatasetOpKernel {
 public:
  explicit RefurbishedSamplesDatasetOp(OpKernelConstruction* ctx)
      : UnaryDatasetOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kOutputTypes, &output_types_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kOutputShapes, &output_shapes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kEviction, &eviction_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kShuffle, &shuffle_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kInOrder, &in_order_));
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override;

 private:
  class Dataset;

  DataTypeVector output_types_;
  std::vector<PartialTensorShape> output_shapes_;
  std::string eviction_;
  std::string shuffle_;
  bool in_order_;
};

class RefurbishedSamplesDatasetOp::Dataset : public DatasetBase {
 public:
  struct Arguments {
    std::string stage;
    int64_t seed;
    int64_t order_seed;
    double reuse_factor;
    std::string store;
    int64_t max_bytes;
    std::string eviction;
    std::string shuffle;
    bool in_order;
  };

  Dataset(OpKernelContext* ctx, const DatasetBase* input, Arguments arguments,
          std::shared_ptr<Stage> stage, const DataTypeVector& output_types,
          const std::vector<PartialTensorShape>& output_shapes)
      : DatasetBase(DatasetContext(ctx)),
        input_(input),
        arguments_(std::move(arguments)),
        stage_(std::move(stage)),
        num_components_(input->output_dtypes().size() - 1),
        with_seed_(output_types.size() == num_components_ + 1),
        output_types_(output_types),
        output_shapes_(output_shapes) {
    input_->Ref();
  }

  ~Dataset() override { input_->Unref(); }

  const DataTypeVector& output_dtypes() const override { return output_types_; }

  const std::vector<PartialTensorShape>& output_shapes() const override {
    return output_shapes_;
  }

  std::string DebugString() const override {
    return tensorflow::data::name_utils::DatasetDebugString(kDatasetType);
  }

  int64_t CardinalityInternal(CardinalityOptions options) const override {
    const int64_t cardinality = input_->Cardinality(options);
    if (cardinality != tensorflow::data::kUnknownCardinality) {
      return cardinality;
    }
    // Known after the first pass.
    const int64_t num_samples = stage_->num_samples();
    return num_samples == kUnknownSamples ? cardinality : num_samples;
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
    TF_RETURN_IF_ERROR(b->AddScalar(tstring(arguments_.stage), &stage));
    Node* seed = nullptr;
    TF_RETURN_IF_ERROR(b->AddScalar(arguments_.seed, &seed));
    Node* order_seed = nullptr;
    TF_RETURN_IF_ERROR(b->AddScalar(arguments_.order_seed, &order_seed));
    Node* reuse_factor = nullptr;
    TF_RETURN_IF_ERROR(b->AddScalar(arguments_.reuse_factor, &reuse_factor));
    Node* store = nullptr;
    TF_RETURN_IF_ERROR(b->AddScalar(tstring(arguments_.store), &store));
    Node* max_bytes = nullptr;
    TF_RETURN_IF_ERROR(b->AddScalar(arguments_.max_bytes, &max_bytes));
    AttrValue eviction;
    b->BuildAttrValue(arguments_.eviction, &eviction);
    AttrValue shuffle;
    b->BuildAttrValue(arguments_.shuffle, &shuffle);
    AttrValue in_order;
    b->BuildAttrValue(arguments_.in_order, &in_order);
    return b->AddDataset(this,
                         {input, stage, seed, order_seed, reuse_factor, store,
                          max_bytes},
                         {{kEviction, eviction},
                          {kShuffle, shuffle},
                          {kInOrder, in_order}},
                         output);
  }

 private:
  class Iterator;

  const DatasetBase* const input_;
  const Arguments arguments_;
  const std::shared_ptr<Stage> stage_;
  const size_t num_components_;  // Of a partially augmented sample.
  const bool with_seed_;
  const DataTypeVector output_types_;
  const std::vector<PartialTensorShape> output_shapes_;
};

class RefurbishedSamplesDatasetOp::Dataset::Iterator
    : public DatasetIterator<Dataset> {
 public:
  explicit Iterator(const Params& params) : DatasetIterator<Dataset>(params) {}

  // Nothing begins here: an iterator that is made but never read takes no epoch.
  absl::Status Initialize(IteratorContext*) override {
    return absl::OkStatus();
  }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    if (ended_) {
      absl::Status status = std::exchange(end_status_, absl::OkStatus());
      *end_of_sequence = status.ok();
      return status;
    }
    if (epoch_ == nullptr) {
      absl::StatusOr<std::shared_ptr<Epoch>> epoch =
          dataset()->stage_->StartEpoch();
      if (!epoch.ok()) return epoch.status();
      epoch_ = *std::move(epoch);
    }
    while (true) {
      uint32_t index = 0;
      bool last = false;
      switch (epoch_->Next(out_tensors, &index, &last)) {
        case Epoch::Step::kCached:
          break;
        case Epoch::Step::kArrival:
          TF_RETURN_IF_ERROR(
              GetArrival(ctx, out_tensors, &index, end_of_sequence));
          if (*end_of_sequence) return End();
          break;
        case Epoch::Step::kMakeInputAnew: {
          // The new input is made whatever the old one says, so that this error
          // comes once.
          absl::Status status = ReadInputToItsEnd(ctx);
          TF_RETURN_IF_ERROR(MakeInput(ctx));
          TF_RETURN_IF_ERROR(status);
          continue;
        }
        case Epoch::Step::kMakeInput:
          TF_RETURN_IF_ERROR(MakeInput(ctx));
          continue;
        case Epoch::Step::kEnd: {
          absl::Status status = ReadInputToItsEnd(ctx);
          status.Update(End());
          *end_of_sequence = status.ok();
          return status;
        }
      }
      AppendSeed(ctx, index, out_tensors);
      if (last) {
        // Now, and not when the end is asked for: whoever knows the number of
        // elements, as Keras does, never asks.
        end_status_ = ReadInputToItsEnd(ctx);
        end_status_.Update(End());
      }
      return absl::OkStatus();
    }
  }

 protected:
  std::shared_ptr<tensorflow::data::model::Node> CreateNode(
      IteratorContext*,
      tensorflow::data::model::Node::Args args) const override {
    return tensorflow::data::model::MakeUnknownRatioNode(std::move(args));
  }

  absl::Status SaveInternal(SerializationContext*,
                            IteratorStateWriter*) override {
    return absl::UnimplementedError(
        "The position in a refurbish stage cannot be saved yet.");
  }
  absl::Status RestoreInternal(IteratorContext*, IteratorStateReader*) override {
    return absl::UnimplementedError(
        "The position in a refurbish stage cannot be restored yet.");
  }

 private:
  absl::Status MakeInput(IteratorContext* ctx)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    input_impl_.reset();
    EpochHandover handover(dataset()->stage_.get(), epoch_);
    return dataset()->input_->MakeIterator(ctx, this, prefix(), &input_impl_);
  }

  absl::Status GetArrival(IteratorContext* ctx, std::vector<Tensor>* sample,
                          uint32_t* index, bool* end_of_sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    absl::Status status = input_impl_->GetNext(ctx, sample, end_of_sequence);
    if (!status.ok()) return AddIndex(ctx, status);
    if (*end_of_sequence) {
      if (!epoch_->scheduled_length()) return absl::OkStatus();
      *end_of_sequence = false;
      return absl::InternalError("A sample that was asked for did not arrive.");
    }
    Tensor index_tensor = std::move(sample->back());
    sample->pop_back();
    *index = epoch_->Arrived(std::move(index_tensor));
    TF_RETURN_IF_ERROR(CheckShapes(*sample, *index));
    return dataset()->stage_->Keep(*epoch_, *index, *sample);
  }

  absl::Status AddIndex(IteratorContext* ctx, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (absl::IsCancelled(status)) return status;
    // An option of the whole pipeline lets the map between the two ops reorder.
    const bool may_reorder =
        ctx->options() != nullptr &&
        ctx->options()->optional_deterministic_case() ==
            tensorflow::data::Options::kDeterministic &&
        !ctx->options()->deterministic();
    const std::vector<uint32_t> indices =
        epoch_->Failed(dataset()->arguments_.in_order && !may_reorder);
    if (indices.empty()) return status;
    return absl::Status(
        status.code(),
        absl::StrCat("Preparing sample ",
                     indices.size() == 1 ? "" : "(one of these) ",
                     absl::StrJoin(indices, ", "),
                     " of the source of refurbish failed: ", status.message()));
  }

  absl::Status CheckShapes(const std::vector<Tensor>& sample, uint32_t index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (size_t i = 0; i < dataset()->num_components_; ++i) {
      if (sample[i].dtype() != dataset()->output_types_[i] ||
          !dataset()->output_shapes_[i].IsCompatibleWith(sample[i].shape())) {
        return absl::InvalidArgumentError(absl::StrCat(
            "partial_fn changed its output structure: component ", i,
            " of sample ", index, " is ",
            tensorflow::DataTypeString(sample[i].dtype()),
            sample[i].shape().DebugString(), ", but its element_spec says ",
            tensorflow::DataTypeString(dataset()->output_types_[i]),
            dataset()->output_shapes_[i].DebugString(),
            ". Let it return the same structure for every sample."));
      }
    }
    return absl::OkStatus();
  }

  void AppendSeed(IteratorContext* ctx, uint32_t index,
                  std::vector<Tensor>* out_tensors)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!dataset()->with_seed_) return;
    Tensor seed(ctx->allocator({}), tensorflow::DT_INT32, TensorShape({2}));
    const auto values = StatelessSeed(epoch_->seed(), Purpose::kFinalFunction,
                                      epoch_->number(), index);
    seed.vec<int32_t>()(0) = values[0];
    seed.vec<int32_t>()(1) = values[1];
    out_tensors->push_back(std::move(seed));
  }

  // So that a `cache` upstream sees its end, and a source that has grown is
  // noticed.
  absl::Status ReadInputToItsEnd(IteratorContext* ctx)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (input_impl_ == nullptr) return absl::OkStatus();
    std::vector<Tensor> past_the_end;
    bool end = false;
    TF_RETURN_IF_ERROR(input_impl_->GetNext(ctx, &past_the_end, &end));
    if (end) return absl::OkStatus();
    return absl::InternalError("A sample arrived that was not asked for.");
  }

  absl::Status End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ended_ = true;
    input_impl_.reset();
    const std::shared_ptr<Epoch> epoch = std::move(epoch_);
    return dataset()->stage_->EndEpoch(*epoch);
  }

  absl::Mutex mu_;
  // Null until an element is asked for, and again after the end.
  std::shared_ptr<Epoch> epoch_ ABSL_GUARDED_BY(mu_);
  // Null until a sample has to be prepared.
  std::unique_ptr<IteratorBase> input_impl_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  // What went wrong when the end was reached, to be told once.
  absl::Status end_status_ ABSL_GUARDED_BY(mu_);
};

std::unique_ptr<IteratorBase>
RefurbishedSamplesDatasetOp::Dataset::MakeIteratorInternal(
    const std::string& prefix) const {
  return std::make_unique<Iterator>(Iterator::Params{
      this, tensorflow::data::name_utils::IteratorPrefix(kDatasetType, prefix)});
}

void RefurbishedSamplesDatasetOp::MakeDataset(OpKernelContext* ctx,
                                              DatasetBase* input,
                                              DatasetBase** output) {
  Dataset::Arguments arguments;
  tstring text;
  OP_REQUIRES_OK(ctx, ParseScalarArgument<tstring>(ctx, kStage, &text));
  arguments.stage = text;
  OP_REQUIRES_OK(ctx, ParseScalarArgument<tstring>(ctx, kStore, &text));
  arguments.store = text;
  OP_REQUIRES_OK(ctx,
                 ParseScalarArgument<int64_t>(ctx, kSeed, &arguments.seed));
  OP_REQUIRES_OK(ctx, ParseScalarArgument<int64_t>(ctx, kOrderSeed,
                                                   &arguments.order_seed));
  OP_REQUIRES_OK(ctx, ParseScalarArgument<double>(ctx, kReuseFactor,
                                                  &arguments.reuse_factor));
  OP_REQUIRES(ctx, arguments.reuse_factor >= 1,
              absl::InvalidArgumentError(absl::StrCat(
                  "r must be a number of at least 1, got ",
                  arguments.reuse_factor, ".")));
  OP_REQUIRES_OK(ctx, ParseScalarArgument<int64_t>(ctx, kMaxBytes,
                                                   &arguments.max_bytes));
  arguments.eviction = eviction_;
  arguments.shuffle = shuffle_;
  arguments.in_order = in_order_;

  StageOptions options;
  options.schedule.seed = static_cast<uint64_t>(arguments.seed);
  options.schedule.order_seed = static_cast<uint64_t>(arguments.order_seed);
  options.schedule.reuse_factor = arguments.reuse_factor;
  options.schedule.eviction = eviction_ == "balanced"
                                  ? Eviction::kBalanced
                                  : Eviction::kReferenceCount;
  options.schedule.shuffle =
      shuffle_ == "cache_aware" ? Shuffle::kCacheAware : Shuffle::kUniform;
  const int64_t cardinality = input->Cardinality(CardinalityOptions());
  if (cardinality > 0) options.num_samples = cardinality;
  DataTypeVector sample_dtypes(input->output_dtypes().begin(),
                               input->output_dtypes().end() - 1);
  std::vector<PartialTensorShape> sample_shapes(
      input->output_shapes().begin(), input->output_shapes().end() - 1);
  absl::StatusOr<std::shared_ptr<SampleStore>> store =
      SampleStore::GetOrCreate(arguments.store, arguments.max_bytes);
  OP_REQUIRES_OK(ctx, store.status());
  options.sample_bytes = (*store)->FixedBytes(sample_dtypes, sample_shapes);

  std::shared_ptr<Stage> stage = Stage::GetOrCreate(arguments.stage);
  OP_REQUIRES_OK(
      ctx, stage->Configure(options, *std::move(store), sample_dtypes));
  *output = new Dataset(ctx, input, std::move(arguments), std::move(stage),
                        output_types_, output_shapes_);
}

REGISTER_KERNEL_BUILDER(
    Name("RefurbishedSamplesDataset").Device(tensorflow::DEVICE_CPU),
    RefurbishedSamplesDatasetOp);

}  // namespace
}  // namespace refurbish_tf
