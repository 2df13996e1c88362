// The op of a refurbish stage: checks the source, makes or finds the stage.
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/kernels/refurbish/refurbish_dataset.h"
#include "refurbish_tf/cc/kernels/refurbish/refurbish_iterator.h"
#include "refurbish_tf/cc/kernels/source_checks/check_source.h"
#include "refurbish_tf/cc/kernels/source_checks/random_access.h"
#include "refurbish_tf/cc/kernels/source_checks/source_probe.h"

namespace refurbish_tf {
namespace {

constexpr char kPartialFn[] = "partial_fn";
constexpr char kFinalFn[] = "final_fn";
constexpr char kPartialArguments[] = "partial_arguments";
constexpr char kFinalArguments[] = "final_arguments";
constexpr char kPartialArgumentTypes[] = "Tpartial";
constexpr char kFinalArgumentTypes[] = "Tfinal";
constexpr char kDeterministic[] = "deterministic";
constexpr char kAnySeed[] = "any_seed";
constexpr char kPartialSeed[] = "partial_seed";
constexpr char kFinalSeed[] = "final_seed";
constexpr char kSampleTypes[] = "sample_types";
constexpr char kSampleShapes[] = "sample_shapes";

}  // namespace

int64_t RefurbishDataset::CardinalityInternal(
    CardinalityOptions options) const {
  return arguments_.batches.Cardinality(NumSamples(options));
}

int64_t RefurbishDataset::NumSamples(CardinalityOptions options) const {
  // The cardinality of a `shard` that is not filled in means nothing.
  const int64_t cardinality = hinted_ ? tensorflow::data::kUnknownCardinality
                                      : input_->Cardinality(options);
  if (cardinality != tensorflow::data::kUnknownCardinality) {
    return cardinality;
  }
  // Known after the first pass.
  const int64_t num_samples = stage_->num_samples();
  return num_samples == kUnknownSamples ? cardinality : num_samples;
}

absl::Status RefurbishDataset::RandomIndexingCompatible() const {
  return absl::UnimplementedError(
      "refurbish yields its samples in another order in each epoch, so they "
      "cannot be read by index. Leave out a global shuffle after it, as it "
      "shuffles already; read single samples from its source.");
}

absl::Status RefurbishDataset::MakeSplitProviders(
    std::vector<std::unique_ptr<tensorflow::data::SplitProvider>>*) const {
  return absl::FailedPreconditionError(
      "Dynamic sharding (ShardingPolicy.DYNAMIC, \"distributed_epoch\") gives "
      "each worker other parts of the source in every epoch, but refurbish "
      "knows a sample by its position. Use ShardingPolicy.OFF, with which each "
      "worker yields every sample, or source.shard(SHARD_HINT, SHARD_HINT)"
      ".refurbish(...) and ShardingPolicy.HINT, with which each worker yields "
      "its share.");
}

absl::Status RefurbishDataset::AsGraphDefInternal(SerializationContext* ctx,
                                                  DatasetGraphDefBuilder* b,
                                                  Node** output) const {
  std::vector<Node*> partial_arguments, final_arguments;
  DataTypeVector partial_types, final_types;
  TF_RETURN_IF_ERROR(
      partial_->AddToGraph(ctx, b, &partial_arguments, &partial_types));
  AttrValue final_fn;
  final_fn.mutable_list();
  if (final_ != nullptr) {
    TF_RETURN_IF_ERROR(
        final_->AddToGraph(ctx, b, &final_arguments, &final_types));
    *final_fn.mutable_list()->add_func() = final_->as_traced().func();
  }
  return OpWriter(ctx, b)
      .Input(input_)
      .List(partial_arguments)
      .List(final_arguments)
      .Scalar(arguments_.stage)
      .Scalar(arguments_.seed)
      .Scalar(arguments_.order_seed)
      .Scalar(arguments_.reuse_factor)
      .Scalar(arguments_.store)
      .Scalar(arguments_.max_bytes)
      .Scalar(arguments_.shuffle_buffer_size)
      .Scalar(arguments_.num_parallel_calls)
      .Scalar(arguments_.batches.size)
      .Scalar(arguments_.batches.drop_remainder)
      .Attr(kPartialFn, partial_->as_traced().func())
      .Attr(kFinalFn, final_fn)
      .Attr(kPartialArgumentTypes, partial_types)
      .Attr(kFinalArgumentTypes, final_types)
      .Attr(kEvictions.kind, kEvictions.NameOf(arguments_.eviction))
      .Attr(kShuffles.kind, kShuffles.NameOf(arguments_.shuffle))
      .Attr(kDeterministic, arguments_.deterministic)
      .Attr(kAnySeed, arguments_.any_seed)
      .Attr(kPartialSeed, arguments_.partial_seed)
      .Attr(kFinalSeed, arguments_.final_seed)
      .Attr(kSampleTypes, arguments_.sample_types)
      .Attr(kSampleShapes, arguments_.sample_shapes)
      .Write(this, output);
}

namespace {

class RefurbishDatasetOp : public UnaryDatasetOpKernel {
 public:
  explicit RefurbishDatasetOp(OpKernelConstruction* ctx)
      : UnaryDatasetOpKernel(ctx) {
    NameAttrList partial;
    std::vector<NameAttrList> final;
    std::string eviction, shuffle;
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kPartialFn, &partial));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kFinalFn, &final));
    OP_REQUIRES(
        ctx, final.size() <= 1,
        absl::InvalidArgumentError(absl::StrCat(
            "final_fn must be one function or none, got ", final.size(), ".")));
    OP_REQUIRES_OK(
        ctx,
        GetAttrs(ctx, kEvictions.kind, &eviction, kShuffles.kind, &shuffle,
                 kDeterministic, &attrs_.deterministic, kAnySeed,
                 &attrs_.any_seed, kPartialSeed, &attrs_.partial_seed,
                 kFinalSeed, &attrs_.final_seed, kSampleTypes,
                 &attrs_.sample_types, kSampleShapes, &attrs_.sample_shapes,
                 "output_types", &attrs_.output_types, "output_shapes",
                 &attrs_.output_shapes));
    OP_REQUIRES_OK(ctx, kEvictions.Find(eviction, &attrs_.eviction));
    OP_REQUIRES_OK(ctx, kShuffles.Find(shuffle, &attrs_.shuffle));
    OP_REQUIRES_OK(ctx, CheckResultTypes(ctx, kPartialFn, partial.name(),
                                         attrs_.sample_types,
                                         attrs_.sample_shapes.size()));
    OP_REQUIRES_OK(ctx, InlineFunctionMetadata::Create(ctx, std::move(partial),
                                                       &partial_));
    if (!final.empty()) {
      OP_REQUIRES_OK(ctx, CheckResultTypes(ctx, kFinalFn, final[0].name(),
                                           attrs_.output_types,
                                           attrs_.output_shapes.size()));
      OP_REQUIRES_OK(ctx, InlineFunctionMetadata::Create(
                              ctx, std::move(final.front()), &final_));
      return;
    }
    DataTypeVector yielded = attrs_.sample_types;
    if (attrs_.final_seed) yielded.push_back(tensorflow::DT_INT32);
    OP_REQUIRES(
        ctx,
        attrs_.output_types == yielded &&
            attrs_.output_shapes.size() == yielded.size(),
        absl::InvalidArgumentError(absl::StrCat(
            "output_types must be ", tensorflow::DataTypeVectorString(yielded),
            " without final_fn, with a shape for each, got ",
            tensorflow::DataTypeVectorString(attrs_.output_types), ".")));
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override {
    RefurbishArguments arguments = attrs_;
    OP_REQUIRES_OK(ctx, ReadScalars(ctx, &arguments));
    SourceFacts facts;
    OP_REQUIRES_OK(ctx, CheckSource(ctx, input, "refurbish", &facts));
    std::unique_ptr<InlineFunction> partial, final;
    OP_REQUIRES_OK(ctx, InlineFunction::Create(ctx, partial_, kPartialArguments,
                                               &partial));
    if (final_ != nullptr) {
      OP_REQUIRES_OK(
          ctx, InlineFunction::Create(ctx, final_, kFinalArguments, &final));
    }
    StageOptions options;
    options.schedule.seed = static_cast<uint64_t>(arguments.seed);
    options.schedule.order_seed = static_cast<uint64_t>(arguments.order_seed);
    options.schedule.reuse_factor = arguments.reuse_factor;
    options.schedule.eviction = arguments.eviction;
    options.schedule.shuffle = arguments.shuffle;
    const int64_t cardinality = input->Cardinality(CardinalityOptions());
    if (cardinality > 0 && !facts.hinted) options.num_samples = cardinality;
    options.random_access = FirstStream(input) == nullptr;
    options.any_seed = arguments.any_seed;
    options.partial_inline = partial_->is_inline();
    options.final_inline = final_ == nullptr || final_->is_inline();
    absl::StatusOr<std::shared_ptr<SampleStore>> store =
        SampleStore::GetOrCreate(arguments.store, arguments.max_bytes);
    OP_REQUIRES_OK(ctx, store.status());
    const SampleTypes types{arguments.sample_types, arguments.sample_shapes};
    options.sample_bytes = (*store)->FixedBytes(types);
    std::shared_ptr<Stage> stage = Stage::GetOrCreate(arguments.stage);
    if (!facts.hinted) OP_REQUIRES_OK(ctx, stage->SetShard(facts.shard));
    OP_REQUIRES_OK(ctx, stage->Configure(options, *store, types));
    SourceChecksums* const sums = (*store)->source_sums();
    SourceChecks& checks = stage->source_checks();
    if (!facts.hinted &&
        checks.Begin(facts.kind, sums, Platform(facts.computes_floats),
                     facts.shard.numbering()) &&
        checks.checks() && sums != nullptr && options.random_access) {
      OP_REQUIRES_OK(ctx, ProbeSource(ctx, input, "refurbish", &checks,
                                      (*store)->store()));
    }
    *output = new IteratedBy<RefurbishDataset, RefurbishIterator>(
        ctx, input, std::move(arguments), std::move(stage), std::move(partial),
        std::move(final), facts.hinted);
  }

 private:
  static absl::Status ReadScalars(OpKernelContext* ctx,
                                  RefurbishArguments* arguments) {
    TF_RETURN_IF_ERROR(GetScalars(
        ctx, "stage", &arguments->stage, "store", &arguments->store, "seed",
        &arguments->seed, "order_seed", &arguments->order_seed, "max_bytes",
        &arguments->max_bytes, "shuffle_buffer_size",
        &arguments->shuffle_buffer_size, "num_parallel_calls",
        &arguments->num_parallel_calls, "batch_size", &arguments->batches.size,
        "drop_remainder", &arguments->batches.drop_remainder, "reuse_factor",
        &arguments->reuse_factor));
    if (!(arguments->reuse_factor >= 1 &&
          std::isfinite(arguments->reuse_factor))) {
      return absl::InvalidArgumentError(
          absl::StrCat("r must be a finite number of at least 1, got ",
                       arguments->reuse_factor, "."));
    }
    TF_RETURN_IF_ERROR(arguments->batches.Check(arguments->output_shapes));
    if (arguments->shuffle_buffer_size < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shuffle_buffer_size must be at least 0, got ",
                       arguments->shuffle_buffer_size, "."));
    }
    return CheckParallelCalls(arguments->num_parallel_calls);
  }

  std::shared_ptr<const InlineFunctionMetadata> partial_, final_;
  RefurbishArguments attrs_;
};

REFURBISH_TF_KERNEL("RefurbishDataset", RefurbishDatasetOp);

}  // namespace
}  // namespace refurbish_tf
