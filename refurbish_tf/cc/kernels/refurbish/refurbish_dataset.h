#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/batches/batch_rows.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/inline_function.h"
#include "refurbish_tf/cc/kernels/stages_upstream.h"
#include "refurbish_tf/cc/refurbish/stage.h"

namespace refurbish_tf {

// The inputs and attributes of the op that its iterators use.
struct RefurbishArguments {
  int64_t shuffle_buffer_size;  // 0 for the default.
  int64_t num_parallel_calls;   // 0 for no thread at all.
  std::string deterministic;    // As in `map`: "true", "false", "default".
  bool partial_seed, partial_generation;
  bool final_seed, final_epoch;
  Batches batches;
  SampleTypes sample_types;
  SampleTypes output_types;
};

class RefurbishDataset : public UnaryDataset, public StageDataset {
 public:
  // `hinted`: tf.data has not filled in a SHARD_HINT. `final` may be null.
  RefurbishDataset(OpKernelContext* ctx, const DatasetBase* input,
                   RefurbishArguments arguments, std::shared_ptr<Stage> stage,
                   std::unique_ptr<InlineFunction> partial,
                   std::unique_ptr<InlineFunction> final, bool hinted)
      : UnaryDataset(ctx, input, "Refurbish", arguments.output_types.dtypes,
                     arguments.output_types.shapes),
        arguments_(std::move(arguments)),
        stage_(std::move(stage)),
        partial_(std::move(partial)),
        final_(std::move(final)),
        hinted_(hinted) {}

  const std::shared_ptr<Stage>& stage() const override { return stage_; }

  int64_t CardinalityInternal(CardinalityOptions options) const override {
    return arguments_.batches.Cardinality(NumSamples(options));
  }
  absl::Status RandomIndexingCompatible() const override {
    return absl::UnimplementedError(
        "refurbish yields its samples in a new order in each epoch, so they "
        "cannot be read by index. Leave out a global shuffle after it, because "
        "it shuffles already; read single samples from its source.");
  }
  absl::Status Get(OpKernelContext*, int64_t,
                   std::vector<Tensor>*) const override {
    return RandomIndexingCompatible();
  }
  absl::Status Get(AnyContext, int64_t, std::vector<Tensor>*) const override {
    return RandomIndexingCompatible();
  }
  // Called only by dynamic sharding.
  absl::Status MakeSplitProviders(
      std::vector<std::unique_ptr<tensorflow::data::SplitProvider>>*)
      const override {
    return FailedPrecondition(
        "Dynamic sharding (ShardingPolicy.DYNAMIC, \"distributed_epoch\") gives "
        "each worker different parts of the source in every epoch, but "
        "refurbish identifies a sample by its position. Use ShardingPolicy.OFF, "
        "with which each worker yields every sample, or source.shard(SHARD_HINT, "
        "SHARD_HINT).refurbish(...) and ShardingPolicy.HINT, with which each "
        "worker yields its shard.");
  }

 protected:
  // In refurbish_iterator.cc.
  std::unique_ptr<IteratorBase> MakeIteratorInternal(
      const std::string& prefix) const override;
  absl::Status AddFunctions(SerializationContext* ctx,
                            Builder* b) const override {
    TF_RETURN_IF_ERROR(partial_->AddToGraph(ctx, b));
    return final_ == nullptr ? absl::OkStatus() : final_->AddToGraph(ctx, b);
  }

 private:
  friend class RefurbishIterator;

  int64_t NumSamples(CardinalityOptions options) const {
    // The cardinality is wrong until tf.data has filled in SHARD_HINT.
    const int64_t cardinality = hinted_ ? tensorflow::data::kUnknownCardinality
                                        : input_->Cardinality(options);
    if (cardinality != tensorflow::data::kUnknownCardinality) {
      return cardinality;
    }
    // The stage knows the number after the first pass.
    const int64_t num_samples = stage_->num_samples();
    return num_samples == kUnknownSamples ? cardinality : num_samples;
  }

  const RefurbishArguments arguments_;
  const std::shared_ptr<Stage> stage_;
  const std::unique_ptr<InlineFunction> partial_;
  const std::unique_ptr<InlineFunction> final_;
  const bool hinted_;
};

}  // namespace refurbish_tf
