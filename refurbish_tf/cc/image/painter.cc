#include "refurbish_tf/cc/image/painter.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "refurbish_tf/cc/image/bicubic.h"
#include "refurbish_tf/cc/image/noise.h"
#include "refurbish_tf/cc/image/orientation.h"

namespace refurbish_tf {
namespace {

// Each thread keeps the memory of two images, of at most this many bytes each,
// for its next image. If freed, memory of this size would go back to the
// system, and getting it again would take as long as a pass.
constexpr int64_t kMostSpare = 1 << 20;
thread_local ImageMemory spare_memory, other_spare_memory;

void Reserve(int64_t bytes, ImageMemory* memory) {
  if (memory->size >= bytes) return;
  // Not initialized, because that would be another pass.
  memory->bytes.reset(new uint8_t[bytes]);
  memory->size = bytes;
}

void Spare(ImageMemory memory, ImageMemory* spare) {
  if (memory.size <= kMostSpare && memory.size > spare->size) {
    *spare = std::move(memory);
  }
}

}  // namespace

Painter::Painter(const LayerChain& chain, ImageSize size, Pixel pixel,
                 const PixelKernels& kernels, int64_t times, int number)
    : chain_(chain),
      from_size_(size),
      from_pixel_(pixel),
      kernels_(kernels),
      times_(times),
      number_(number),
      memory_(std::exchange(spare_memory, {})),
      other_memory_(std::exchange(other_spare_memory, {})) {}

Painter::~Painter() {
  Spare(std::move(memory_), &spare_memory);
  Spare(std::move(other_memory_), &other_spare_memory);
}

void Painter::End(void* to, Stores stores) {
  if (normalization_ == nullptr) {
    MakeRows(static_cast<uint8_t*>(to));
  } else {
    MakeNormalizedRows(to, stores);
    if (stores == Stores::kPastCaches) kernels_.fence();
  }
}

void Painter::Transpose() {
  Make();
  const ImageSize size = pass_->size();
  const int64_t row_bytes = pass_->row_bytes();
  uint8_t* const made = Fresh(size.height * row_bytes);
  Orientation(Orientation::kTransposed)
      .Turn(pass_->memory(), size, row_bytes, pixel_.bytes(), made);
  BeginWith(made, {size.width, size.height});
}

float Painter::Mean() {
  Make();
  const auto* const values = reinterpret_cast<const float*>(pass_->memory());
  const int64_t count = pass_->size().height * pass_->row_bytes() / 4;
  // In an order that lets vector instructions add several numbers at once.
  double sums[8] = {};
  const double rest = std::accumulate(values, values + count % 8, 0.0);
  for (int64_t i = count % 8; i < count; i += 8) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) sums[k] += values[i + k];
  }
  return static_cast<float>(std::accumulate(sums, sums + 8, rest) /
                            static_cast<double>(count));
}

void Painter::Resize(const Box& part, ImageSize size, bool antialias) {
  MakeNormalized();
  Box box = Enlarged(part);
  if (pass_->memory() == nullptr) {
    // Makes only the part that is resized.
    if (pass_->Crop(box, Border::kEmpty, kBlack)) box.y = box.x = 0;
    Make();
  }
  const uint8_t* const image = pass_->memory();
  const ImageSize from = pass_->size(), made = Enlarged(size);
  pass_.emplace(image, from, pixel_, kernels_,
                MakeResizer({image, from.width, pixel_}, box, WholeOf(box),
                            made, antialias, kernels_),
                made);
}

void Painter::ResizeBicubic(const Box& part) {
  Make();
  const ImageSize size = pass_->size();
  const uint8_t* const image = pass_->memory();
  uint8_t* const made = Fresh(size.height * pass_->row_bytes());
  refurbish_tf::ResizeBicubic(image, size, Enlarged(part), kernels_, made);
  BeginWith(made, size);
}

void Painter::Blur(const Gaussian& gaussian) {
  Make();
  const Gaussian enlarged = {gaussian.sigma * static_cast<double>(times_),
                             gaussian.radius * times_};
  const uint8_t* const image = pass_->memory();
  const ImageSize size = pass_->size();
  pass_.emplace(image, size, pixel_, kernels_,
                MakeBlur({image, size.width, pixel_}, size, enlarged, kernels_),
                size);
}

void Painter::Distort(const PreparedDistortion& distortion, uint8_t fill) {
  MakeNormalized();
  if (ReadsOtherPoints(distortion.distortion)) {
    Make();
    pass_->Distort(
        times_ == 1 ? distortion : distortion.Enlarged(times_, size()), fill);
    return;
  }
  if (PixelStep::NeedsImage(distortion.distortion)) Make();
  const ImageSize size = pass_->size();
  pass_->Add(PixelStep(distortion, pass_->memory(), size.height * size.width,
                       pixel_.channels, kernels_));
}

