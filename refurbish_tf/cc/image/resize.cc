#include "refurbish_tf/cc/image/resize.h"

#include <algorithm>
#include <cmath>

namespace refurbish_tf {
namespace {

double Unit(int32_t draw) { return draw / 2147483648.0; }

int64_t Nearest(double value) {
  return static_cast<int64_t>(std::floor(value + 0.5));
}

// The largest part in the middle whose width / height is in the range.
Box Centred(const Layer& layer, ImageSize image) {
  Box box = {0, 0, image.height, image.width};
  const double ratio = static_cast<double>(image.width) / image.height;
  if (ratio < layer.ratio[0]) {
    box.height = std::clamp<int64_t>(Nearest(image.width / layer.ratio[0]), 1,
                                     image.height);
  } else if (ratio > layer.ratio[1]) {
    box.width = std::clamp<int64_t>(Nearest(image.height * layer.ratio[1]), 1,
                                    image.width);
  }
  box.y = (image.height - box.height) / 2;
  box.x = (image.width - box.width) / 2;
  return box;
}

}  // namespace

Box ResizedCropBox(const Layer& layer, const int32_t* draws, ImageSize image) {
  if (layer.kind == LayerKind::kResize) {
    return {0, 0, image.height, image.width};
  }
  const double log_low = std::log(layer.ratio[0]);
  const double log_high = std::log(layer.ratio[1]);
  for (int attempt = 0; attempt < Layer::kNumAttempts; ++attempt) {
    const double area =
        static_cast<double>(image.height * image.width) *
        (layer.scale[0] +
         Unit(draws[2 * attempt]) * (layer.scale[1] - layer.scale[0]));
    const double aspect =
        std::exp(log_low + Unit(draws[2 * attempt + 1]) * (log_high - log_low));
    const double width = std::floor(std::sqrt(area * aspect) + 0.5);
    const double height = std::floor(std::sqrt(area / aspect) + 0.5);
    if (!(width > 0 && width <= image.width && height > 0 &&
          height <= image.height)) {
      continue;
    }
    Box box;
    box.width = static_cast<int64_t>(width);
    box.height = static_cast<int64_t>(height);
    const int32_t* const point = draws + 2 * Layer::kNumAttempts;
    box.y = static_cast<int64_t>(
        std::floor(Unit(point[0]) * (image.height - box.height + 1)));
    box.x = static_cast<int64_t>(
        std::floor(Unit(point[1]) * (image.width - box.width + 1)));
    return box;
  }
  return Centred(layer, image);
}

Blend::Blend(int64_t input, double begin, double length, int64_t output,
             bool antialias)
    : start_(output) {
  const double step = length / output;
  const double radius = antialias ? std::max(step, 1.0) : 1.0;
  // The filter is a triangle of this radius around the middle of each point.
  // `most` is how many points it covers at most.
  const int64_t most =
      std::min<int64_t>(static_cast<int64_t>(std::ceil(2 * radius)), input);
  pairs_ = (most + 1) / 2;
  weights_.assign(2 * pairs_ * output, 0);
  for (int64_t i = 0; i < output; ++i) {
    double middle = begin + (i + 0.5) * step - 0.5;
    if (!antialias) middle = std::clamp<double>(middle, 0, input - 1);
    const int64_t first = std::clamp<int64_t>(
        static_cast<int64_t>(std::floor(middle - radius)) + 1, 0, input - 1);
    const int64_t last = std::clamp<int64_t>(
        static_cast<int64_t>(std::ceil(middle + radius)) - 1, first,
        std::min(input - 1, first + 2 * pairs_ - 1));
    const auto weight = [middle, radius](int64_t point) {
      return std::max(0.0, 1 - std::abs(point - middle) / radius);
    };
    double total = 0;
    for (int64_t point = first; point <= last; ++point) total += weight(point);
    start_[i] = static_cast<int32_t>(first);
    // Rounds the running sum and not each weight, so that they add up to one
    // exactly.
    double sum = 0;
    int64_t given = 0;
    for (int64_t point = first; point <= last; ++point) {
      sum += weight(point);
      const int64_t until = Nearest(sum / total * (1 << kWeightBits));
      const int64_t k = point - first;
      weights_[2 * ((k / 2) * output + i) + k % 2] =
          static_cast<int16_t>(until - given);
      given = until;
    }
  }
}

void Blend::Reverse() {
  const int64_t output = static_cast<int64_t>(start_.size());
  std::reverse(start_.begin(), start_.end());
  for (int64_t pair = 0; pair < pairs_; ++pair) {
    int16_t* const of_pair = weights_.data() + 2 * pair * output;
    for (int64_t i = 0; i < output / 2; ++i) {
      std::swap_ranges(of_pair + 2 * i, of_pair + 2 * i + 2,
                       of_pair + 2 * (output - 1 - i));
    }
  }
}

void Blend::WeightsOf(int64_t point, int16_t* weights) const {
  const int64_t output = static_cast<int64_t>(start_.size());
  for (int64_t k = 0; k < 2 * pairs_; ++k) {
    weights[k] = weights_[2 * ((k / 2) * output + point) + k % 2];
  }
}

Resizer::Resizer(const uint8_t* image, int64_t image_width, int64_t channels,
                 const Box& box, ImageSize size, bool antialias,
                 const PixelKernels& kernels)
    : Resizer(image, image_width, channels, box,
              {0, 0, static_cast<double>(box.height),
               static_cast<double>(box.width)},
              size, antialias, kernels) {}

Resizer::Resizer(const uint8_t* image, int64_t image_width, int64_t channels,
                 const Box& box, const ResizeWindow& window, ImageSize size,
                 bool antialias, const PixelKernels& kernels)
    : part_(image + (box.y * image_width + box.x) * channels),
      stride_(image_width * channels),
      channels_(channels),
      width_(size.width),
      box_(box),
      kernels_(kernels),
      rows_(box.height, window.y, window.height, size.height, antialias),
      columns_(box.width, window.x, window.width, size.width, antialias),
      // Pixels beyond the last are read, with weights of 0.
      blended_(2 *
               ((box.width + 2 * columns_.pairs()) * channels + kWordsBeyond)),
      sources_(2 * rows_.pairs()),
      weights_(2 * rows_.pairs()) {}

void Resizer::BlendRow(int64_t row, int16_t* to) {
  rows_.WeightsOf(row, weights_.data());
  for (size_t k = 0; k < sources_.size(); ++k) {
    const int64_t source =
        std::min<int64_t>(rows_.start()[row] + k, box_.height - 1);
    sources_[k] = part_ + source * stride_;
  }
  kernels_.blend_rows(sources_.data(), weights_.data(), rows_.pairs(),
                      box_.width * channels_, to);
}

void Resizer::Rows(int64_t begin, int64_t count, uint8_t* to) {
  int16_t* const one = blended_.data();
  int16_t* const other = one + blended_.size() / 2;
  for (int64_t row = 0; row < count; row += 2) {
    // The last one of an odd number is made twice.
    const int64_t next = std::min(row + 1, count - 1);
    BlendRow(begin + row, one);
    BlendRow(begin + next, other);
    kernels_.blend_columns[channels_](
        {one, other}, columns_.start().data(), columns_.weights().data(),
        columns_.pairs(), width_,
        {to + row * width_ * channels_, to + next * width_ * channels_});
  }
}

}  // namespace refurbish_tf
