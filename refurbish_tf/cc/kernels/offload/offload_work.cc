#include "refurbish_tf/cc/kernels/offload/offload_work.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "refurbish_tf/cc/batches/batch_rows.h"
#include "refurbish_tf/cc/image/painter.h"
#include "refurbish_tf/cc/image/vector_kernels.h"
#include "refurbish_tf/cc/plan/random.h"
#include "tensorflow/core/data/dataset_utils.h"

namespace refurbish_tf {
namespace {

// A piece of work has this many bytes of images, but at most this many images.
// Less would not be worth waking a thread; more would leave threads idle.
constexpr int64_t kBytesPerPiece = 1 << 16;
constexpr int64_t kMostRowsPerPiece = 32;

int64_t RowsPerPiece(const OffloadOptions& options) {
  return std::clamp<int64_t>(kBytesPerPiece / options.image_bytes(), 1,
                             std::min(kMostRowsPerPiece, options.batches.size));
}

absl::Status NoMemoryForAnImage() {
  return ResourceExhausted(
      "No memory for an image between two layers of offload.");
}

}  // namespace

absl::Status MakeBatch(const OffloadOptions& options, BatchMemory* memory,
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

absl::Status CompleteShortBatch(const OffloadOptions& options,
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

OffloadWork::OffloadWork(IteratorBase* input, IteratorContext* input_ctx,
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

OrderedWorkers::Outcome OffloadWork::Fetch(OrderedWorkers::Piece* piece) {
  auto& rows = static_cast<OffloadPiece&>(*piece);
  Result next;
  while (rows.next_status.ok() && rows.end < options_.batches.size &&
         rows.end - rows.begin < rows_per_piece_ && Read(&next)) {
    ++position_;
    rows.next_status =
        next.status.ok() ? AddRow(std::move(next.element), &rows) : next.status;
  }
  if (rows.begin < rows.end) return OrderedWorkers::Outcome::kRun;
  return rows.next_status.ok() ? OrderedWorkers::Outcome::kDropped
                               : OrderedWorkers::Outcome::kDone;
}

absl::Status OffloadWork::Check(const std::vector<Tensor>& element) const {
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
          " has shape ", element[from].shape().DebugString(), " and before ",
          shape.DebugString(), ". Pad it, or leave it out, with map.");
    }
  }
  return absl::OkStatus();
}

absl::Status OffloadWork::AddRow(std::vector<Tensor> element,
                                 OffloadPiece* piece) {
  TF_RETURN_IF_ERROR(Check(element));
  if (current_ == nullptr) {
    auto made = std::make_shared<OffloadBatch>();
    TF_RETURN_IF_ERROR(MakeBatch(options_, memory_.get(), element, made.get()));
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

OrderedWorkers::Outcome OffloadWork::Run(OrderedWorkers::Piece* piece) {
  auto& rows = static_cast<OffloadPiece&>(*piece);
  try {
    rows.status = MakeRows(rows);
  } catch (const std::bad_alloc&) {
    rows.status = NoMemoryForAnImage();
  }
  rows.elements.clear();
  return OrderedWorkers::Outcome::kDone;
}

absl::Status OffloadWork::MakeRows(const OffloadPiece& piece) const {
  OffloadBatch& batch = *piece.batch;
  const int64_t bytes = options_.image_bytes();
  Painter painter(options_.policy_layers, options_.size, kOffloadPixel,
                  BestKernels());
  for (int64_t row = piece.begin; row < piece.end; ++row) {
    const std::vector<Tensor>& element = piece.elements[row - piece.begin];
    const uint8_t* const from = element[options_.image].flat<uint8_t>().data();
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

}  // namespace refurbish_tf