// The parts to add follow the result in memory.
void Painter::Blend(const std::vector<float>& weights, Branch branch) {
  Make();
  const ImageSize size = pass_->size();
  const int64_t bytes = size.height * pass_->row_bytes();
  const int number = static_cast<int>(weights.size());
  uint8_t* const made = Fresh((1 + number) * bytes);
  for (int k = 0; k < number; ++k) {
    Painter(chain_, size, pixel_, kernels_, times_, number_)
        .PaintBy([&](Canvas* canvas) { branch(k, canvas); }, pass_->memory(),
                 made + (1 + k) * bytes);
  }
  kernels_.sum_rows_of_bytes(made + bytes, bytes, weights.data(), number, made);
  BeginWith(made, size);
}

void Painter::Displace(const Displacement& displacement) {
  Make();
  if (!field_ || !field_->IsOf(displacement, size())) {
    field_.emplace(displacement, size());
  }
  uint8_t* const made = Fresh(pass_->size().height * pass_->row_bytes());
  field_->Apply(pass_->memory(), pixel_, times_, made);
  BeginWith(made, pass_->size());
}

void Painter::AddNoise(const AddedNoise& noise) {
  MakeNormalized();
  const ImageSize size = pass_->size();
  uint8_t* const made = Fresh(size.height * pass_->row_bytes());
  const uint8_t* image = pass_->memory();
  if (image == nullptr) {
    MakeRows(made);
    image = made;
  }
  const PixelKernels::AddNoise add = pixel_.type == ValueType::kUint8
                                         ? kernels_.add_noise_to_bytes
                                         : kernels_.add_noise_to_floats;
  const int64_t values = size.height * size.width * pixel_.channels;
  AddedNoise own = noise;
  if (number_ > 0) {
    own.seed = ImageSeed(noise.seed[0], noise.seed[1]).At(number_);
  }
  const float beyond = add(image, values, NoisePlan(own, pixel_.type), made);
  if (beyond != 0) beyond_.noisy = beyond;
  BeginWith(made, size);
}

void Painter::BeginWith(const uint8_t* made, ImageSize size) {
  std::swap(memory_, other_memory_);
  pass_.emplace(made, size, pixel_, kernels_);
}

void Painter::MakeNormalized() {
  if (normalization_ == nullptr) return;
  const ImageSize size = pass_->size();
  const Pixel made_pixel = {normalization_->type, pixel_.channels};
  uint8_t* const made = Fresh(size.height * size.width * made_pixel.bytes());
  MakeNormalizedRows(made);
  normalization_ = nullptr;
  pixel_ = made_pixel;
  BeginWith(made, size);
}

void Painter::Make() {
  MakeNormalized();
  if (pass_->memory() != nullptr) return;
  const ImageSize size = pass_->size();
  uint8_t* const made = Fresh(size.height * pass_->row_bytes());
  MakeRows(made);
  BeginWith(made, size);
}

void Painter::MakeRows(uint8_t* to) {
  const int64_t height = pass_->size().height, row_bytes = pass_->row_bytes();
  const int64_t at_once = std::max<int64_t>(1, FusedPass::kBand / row_bytes);
  for (int64_t row = 0; row < height; row += at_once) {
    pass_->Rows(row, std::min(at_once, height - row), to + row * row_bytes,
                to + height * row_bytes);
  }
}

// Overwrites the previous image, which no pass reads again.
uint8_t* Painter::Fresh(int64_t bytes) {
  Reserve(bytes, &other_memory_);
  return other_memory_.bytes.get();
}

void Painter::MakeNormalizedRows(void* to, Stores stores) {
  const ValueType type = normalization_->type;
  const Pattern& pattern = normalization_->patterns.at(pixel_.type);
  const PixelKernels::Normalize normalize =
      kernels_.NormalizeOf(pixel_.type, type, stores);
  const int64_t height = pass_->size().height, row_bytes = pass_->row_bytes();
  const int64_t row_values = row_bytes / BytesOf(pixel_.type);
  if (const uint8_t* image = pass_->memory(); image != nullptr) {
    beyond_.normalized = std::max(
        beyond_.normalized, normalize(image, height * row_values, pattern, to));
    return;
  }
  alignas(16) uint8_t band[FusedPass::kBand];
  uint8_t* rows = band;
  if (row_bytes > FusedPass::kBand) {
    Reserve(row_bytes, &long_row_);
    rows = long_row_.bytes.get();
  }
  auto* made = static_cast<uint8_t*>(to);
  const int64_t at_once = std::max<int64_t>(1, FusedPass::kBand / row_bytes);
  for (int64_t row = 0; row < height; row += at_once) {
    const int64_t count = std::min(at_once, height - row);
    pass_->Rows(row, count, rows, rows + count * row_bytes);
    beyond_.normalized = std::max(
        beyond_.normalized, normalize(rows, count * row_values, pattern, made));
    made += count * row_values * BytesOf(type);
  }
}

}  // namespace refurbish_tf
