// The work of an offload stage: some images of a batch at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/batches/batch_memory.h"
#include "refurbish_tf/cc/batches/batch_rows.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/image/painter.h"
#include "refurbish_tf/cc/image/vector_kernels.h"
#include "refurbish_tf/cc/kernels/input_iterator.h"
#include "refurbish_tf/cc/kernels/offload/offload_options.h"
#include "refurbish_tf/cc/offload/offload_stage.h"
#include "refurbish_tf/cc/plan/random.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tensorflow/core/data/dataset_utils.h"

namespace refurbish_tf {

// A batch in progress. Several workers write into it, each its own rows.
struct OffloadBatch {
  DeviceFractionRule::Batch fraction;
  // How many rows were fetched.
  int64_t num_rows = 0;
  // How many of them have policy layers left to the accelerator.
  int64_t num_unfinished = 0;
  std::vector<Tensor> components;
  uint8_t* images = nullptr;
  int32_t* draws = nullptr;
  // Set when the last row is fetched: the input's checkpoint, and how many
  // elements it has yielded.
  std::unique_ptr<MemoryCheckpoint> checkpoint;
  int64_t position = 0;
  // The first error of its rows, which the consumer gets instead of the batch.
  absl::Status status;
};

struct OffloadPiece : OrderedWorkers::Piece {
  std::shared_ptr<OffloadBatch> batch;
  // Rows [begin, end), and the elements that they are made from.
  int64_t begin = 0, end = 0;
  std::vector<std::vector<Tensor>> elements;
  // The error of the element that follows the rows.
  absl::Status next_status;
  absl::Status status;  // The error of the rows.
};

// Decides for which images of a batch an accelerator can run the policy layers.
//
// Two operations of these layers, auto_contrast and equalize, need a lookup
// table. The accelerator's program has no branches, so in each group of images
// it makes a fixed number of tables, whether they are needed or not. The host
// runs the policies of images for which no table is left.
class TableLimit {
 public:
  // In each layer, at most `tables` of any `group` consecutive images get
  // tables, wherever the group begins: a batch is divided among replicas later,
  // and each replica forms its groups from its first image. `chain` must
  // outlive this.
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
  // Reserves a table for image `row` in each layer that needs one. Reserves
  // nothing, and returns false, if one of these layers has no table left. Rows
  // of a batch come in rising order.
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

// A piece of work has this many bytes of images, but at most this many images.
// Less would not be worth waking a thread; more would leave threads idle.
inline constexpr int64_t kBytesPerPiece = 1 << 16;
inline constexpr int64_t kMostRowsPerPiece = 32;

inline int64_t RowsPerPiece(const OffloadOptions& options) {
  return std::clamp<int64_t>(kBytesPerPiece / options.image_bytes(), 1,
                             std::min(kMostRowsPerPiece, options.batches.size));
}

inline absl::Status NoMemoryForAnImage() {
  return ResourceExhausted(
      "No memory for an image between two layers of offload.");
}

// Allocates the components of a batch of elements with the shapes of `element`.
inline absl::Status MakeBatch(const OffloadOptions& options,
                              BatchMemory* memory,
                              const std::vector<Tensor>& element,
                              OffloadBatch* batch) {
  for (size_t i = 0; i < options.components.size(); ++i) {
    const int64_t from = options.components[i];
    TensorShape shape;
    if (from >= 0) {
      shape = element[from].shape();
    } else {
      PartialTensorShape row = options.shapes[i];
      row.RemoveDim(0);
      row.AsTensorShape(&shape);
    }
    TF_RETURN_IF_ERROR(shape.InsertDimWithStatus(0, options.batches.size));
    Tensor& tensor = batch->components.emplace_back();
    TF_RETURN_IF_ERROR(memory->Make(options.types[i], shape, &tensor));
    if (from == OffloadOptions::kImages) {
      batch->images = tensor.flat<uint8_t>().data();
    } else if (from == OffloadOptions::kDraws) {
      batch->draws = tensor.flat<int32_t>().data();
    }
  }
  return absl::OkStatus();
}

// Runs the policy layers left to the accelerator, and shortens the components
// to the rows that there are.
inline absl::Status CompleteShortBatch(const OffloadOptions& options,
                                       OffloadBatch* batch) {
  const int64_t bytes = options.image_bytes();
  try {
    const std::unique_ptr<uint8_t[]> image(new uint8_t[bytes]);
    Painter painter(options.policy_layers, options.size, kOffloadPixel,
                    BestKernels());
    for (int64_t row = 0; row < batch->num_rows; ++row) {
      int32_t* const draws = batch->draws + row * options.num_columns();
      if (std::exchange(draws[0], 0) == 0) continue;
      if (options.policy_layers.links().empty()) continue;
      uint8_t* const to = batch->images + row * bytes;
      std::memcpy(image.get(), to, bytes);
      painter.Paint(image.get(), draws + 1, to);
    }
  } catch (const std::bad_alloc&) {
    return NoMemoryForAnImage();
  }
  batch->num_unfinished = 0;
  Shorten(batch->num_rows, &batch->components);
  return absl::OkStatus();
}

class OffloadWork : public InputWork<OffloadPiece> {
 public:
  // `batch`: a batch to continue, some of whose rows are made, or null.
  // `position`: how many elements were read. The pointers and `options` must
  // outlive this object.
  OffloadWork(IteratorBase* input, IteratorContext* input_ctx,
              const OffloadOptions& options, OffloadStage* stage,
              OffloadStage::Iteration iteration,
              std::shared_ptr<OffloadBatch> batch, int64_t position,
              std::shared_ptr<BatchMemory> memory)
      : InputWork(input, input_ctx),
        options_(options),
        stage_(*stage),
        iteration_(std::move(iteration)),
        memory_(std::move(memory)),
        rows_per_piece_(RowsPerPiece(options)),
        table_limit_(options.policy_layers, options.tables, options.group),
        current_(std::move(batch)),
        position_(position) {}

