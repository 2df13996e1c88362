#include "refurbish_tf/cc/image/painter.h"

#include <algorithm>
#include <utility>

#include "refurbish_tf/cc/image/bicubic.h"
#include "refurbish_tf/cc/image/resize.h"

namespace refurbish_tf {
namespace {

constexpr FillColor kBlack = {0, 0, 0, 0};
// The mean of ImageNet, with which Deep AutoAugment fills.
constexpr FillColor kMeanColor = {125, 123, 114, 0};

int64_t BytesOf(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
      return 1;
    case ValueType::kBfloat16:
    case ValueType::kFloat16:
      return 2;
    case ValueType::kFloat32:
      return 4;
  }
  return 1;
}

bool ReadsOtherPoints(Distortion distortion) {
  switch (distortion) {
    case Distortion::kSharpness:
    case Distortion::kRotate:
    case Distortion::kShearX:
    case Distortion::kShearY:
    case Distortion::kTranslateX:
    case Distortion::kTranslateY:
      return true;
    default:
      return false;
  }
}

// A thread holds the memory between two walks for its next image. Blocks of
// this size go back to the system when they are freed, and to get them again
// takes as long as a walk.
constexpr int64_t kMostSpare = 1 << 20;
thread_local ImageMemory spare_memory, other_spare_memory;

void Spare(ImageMemory memory, ImageMemory* spare) {
  if (memory.size <= kMostSpare && memory.size > spare->size) {
    *spare = std::move(memory);
  }
}

}  // namespace

Painter::Painter(const LayerChain& chain, ImageSize size, int64_t channels,
                 const PixelKernels& kernels)
    : chain_(chain),
      size_(size),
      channels_(channels),
      kernels_(kernels),
      pattern_(chain.normalization(), channels),
      memory_(std::exchange(spare_memory, {})),
      other_memory_(std::exchange(other_spare_memory, {})) {}

Painter::~Painter() {
  Spare(std::move(memory_), &spare_memory);
  Spare(std::move(other_memory_), &other_spare_memory);
}

void Painter::Paint(const uint8_t* from, const int32_t* draws, void* to) {
  walk_.emplace(from, size_, channels_, kernels_);
  for (const Layer& layer : chain_.layers()) {
    Add(layer, draws);
    draws += layer.NumDraws();
  }
  Complete(to);
}

template <class Step>
void Painter::AddOrMakeFirst(const Step& step) {
  if (step()) return;
  Make();
  step();
}

void Painter::Add(const Layer& layer, const int32_t* draws) {
  const ImageSize size = walk_->size();
  switch (layer.kind) {
    case LayerKind::kRandomCrop: {
      const int64_t y = draws[0] - layer.padding, x = draws[1] - layer.padding;
      AddOrMakeFirst(
          [&] { return walk_->Shift(y, x, layer.reflects, kBlack); });
      return;
    }
    case LayerKind::kRandomFlip:
      if (draws[0] != 0) walk_->Flip();
      return;
    case LayerKind::kCutout: {
      const int64_t top = ((draws[0] * size.height) >> 31) - layer.side / 2;
      const int64_t left = ((draws[1] * size.width) >> 31) - layer.side / 2;
      const int64_t bottom = top + layer.side, right = left + layer.side;
      AddOrMakeFirst(
          [&] { return walk_->CutOut(top, bottom, left, right, kBlack); });
      return;
    }
    case LayerKind::kRandomResizedCrop:
    case LayerKind::kResize:
      AddResize(ResizedCropBox(layer, draws, size), {layer.height, layer.width},
                layer.antialias);
      return;
    case LayerKind::kPolicy:
      AddOutcome(*layer.policy, draws);
      return;
    case LayerKind::kNormalize:
      return;
  }
}

