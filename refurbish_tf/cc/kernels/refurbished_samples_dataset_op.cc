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
using tensorflow::data::TraceMeMetadata;
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

// In checkpoints. Another version for whatever an older package could not read.
constexpr int64_t kCheckpointVersion = 1;
constexpr char kVersion[] = "version";
constexpr char kNextEpoch[] = "next_epoch";
constexpr char kEnded[] = "ended";
constexpr char kBegun[] = "begun";
constexpr char kNumber[] = "number";
constexpr char kNumSamples[] = "num_samples";
constexpr char kScheduled[] = "scheduled";
constexpr char kNumKept[] = "num_kept";
constexpr char kOrigin[] = "origin";
constexpr char kYielded[] = "yielded";
constexpr char kYieldedSince[] = "yielded_since";

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

  absl::Status Get(OpKernelContext*, int64_t,
                   std::vector<Tensor>*) const override {
    return NoRandomAccess();
  }
  absl::Status Get(tensorflow::data::AnyContext, int64_t,
                   std::vector<Tensor>*) const override {
    return NoRandomAccess();
  }

  absl::Status RandomIndexingCompatible() const override {
    return NoRandomAccess();
  }

  // Only dynamic sharding asks for them.
  absl::Status MakeSplitProviders(
      std::vector<std::unique_ptr<tensorflow::data::SplitProvider>>*)
      const override {
    return absl::FailedPreconditionError(
        "Dynamic sharding (ShardingPolicy.DYNAMIC, \"distributed_epoch\") hands a "
        "worker other parts of the source in every epoch, but refurbish knows a "
        "sample by its position in the source. Use ShardingPolicy.OFF, with which "
        "each worker yields every sample, or source.shard(SHARD_HINT, SHARD_HINT)"
        ".refurbish(...) and ShardingPolicy.HINT, with which each worker yields "
        "its share.");
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

  static absl::Status NoRandomAccess() {
    return absl::UnimplementedError(
        "refurbish yields its samples in another order in each epoch, so none of "
        "them can be asked for by its place. It shuffles by itself; for single "
        "samples ask its source.");
  }

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

  bool SymbolicCheckpointCompatible() const override { return true; }

  // For the profiler.
  TraceMeMetadata GetTraceMeMetadata() const override
      ABSL_LOCKS_EXCLUDED(mu_) {
    TraceMeMetadata metadata = {
        {"stage", dataset()->arguments_.stage},
        {"r", absl::StrCat(dataset()->arguments_.reuse_factor)}};
    // An iterator that waits for its input holds the lock.
    if (!mu_.TryLock()) return metadata;
    if (epoch_ != nullptr) {
      const double cached = epoch_->counters().cached;
      const double all = epoch_->counters().fresh + cached;
      metadata.push_back({"epoch", absl::StrCat(epoch_->number())});
      metadata.push_back({"hit_ratio", absl::StrCat(all > 0 ? cached / all : 0)});
    }
    mu_.Unlock();
    return metadata;
  }

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

  // Neither what the store holds nor the state of the input: it is made anew, and
  // asked for what is still to come and not in the store.
  absl::Status SaveInternal(SerializationContext*, IteratorStateWriter* writer)
      override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const Dataset::Arguments& arguments = dataset()->arguments_;
    const auto write = [&](const char* key, int64_t value) {
      return writer->WriteScalar(prefix(), key, value);
    };
    TF_RETURN_IF_ERROR(write(kVersion, kCheckpointVersion));
    TF_RETURN_IF_ERROR(write(kSeed, arguments.seed));
    TF_RETURN_IF_ERROR(write(kOrderSeed, arguments.order_seed));
    TF_RETURN_IF_ERROR(writer->WriteTensor(prefix(), kReuseFactor,
                                           Tensor(arguments.reuse_factor)));
    SavedEpoch saved = dataset()->stage_->Save();
    const uint64_t next_epoch = saved.next_epoch;
    if (epoch_ != nullptr) saved = epoch_->Save();
    TF_RETURN_IF_ERROR(write(kNextEpoch, next_epoch));
    TF_RETURN_IF_ERROR(write(kEnded, ended_));
    TF_RETURN_IF_ERROR(write(kBegun, saved.begun));
    TF_RETURN_IF_ERROR(write(kNumber, saved.number));
    TF_RETURN_IF_ERROR(write(kNumSamples, saved.num_samples));
    TF_RETURN_IF_ERROR(write(kScheduled, saved.scheduled));
    TF_RETURN_IF_ERROR(write(kNumKept, saved.num_kept));
    TF_RETURN_IF_ERROR(write(kOrigin, saved.origin));
    TF_RETURN_IF_ERROR(writer->WriteTensor(prefix(), kYielded, saved.yielded));
    return writer->WriteTensor(prefix(), kYieldedSince, saved.yielded_since);
  }

  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    int64_t version = 0;
    TF_RETURN_IF_ERROR(ReadNumber(ctx, reader, kVersion, &version));
    if (version != kCheckpointVersion) {
      return absl::InvalidArgumentError(absl::StrCat(
          "The checkpoint of refurbish has version ", version,
          ", but this refurbish_tf knows version ", kCheckpointVersion,
          ". Use the refurbish_tf that saved it."));
    }
    const Dataset::Arguments& arguments = dataset()->arguments_;
    TF_RETURN_IF_ERROR(CheckSaved(ctx, reader, kSeed, arguments.seed));
    TF_RETURN_IF_ERROR(
        CheckSaved(ctx, reader, kOrderSeed, arguments.order_seed));
    double reuse_factor = 0;
    TF_RETURN_IF_ERROR(ReadNumber(ctx, reader, kReuseFactor, &reuse_factor));
    if (reuse_factor != arguments.reuse_factor) {
      return OtherPipeline("r", absl::StrCat(arguments.reuse_factor),
                           absl::StrCat(reuse_factor));
    }
    SavedEpoch saved;
    bool ended = false;
    const auto read = [&](const char* key, auto* field) {
      int64_t value = 0;
      absl::Status status = ReadNumber(ctx, reader, key, &value);
      *field = value;
      return status;
    };
    TF_RETURN_IF_ERROR(read(kNextEpoch, &saved.next_epoch));
    TF_RETURN_IF_ERROR(read(kEnded, &ended));
    TF_RETURN_IF_ERROR(read(kBegun, &saved.begun));
    TF_RETURN_IF_ERROR(read(kNumber, &saved.number));
    TF_RETURN_IF_ERROR(read(kNumSamples, &saved.num_samples));
    TF_RETURN_IF_ERROR(read(kScheduled, &saved.scheduled));
    TF_RETURN_IF_ERROR(read(kNumKept, &saved.num_kept));
    TF_RETURN_IF_ERROR(read(kOrigin, &saved.origin));
    TF_RETURN_IF_ERROR(Read(ctx, reader, kYielded, &saved.yielded));
    TF_RETURN_IF_ERROR(Read(ctx, reader, kYieldedSince, &saved.yielded_since));
    absl::StatusOr<std::shared_ptr<Epoch>> epoch =
        dataset()->stage_->Restore(saved);
    if (!epoch.ok()) return epoch.status();
    epoch_ = *std::move(epoch);
    input_impl_.reset();
    ended_ = ended;
    end_status_ = absl::OkStatus();
    return absl::OkStatus();
  }

 private:
  absl::Status Read(IteratorContext* ctx, IteratorStateReader* reader,
                    const char* key, Tensor* value) {
    absl::Status status = reader->ReadTensor(ctx->flr(), prefix(), key, value);
    if (!absl::IsNotFound(status)) return status;
    // It says no more than the key.
    return absl::NotFoundError(absl::StrCat(
        "The checkpoint has no ", key, " for the refurbish stage at ", prefix(),
        ", so it was saved by another pipeline or is damaged. Build the pipeline "
        "as it was then, or begin the epoch anew without this part of the "
        "checkpoint."));
  }

  // `ReadScalar` of the reader ends the process when it meets another shape.
  template <class T>
  absl::Status ReadNumber(IteratorContext* ctx, IteratorStateReader* reader,
                          const char* key, T* value) {
    Tensor tensor;
    TF_RETURN_IF_ERROR(Read(ctx, reader, key, &tensor));
    const tensorflow::DataType dtype = tensorflow::DataTypeToEnum<T>::v();
    if (tensor.dtype() != dtype || tensor.dims() != 0) {
      return DamagedCheckpoint(absl::StrCat(
          "its ", key, " is ", tensorflow::DataTypeString(tensor.dtype()),
          tensor.shape().DebugString(), ", but must be a scalar of ",
          tensorflow::DataTypeString(dtype)));
    }
    *value = tensor.scalar<T>()();
    return absl::OkStatus();
  }

  absl::Status CheckSaved(IteratorContext* ctx, IteratorStateReader* reader,
                          const char* key, int64_t value) {
    int64_t saved = 0;
    TF_RETURN_IF_ERROR(ReadNumber(ctx, reader, key, &saved));
    if (saved == value) return absl::OkStatus();
    return OtherPipeline(
        key, absl::StrCat(value),
        absl::StrCat(saved, " (in every process another one, unless refurbish is "
                            "given a seed or tf.random.set_seed is called)"));
  }

  // Without symbolic checkpoints, as the input is made anew on restoring.
  static IteratorContext InputContext(IteratorContext* ctx) {
    IteratorContext::Params params(ctx);
    params.symbolic_checkpoint = false;
    return IteratorContext(std::move(params));
  }

  absl::Status MakeInput(IteratorContext* ctx)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    input_impl_.reset();
    Stopwatch wait(&epoch_->counters().fresh_wait_nanos);
    EpochHandover handover(dataset()->stage_.get(), epoch_);
    IteratorContext input_ctx = InputContext(ctx);
    return dataset()->input_->MakeIterator(&input_ctx, this, prefix(),
                                           &input_impl_);
  }

  absl::Status GetArrival(IteratorContext* ctx, std::vector<Tensor>* sample,
                          uint32_t* index, bool* end_of_sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    IteratorContext input_ctx = InputContext(ctx);
    absl::Status status;
    {
      Stopwatch wait(&epoch_->counters().fresh_wait_nanos);
      status = input_impl_->GetNext(&input_ctx, sample, end_of_sequence);
    }
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
    IteratorContext input_ctx = InputContext(ctx);
    TF_RETURN_IF_ERROR(input_impl_->GetNext(&input_ctx, &past_the_end, &end));
    if (end) return absl::OkStatus();
    return absl::InternalError("A sample arrived that was not asked for.");
  }

  absl::Status End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ended_ = true;
    input_impl_.reset();
    const std::shared_ptr<Epoch> epoch = std::move(epoch_);
    return dataset()->stage_->EndEpoch(*epoch);
  }

  mutable absl::Mutex mu_;
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
    Name("RefurbishTf>RefurbishedSamplesDataset").Device(tensorflow::DEVICE_CPU),
    RefurbishedSamplesDatasetOp);

}  // namespace
}  // namespace refurbish_tf