  // Called while the workers are settled, or after the end.
  int64_t position() const { return position_; }

  // How many pieces a batch can have.
  int64_t pieces_per_batch() const {
    return (options_.batches.size + rows_per_piece_ - 1) / rows_per_piece_;
  }

  Outcome Fetch(OrderedWorkers::Piece* piece) override {
    auto& rows = static_cast<OffloadPiece&>(*piece);
    Result next;
    while (rows.next_status.ok() && rows.end < options_.batches.size &&
           rows.end - rows.begin < rows_per_piece_ && Read(&next)) {
      ++position_;
      rows.next_status = next.status.ok()
                             ? AddRow(std::move(next.element), &rows)
                             : next.status;
    }
    if (rows.begin < rows.end) return Outcome::kRun;
    return rows.next_status.ok() ? Outcome::kDropped : Outcome::kDone;
  }
  Outcome Run(OrderedWorkers::Piece* piece) override {
    auto& rows = static_cast<OffloadPiece&>(*piece);
    try {
      rows.status = MakeRows(rows);
    } catch (const std::bad_alloc&) {
      rows.status = NoMemoryForAnImage();
    }
    rows.elements.clear();
    return Outcome::kDone;
  }

 private:
  // Checks an element by itself, and against the rows of the current batch.
  absl::Status Check(const std::vector<Tensor>& element) const {
    TF_RETURN_IF_ERROR(
        tensorflow::data::VerifyTypesMatch(input_types(), element));
    if (options_.seeded && element.back().shape() != TensorShape({2})) {
      return InvalidArgument(
          "offload takes seeds of shape [2], got one of shape ",
          element.back().shape().DebugString(), ".");
    }
    const TensorShape& image = element[options_.image].shape();
    if (const TensorShape one(options_.ShapeWith({options_.size.width, 3}));
        image != one) {
      return InvalidArgument("offload takes images of one size, ",
                             one.DebugString(), ", got one of shape ",
                             image.DebugString(), ".");
    }
    if (current_ == nullptr) return absl::OkStatus();
    for (size_t i = 0; i < options_.components.size(); ++i) {
      const int64_t from = options_.components[i];
      if (from < 0) continue;
      TensorShape shape = current_->components[i].shape();
      shape.RemoveDim(0);
      if (element[from].shape() != shape) {
        return InvalidArgument(
            "offload batches elements of one shape, but component ", from,
            " has shape ", element[from].shape().DebugString(), " after ",
            shape.DebugString(), ". Pad it or remove it with map.");
      }
    }
    return absl::OkStatus();
  }
  // Adds an element to the current batch, as its next row.
  absl::Status AddRow(std::vector<Tensor> element, OffloadPiece* piece) {
    TF_RETURN_IF_ERROR(Check(element));
    if (current_ == nullptr) {
      auto made = std::make_shared<OffloadBatch>();
      TF_RETURN_IF_ERROR(
          MakeBatch(options_, memory_.get(), element, made.get()));
      made->fraction = stage_.BeginBatch();
      current_ = std::move(made);
      table_limit_.Begin();
    }
    OffloadBatch& batch = *current_;
    const int64_t row = batch.num_rows++;
    int32_t* const draws = batch.draws + row * options_.num_columns();
    std::array<int32_t, 2> seed;
    if (options_.seeded) {
      const auto given = element.back().vec<int32_t>();
      seed = {given(0), given(1)};
    } else {
      seed = StatelessSeed(iteration_.seed, Purpose::kFinalFunction,
                           iteration_.epoch, position_ - 1);
    }
    options_.layers.Draw(ImageSeed(seed[0], seed[1]), draws + 1);
    // The rows left to the accelerator are evenly spaced, so that it finds them
    // by a stride in each group, however the batch is divided.
    const int64_t nth = row % (options_.batches.size / options_.num_parts) + 1;
    const int eighths = batch.fraction.eighths;
    draws[0] = eighths > 0 && nth % (8 / eighths) == 0 &&
               table_limit_.Reserve(row, draws + 1);
    batch.num_unfinished += draws[0];
    if (piece->batch == nullptr) {
      piece->batch = current_;
      piece->begin = row;
    }
    piece->end = row + 1;
    piece->elements.push_back(std::move(element));
    if (batch.num_rows == options_.batches.size) {
      batch.position = position_;
      batch.checkpoint = Checkpoint();
      current_ = nullptr;
    }
    return absl::OkStatus();
  }
  absl::Status MakeRows(const OffloadPiece& piece) const {
    OffloadBatch& batch = *piece.batch;
    const int64_t bytes = options_.image_bytes();
    Painter painter(options_.policy_layers, options_.size, kOffloadPixel,
                    BestKernels());
    for (int64_t row = piece.begin; row < piece.end; ++row) {
      const std::vector<Tensor>& element = piece.elements[row - piece.begin];
      const uint8_t* const from =
          element[options_.image].flat<uint8_t>().data();
      const int32_t* const draws = batch.draws + row * options_.num_columns();
      uint8_t* const to = batch.images + row * bytes;
      if (draws[0] == 1 || options_.policy_layers.links().empty()) {
        std::memcpy(to, from, bytes);
      } else {
        painter.Paint(from, draws + 1, to);
      }
      for (size_t i = 0; i < options_.components.size(); ++i) {
        const int64_t component = options_.components[i];
        if (component < 0) continue;
        TF_RETURN_IF_ERROR(
            CopyToRow(element[component], row, &batch.components[i]));
      }
    }
    return absl::OkStatus();
  }

  const OffloadOptions& options_;
  OffloadStage& stage_;
  const OffloadStage::Iteration iteration_;
  const std::shared_ptr<BatchMemory> memory_;
  const int64_t rows_per_piece_;
  // Changed only by `Fetch`.
  TableLimit table_limit_;
  std::shared_ptr<OffloadBatch> current_;
  int64_t position_;
};

}  // namespace refurbish_tf
