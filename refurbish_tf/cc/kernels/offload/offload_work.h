// The work of an offload stage: some images of a batch at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <vector>

#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/kernels/batch_memory.h"
#include "refurbish_tf/cc/kernels/input_iterator.h"
#include "refurbish_tf/cc/kernels/offload/offload_stage.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"

namespace refurbish_tf {

// The pixels of the images of `offload`.
inline constexpr Pixel kOffloadPixel = {ValueType::kUint8, 3};

// What stays the same for all batches.
struct OffloadOptions {
  // Components of a batch that do not come from the input.
  static constexpr int64_t kImages = -1;
  static constexpr int64_t kDraws = -2;
  static constexpr int64_t kLayers = -3;

  int64_t batch_size = 0;
  // The number of equal parts of a batch, one for each replica.
  int64_t num_parts = 1;
  int64_t tables = 0, group = 0;
  bool drop_remainder = true;
  // Which component of the input is the image.
  int64_t image = 0;
  // Whether the last component of the input is the image's seed.
  bool seeded = false;
  // The components of the batch: from the input, or one of the above.
  std::vector<int64_t> components;
  DataTypeVector types;
  std::vector<PartialTensorShape> shapes;
  // All layers, and those that either side can run: up to the last policy.
  LayerChain layers, policy_layers;
  ImageSize size = {0, 0};
  // The frames of clips, which have no policy layers; 0 for images.
  int64_t frames = 0;

  int64_t image_bytes() const {
    return std::max<int64_t>(frames, 1) * size.height * size.width * 3;
  }
  // The shape of an image or a clip whose rows have these dimensions.
  std::vector<int64_t> ShapeWith(std::initializer_list<int64_t> row) const {
    std::vector<int64_t> shape;
    shape.reserve(4);
    if (frames > 0) shape.push_back(frames);
    shape.push_back(size.height);
    for (const int64_t dim : row) shape.push_back(dim);
    return shape;
  }
  int64_t num_columns() const { return 1 + layers.num_draws(); }
  int64_t part() const { return batch_size / num_parts; }
};

// A batch in progress. Several workers write into its memory, each into its own
// rows.
struct OffloadBatch {
  DeviceFractionRule::Batch fraction;
  // The rows that were fetched.
  int64_t num_rows = 0;
  // How many of them have policy layers left to the accelerator.
  int64_t num_unfinished = 0;
  std::vector<Tensor> components;
  uint8_t* images = nullptr;
  int32_t* draws = nullptr;
  // Set when the last row is fetched: the input's checkpoint, and how many
  // elements it has yielded.
  std::shared_ptr<MemoryCheckpoint> checkpoint;
  int64_t position = 0;
};

struct OffloadPiece : OrderedWorkers::Piece {
  std::shared_ptr<OffloadBatch> batch;
  // Rows [begin, end), and the elements that they are made from.
  int64_t begin = 0, end = 0;
  std::vector<std::vector<Tensor>> elements;
  // Whether these rows end the batch.
  bool last = false;
  // The error of the element after the rows.
  absl::Status next_status;
  // The error of the rows: the batch is lost.
  absl::Status status;
};

// Allocates the components of a batch like `element`.
absl::Status MakeBatch(const OffloadOptions& options, BatchMemory* memory,
                       const std::vector<Tensor>& element, OffloadBatch* batch);
// Runs the policy layers that are left, and shortens the batch to its rows.
absl::Status CompleteShortBatch(const OffloadOptions& options,
                                OffloadBatch* batch);

// Decides which images of a batch can have their policies run on an
// accelerator.
//
// The accelerator makes the tables of auto_contrast and equalize for a few
// images of each group, because a program without branches makes them whether
// they are drawn or not. The host runs the policies of images that come too
// late.
class TableLimit {
 public:
  // Of any `group` images in a row, at most `tables` get tables, wherever the
  // first of them is: a batch is divided among replicas later, and each forms
  // its groups from the first image that it gets. `chain` must outlive this.
  TableLimit(const LayerChain& chain, int tables, int64_t group)
      : tables_(tables), group_(group) {
    for (const LayerChain::Link& link : chain.links()) {
      if (link.layer->is_policy()) {
        layers_.push_back({link.layer.get(), link.first_draw, {}});
      }
    }
  }

  void Begin() {
    for (PolicyLayer& layer : layers_) layer.reserved.clear();
  }
  // Reserves a table for image `row` in each layer that needs one. Returns
  // false if one has none left. Rows of a batch come in rising order.
  bool Reserve(int64_t row, const int32_t* draws) {
    const auto needs = [draws](const PolicyLayer& policy) {
      return policy.layer->NeedsTable(draws + policy.first_draw);
    };
    for (PolicyLayer& layer : layers_) {
      std::deque<int64_t>& reserved = layer.reserved;
      while (!reserved.empty() && reserved.front() <= row - group_)
        reserved.pop_front();
      if (needs(layer) && reserved.size() >= static_cast<size_t>(tables_)) {
        return false;
      }
    }
    for (PolicyLayer& layer : layers_) {
      if (needs(layer)) layer.reserved.push_back(row);
    }
    return true;
  }

 private:
  struct PolicyLayer {
    const Layer* layer;
    int first_draw;
    // The last rows that got tables, at most `tables_`, in rising order.
    std::deque<int64_t> reserved;
  };

  const int tables_;
  const int64_t group_;
  std::vector<PolicyLayer> layers_;
};

class OffloadWork : public InputWork<OffloadPiece> {
 public:
  // How a checkpoint learns where the input is after each batch.
  enum class Told {
    kLater,      // It saves the input itself.
    kSymbolic,   // The input adds to `ctx`'s checkpoint.
    kSnapshots,  // The input is saved, which is cheap.
  };

  // The arguments must outlive this object.
  OffloadWork(IteratorBase* input, IteratorContext* input_ctx,
              const OffloadOptions& options, OffloadStage* stage,
              OffloadStage::Iteration iteration, Told told,
              std::shared_ptr<BatchMemory> memory);

  // Continues a batch of which some rows are made, after `position` elements.
  // Called before the workers start.
  void GoOn(std::shared_ptr<OffloadBatch> batch, int64_t position) {
    current_ = std::move(batch);
    position_ = position;
  }
  // Called while the workers are settled, or after the end.
  int64_t position() const { return position_; }
  // The input's checkpoint after the end, with snapshots.
  const std::shared_ptr<MemoryCheckpoint>& at_end() const { return at_end_; }

  // How many pieces a batch can have.
  int64_t pieces_per_batch() const {
    return (options_.batch_size + rows_per_piece_ - 1) / rows_per_piece_;
  }

  OrderedWorkers::Outcome Fetch(OrderedWorkers::Piece* piece) override;
  OrderedWorkers::Outcome Run(OrderedWorkers::Piece* piece) override;

 private:
  absl::Status BeginBatch(const std::vector<Tensor>& element);
  // Adds an element to the current batch, as its next row.
  absl::Status AddRow(std::vector<Tensor> element, OffloadPiece* piece);
  void EndBatch();
  absl::Status MakeRows(const OffloadPiece& piece) const;

  const OffloadOptions& options_;
  OffloadStage& stage_;
  const OffloadStage::Iteration iteration_;
  const Told told_;
  const std::shared_ptr<BatchMemory> memory_;
  const int64_t rows_per_piece_;
  // Only for `Fetch`.
  TableLimit table_limit_;
  std::shared_ptr<OffloadBatch> current_;
  int64_t position_ = 0;
  std::shared_ptr<MemoryCheckpoint> at_end_;
};

}  // namespace refurbish_tf