void Painter::AddOutcome(const Policy& policy, const int32_t* draws) {
  const PolicyOutcome& outcome = policy.At(draws[0]);
  const int64_t whole = static_cast<int64_t>(outcome.parameter);
  const ImageSize size = walk_->size();
  switch (outcome.random) {
    case RandomOperation::kNone:
      break;
    case RandomOperation::kFlip:
      if (draws[1] != 0) walk_->Flip();
      return;
    case RandomOperation::kCrop: {
      const int64_t y = draws[1] - whole, x = draws[2] - whole;
      AddOrMakeFirst([&] { return walk_->Shift(y, x, false, kMeanColor); });
      return;
    }
    case RandomOperation::kCutout: {
      const int64_t top = draws[1] % size.height - whole / 2;
      const int64_t left = draws[2] % size.width - whole / 2;
      const int64_t side = whole / 2 * 2 + 1;
      AddOrMakeFirst([&] {
        return walk_->CutOut(top, top + side, left, left + side, kMeanColor);
      });
      return;
    }
    case RandomOperation::kResizedCrop: {
      Make();
      const uint8_t* const image = walk_->memory();
      uint8_t* const made = Fresh(size.height * walk_->row_bytes());
      ResizeBicubic(image, size, BicubicBox(draws + 1, size), kernels_, made);
      std::swap(memory_, other_memory_);
      walk_.emplace(made, size, channels_, kernels_);
      return;
    }
  }
  const Distortion distortion = outcome.distortion.distortion;
  if (outcome.distortion.changes_nothing) return;
  if (ReadsOtherPoints(distortion)) {
    Make();
    walk_->Distort(outcome.distortion, policy.fill());
    return;
  }
  if (PixelStep::NeedsImage(distortion)) Make();
  walk_->Add(PixelStep(outcome.distortion, walk_->memory(),
                       size.height * size.width, kernels_));
}

void Painter::AddResize(Box box, ImageSize size, bool antialias) {
  if (walk_->memory() == nullptr) {
    // Only the part that is resized is made.
    if (walk_->Cut(box)) box.y = box.x = 0;
    Make();
  }
  const uint8_t* const image = walk_->memory();
  walk_.emplace(image, walk_->size(), channels_, box, size, antialias,
                kernels_);
}

void Painter::Make() {
  if (walk_->memory() != nullptr) return;
  const ImageSize size = walk_->size();
  uint8_t* const made = Fresh(size.height * walk_->row_bytes());
  MakeRows(made);
  std::swap(memory_, other_memory_);
  walk_.emplace(made, size, channels_, kernels_);
}

void Painter::MakeRows(uint8_t* to) {
  const int64_t height = walk_->size().height, row_bytes = walk_->row_bytes();
  const int64_t at_once = std::max<int64_t>(1, Walk::kBand / row_bytes);
  for (int64_t row = 0; row < height; row += at_once) {
    walk_->Rows(row, std::min(at_once, height - row), to + row * row_bytes,
                to + height * row_bytes);
  }
}

// `other_memory_` is that of the image before the present one.
uint8_t* Painter::Fresh(int64_t bytes) {
  if (other_memory_.size < bytes) {
    // Not initialised, as that would be another walk.
    other_memory_.bytes.reset(new uint8_t[bytes]);
    other_memory_.size = bytes;
  }
  return other_memory_.bytes.get();
}

void Painter::Complete(void* to) {
  if (chain_.normalization().type == ValueType::kUint8) {
    MakeRows(static_cast<uint8_t*>(to));
    return;
  }
  const int64_t height = walk_->size().height, row_bytes = walk_->row_bytes();
  if (const uint8_t* image = walk_->memory(); image != nullptr) {
    Convert(image, height * row_bytes, to);
    return;
  }
  uint8_t band[Walk::kBand];
  uint8_t* rows = band;
  if (row_bytes > Walk::kBand) {
    if (long_row_ == nullptr) long_row_.reset(new uint8_t[row_bytes]);
    rows = long_row_.get();
  }
  const int64_t at_once = std::max<int64_t>(1, Walk::kBand / row_bytes);
  for (int64_t row = 0; row < height; row += at_once) {
    const int64_t count = std::min(at_once, height - row);
    walk_->Rows(row, count, rows, rows + count * row_bytes);
    to = Convert(rows, count * row_bytes, to);
  }
}

uint8_t* Painter::Convert(const uint8_t* from, int64_t count, void* to) const {
  const ValueType type = chain_.normalization().type;
  kernels_.normalize[static_cast<int>(type)](from, count, pattern_, to);
  return static_cast<uint8_t*>(to) + count * BytesOf(type);
}

}  // namespace refurbish_tf
