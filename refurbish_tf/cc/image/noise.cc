#include "refurbish_tf/cc/image/noise.h"

#include <limits>
#include <vector>

#include "refurbish_tf/cc/image/image_seed.h"

namespace refurbish_tf {
namespace {

// For a standard deviation of 1: FIT.
constexpr double kFactors[] = {1, 1, 1, 1};
// Values up to 255 hardly stay below it, and those from 0 to 1 hardly reach it.
constexpr float kLargestWithNoise = 16;

class NoiseRows : public Resizer {
 public:
  NoiseRows(const PixelRows& image, const AddedNoise& noise,
            const PixelKernels& kernels, float* beyond)
      : image_(image),
        plan_(noise, image.pixel.type),
        kernels_(kernels),
        add_(image.pixel.type == ValueType::kUint8
                 ? kernels.add_noise_to_bytes
                 : kernels.add_noise_to_floats),
        beyond_(beyond) {}

  void Mirror() override { is_mirrored_ = !is_mirrored_; }
  void Rows(int64_t begin, int64_t count, uint8_t* to) override {
    if (!is_mirrored_) return Add(begin, count, to);
    const int64_t pixel_bytes = image_.pixel.bytes();
    const int64_t row_bytes = image_.width * pixel_bytes;
    row_.resize(row_bytes);
    for (int64_t row = begin; row < begin + count; ++row, to += row_bytes) {
      Add(row, 1, row_.data());
      LoopOf(kernels_.mirrors, pixel_bytes)(row_.data(), 0, image_.width,
                                            pixel_bytes, 1, to, 0);
    }
  }

 private:
  void Add(int64_t begin, int64_t count, uint8_t* to) {
    const int64_t values = image_.width * image_.pixel.channels;
    const uint8_t* const from =
        image_.memory + begin * values * BytesOf(image_.pixel.type);
    *beyond_ = std::max(
        *beyond_, add_(from, count * values, begin * values, plan_, to));
  }

  const PixelRows image_;
  const NoisePlan plan_;
  const PixelKernels& kernels_;
  const PixelKernels::AddNoise add_;
  float* const beyond_;
  bool is_mirrored_ = false;
  std::vector<uint8_t> row_;
};

}  // namespace

NoisePlan::NoisePlan(const AddedNoise& noise, ValueType type) {
  const ImageSeed seed(noise.seed[0], noise.seed[1]);
  key = {seed.Word(0), seed.Word(1)};
  const bool is_byte = type == ValueType::kUint8;
  const double unit = is_byte ? 255 : 1;
  for (size_t k = 0; k < factors.size(); ++k) {
    factors[k] = static_cast<float>(kFactors[k] * (noise.sigma * unit));
  }
  // Bytes are cut off to whole numbers, and so rounded to the nearest.
  offset = static_cast<float>(noise.mean * unit) + (is_byte ? 0.5f : 0.0f);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  lowest = noise.clip ? 0 : -kInfinity;
  highest = noise.clip ? static_cast<float>(unit) : kInfinity;
  limit = noise.clip && !is_byte ? kLargestWithNoise : kInfinity;
}

std::unique_ptr<Resizer> MakeNoise(const PixelRows& image, const AddedNoise& noise,
                                   const PixelKernels& kernels, float* beyond) {
  return std::make_unique<NoiseRows>(image, noise, kernels, beyond);
}

}  // namespace refurbish_tf
