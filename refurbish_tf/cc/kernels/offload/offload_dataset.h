// The dataset of an offload stage.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/offload/offload_work.h"

namespace refurbish_tf {

struct OffloadArguments {
  OffloadOptions options;
  std::string stage;
  int64_t seed = 0;
  int64_t eighths = 0;
  bool any_seed = false;
  std::vector<std::string> layers;

  // Calls visit(name, value) for each attribute except the types and shapes.
  template <class Arguments, class Visit>
  static void ForEachAttribute(Arguments& arguments, const Visit& visit) {
    auto& options = arguments.options;
    visit("layers", arguments.layers);
    visit("batch_size", options.batch_size);
    visit("num_parts", options.num_parts);
    visit("eighths", arguments.eighths);
    visit("group", options.group);
    visit("tables", options.tables);
    visit("drop_remainder", options.drop_remainder);
    visit("image", options.image);
    visit("image_height", options.size.height);
    visit("image_width", options.size.width);
    visit("image_frames", options.frames);
    visit("seeded", options.seeded);
    visit("any_seed", arguments.any_seed);
    visit("components", options.components);
  }
};

class OffloadDataset : public UnaryDataset {
 public:
  OffloadDataset(OpKernelContext* ctx, const DatasetBase* input,
                 OffloadArguments arguments)
      : UnaryDataset(ctx, input, "Offload", arguments.options.types,
                     arguments.options.shapes),
        arguments_(std::move(arguments)),
        stage_(Registry<OffloadStage>::Global().GetOrCreate(
            arguments_.stage, [this] {
              return std::make_shared<OffloadStage>(
                  arguments_.seed, arguments_.any_seed, arguments_.eighths);
            })) {}

  int64_t CardinalityInternal(CardinalityOptions options) const override {
    const int64_t cardinality = input_->Cardinality(options);
    if (cardinality < 0) return cardinality;
    const int64_t size = arguments_.options.batch_size;
    const bool has_rest =
        !arguments_.options.drop_remainder && cardinality % size > 0;
    return cardinality / size + has_rest;
  }

 protected:
  void WriteArguments(OpWriter* op) const override {
    op->Input(input_).Scalar(arguments_.stage).Scalar(arguments_.seed);
    OffloadArguments::ForEachAttribute(
        arguments_,
        [&](const char* name, const auto& value) { op->Attr(name, value); });
  }

 private:
  friend class OffloadIterator;

  int64_t num_input_components() const {
    return input_->output_dtypes().size();
  }

  const OffloadArguments arguments_;
  const std::shared_ptr<OffloadStage> stage_;
};

// Makes the dataset, with its iterator.
DatasetBase* MakeOffloadDataset(OpKernelContext* ctx, const DatasetBase* input,
                                OffloadArguments arguments);

}  // namespace refurbish_tf
