// The op of a refurbish stage: checks the source, and makes or finds the stage.
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/kernels/refurbish/refurbish_dataset.h"
#include "refurbish_tf/cc/kernels/source_checks/check_source.h"
#include "refurbish_tf/cc/kernels/source_checks/source_probe.h"

namespace refurbish_tf {
namespace {

class RefurbishDatasetOp : public UnaryDatasetOpKernel {
 public:
  explicit RefurbishDatasetOp(OpKernelConstruction* ctx)
      : UnaryDatasetOpKernel(ctx) {
    NameAttrList partial;
    std::vector<NameAttrList> final;
    std::string eviction, shuffle;
    DataTypeVector& samples = attrs_.sample_types.dtypes;
    DataTypeVector& outputs = attrs_.output_types.dtypes;
    OP_REQUIRES_OK(
        ctx,
        GetAttrs(ctx, "partial_fn", &partial, "final_fn", &final,
                 kEvictions.kind, &eviction, kShuffles.kind, &shuffle,
                 "deterministic", &attrs_.deterministic, "any_seed",
                 &options_.any_seed, "partial_seed", &attrs_.partial_seed,
                 "partial_generation", &attrs_.partial_generation, "final_seed",
                 &attrs_.final_seed, "final_epoch", &attrs_.final_epoch,
                 "sample_types", &samples, "sample_shapes",
                 &attrs_.sample_types.shapes, "output_types", &outputs,
                 "output_shapes", &attrs_.output_types.shapes));
    OP_REQUIRES(ctx, final.size() <= 1,
                InvalidArgument("final_fn must be one function or none, got ",
                                final.size(), "."));
    OP_REQUIRES_OK(ctx, kEvictions.Find(eviction, &options_.schedule.eviction));
    OP_REQUIRES_OK(ctx, kShuffles.Find(shuffle, &options_.schedule.shuffle));
    OP_REQUIRES_OK(ctx,
                   CheckResultTypes(ctx, "partial_fn", partial.name(), samples,
                                    attrs_.sample_types.shapes.size()));
    OP_REQUIRES_OK(ctx, InlineFunctionMetadata::Create(ctx, std::move(partial),
                                                       &partial_));
    options_.partial_inline = partial_->is_inline();
    if (!final.empty()) {
      OP_REQUIRES_OK(ctx,
                     CheckResultTypes(ctx, "final_fn", final[0].name(), outputs,
                                      attrs_.output_types.shapes.size()));
      OP_REQUIRES_OK(ctx, InlineFunctionMetadata::Create(
                              ctx, std::move(final.front()), &final_));
      options_.final_inline = final_->is_inline();
      return;
    }
    DataTypeVector yielded = samples;
    if (attrs_.final_seed) yielded.push_back(tensorflow::DT_INT32);
    if (attrs_.final_epoch) yielded.push_back(tensorflow::DT_INT64);
    OP_REQUIRES(
        ctx,
        outputs == yielded &&
            attrs_.output_types.shapes.size() == yielded.size(),
        InvalidArgument("output_types must be ",
                        tensorflow::DataTypeVectorString(yielded),
                        " without final_fn, with a shape for each, got ",
                        tensorflow::DataTypeVectorString(outputs), "."));
  }

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                   DatasetBase** output) override {
    RefurbishArguments arguments = attrs_;
    StageOptions options = options_;
    std::string name, store_name, shared;
    int64_t seed, order_seed, max_bytes, shared_max_bytes;
    OP_REQUIRES_OK(
        ctx,
        GetScalars(ctx, "stage", &name, "store", &store_name, "seed", &seed,
                   "order_seed", &order_seed, "max_bytes", &max_bytes, "shared",
                   &shared, "shared_max_bytes", &shared_max_bytes,
                   "shuffle_buffer_size", &arguments.shuffle_buffer_size,
                   "num_parallel_calls", &arguments.num_parallel_calls,
                   "batch_size", &arguments.batches.size, "drop_remainder",
                   &arguments.batches.drop_remainder, "reuse_factor",
                   &options.schedule.reuse_factor));
    const double r = options.schedule.reuse_factor;
    OP_REQUIRES(ctx, r >= 1 && std::isfinite(r),
                InvalidArgument("r must be a finite number of at least 1, got ",
                                r, "."));
    OP_REQUIRES_OK(ctx, arguments.batches.Check(arguments.output_types.shapes));
    OP_REQUIRES(ctx, arguments.shuffle_buffer_size >= 0,
                InvalidArgument("shuffle_buffer_size must be at least 0, got ",
                                arguments.shuffle_buffer_size, "."));
    OP_REQUIRES_OK(ctx, CheckParallelCalls(arguments.num_parallel_calls));
    SourceFacts facts;
    OP_REQUIRES_OK(ctx, CheckSource(ctx, input, "refurbish", &facts));
    std::unique_ptr<InlineFunction> partial, final;
    OP_REQUIRES_OK(ctx, InlineFunction::Create(ctx, partial_,
                                               "partial_arguments", &partial));
    if (final_ != nullptr) {
      OP_REQUIRES_OK(
          ctx, InlineFunction::Create(ctx, final_, "final_arguments", &final));
    }
    options.schedule.seed = static_cast<uint64_t>(seed);
    options.schedule.order_seed = static_cast<uint64_t>(order_seed);
    const int64_t cardinality = input->Cardinality(CardinalityOptions());
    if (cardinality > 0 && !facts.hinted) options.num_samples = cardinality;
    options.random_access = FirstStream(input) == nullptr;
    absl::StatusOr<std::shared_ptr<SampleStore>> store =
        SampleStore::GetOrCreate(store_name, max_bytes);
    OP_REQUIRES_OK(ctx, store.status());
    options.sample_bytes = (*store)->FixedBytes(arguments.sample_types);
    if (!shared.empty()) {
      OP_REQUIRES(
          ctx, facts.hinted || facts.shard.shard.has_value(),
          InvalidArgument(
              "shared needs the number of each sample in the whole source, "
              "which is unknown if file names are sharded. Shard directly "
              "before refurbish, source.shard(n, i).refurbish(...)."));
      OP_REQUIRES_OK(ctx, CheckEncodable(arguments.sample_types.dtypes));
      options.level = SharedLevel::GetOrCreate(shared, shared_max_bytes,
                                               arguments.sample_types);
    }
    std::shared_ptr<Stage> stage = Stage::GetOrCreate(name);
    if (!facts.hinted) OP_REQUIRES_OK(ctx, stage->SetShard(facts.shard));
    OP_REQUIRES_OK(ctx,
                   stage->Configure(options, *store, arguments.sample_types));
    SourceChecksums* const sums = (*store)->source_sums();
    SourceChecks& checks = stage->source_checks();
    if (!facts.hinted &&
        checks.Begin(facts.kind, sums, Platform(facts.computes_floats),
                     facts.shard.numbering()) &&
        checks.checks() && sums != nullptr && options.random_access) {
      OP_REQUIRES_OK(ctx, ProbeSource(ctx, input, "refurbish", &checks,
                                      (*store)->store()));
    }
    *output = new RefurbishDataset(ctx, input, std::move(arguments),
                                   std::move(stage), std::move(partial),
                                   std::move(final), facts.hinted);
  }

 private:
  std::shared_ptr<const InlineFunctionMetadata> partial_, final_;
  StageOptions options_;
  RefurbishArguments attrs_;
};

REFURBISH_TF_KERNEL("RefurbishDataset", RefurbishDatasetOp);

}  // namespace
}  // namespace refurbish_tf
