#include "refurbish_tf/cc/image/resize.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/image/float_resizer.h"

namespace refurbish_tf {
namespace {

int64_t Nearest(double value) {
  return static_cast<int64_t>(std::floor(value + 0.5));
}

// The weights that resize a part of `input` points to `output` points. The part
// begins at `begin` and is `length` long. Weights are in the order that
// kernels.h describes.
class Blend {
 public:
  Blend(int64_t input, double begin, double length, int64_t output,
        bool antialias)
      : start_(output) {
    const double step = length / output;
    const double radius = antialias ? std::max(step, 1.0) : 1.0;
    // The filter is a triangle of this radius around the middle of each point,
    // and covers at most `most` points.
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
      for (int64_t point = first; point <= last; ++point)
        total += weight(point);
      start_[i] = static_cast<int32_t>(first);
      Set(i, last - first + 1, total,
          [&](int64_t k) { return weight(first + k); });
    }
  }

  Blend(const GaussianAxis& axis, int64_t size)
      : pairs_((axis.most() + 1) / 2), start_(size) {
    weights_.assign(2 * pairs_ * size, 0);
    int64_t inner = -1;
    for (int64_t i = 0; i < size; ++i) {
      start_[i] = static_cast<int32_t>(axis.FirstOf(i));
      if (axis.IsInner(i) && inner >= 0) {
        for (int64_t pair = 0; pair < pairs_; ++pair) {
          std::copy_n(weights_.data() + 2 * (pair * size + inner), 2,
                      weights_.data() + 2 * (pair * size + i));
        }
        continue;
      }
      if (axis.IsInner(i)) inner = i;
      const std::vector<double> weights = axis.WeightsOf(i);
      Set(i, static_cast<int64_t>(weights.size()), 1,
          [&](int64_t k) { return weights[k]; });
    }
  }

  // Reverses the order of the output.
  void Reverse() {
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

  int64_t pairs() const { return pairs_; }
  const std::vector<int32_t>& start() const { return start_; }
  const std::vector<int16_t>& weights() const { return weights_; }
  // The weights of one point, pair after pair.
  void WeightsOf(int64_t point, int16_t* weights) const {
    const int64_t output = static_cast<int64_t>(start_.size());
    for (int64_t k = 0; k < 2 * pairs_; ++k) {
      weights[k] = weights_[2 * ((k / 2) * output + point) + k % 2];
    }
  }

 private:
  // Sets the weights of a point: `weight(k)` for the k-th of `count` points of
  // the input. They must add up to `total`.
  template <class Weight>
  void Set(int64_t point, int64_t count, double total, const Weight& weight) {
    const int64_t output = static_cast<int64_t>(start_.size());
    // Rounds the running sum, not each weight, so that the weights add up to 1.
    double sum = 0;
    int64_t given = 0;
    for (int64_t k = 0; k < count; ++k) {
      sum += weight(k);
      const int64_t until = Nearest(sum / total * (1 << kWeightBits));
      weights_[2 * ((k / 2) * output + point) + k % 2] =
          static_cast<int16_t>(until - given);
      given = until;
    }
  }

  int64_t pairs_;
  std::vector<int32_t> start_;
  std::vector<int16_t> weights_;
};

class ByteResizer : public Resizer {
 public:
  ByteResizer(const PixelRows& image, const Box& box, Blend rows, Blend columns,
              const PixelKernels& kernels)
      : part_(image.memory +
              (box.y * image.width + box.x) * image.pixel.channels),
        stride_(image.width * image.pixel.channels),
        channels_(image.pixel.channels),
        width_(static_cast<int64_t>(columns.start().size())),
        box_(box),
        kernels_(kernels),
        rows_(std::move(rows)),
        columns_(std::move(columns)),
        // `blend_columns` also reads pixels beyond the last, with weights of 0.
        blended_(2 * ((box.width + 2 * columns_.pairs()) * channels_ +
                      kWordsBeyond)),
        sources_(2 * rows_.pairs()),
        weights_(2 * rows_.pairs()) {}

  void Mirror() override { columns_.Reverse(); }
  void Rows(int64_t begin, int64_t count, uint8_t* to) override {
    int16_t* const one = blended_.data();
    int16_t* const other = one + blended_.size() / 2;
    for (int64_t row = 0; row < count; row += 2) {
      // The last of an odd number of rows is made twice.
      const int64_t next = std::min(row + 1, count - 1);
      BlendRow(begin + row, one);
      BlendRow(begin + next, other);
      LoopOf(kernels_.blend_columns, channels_)(
          {one, other}, channels_, columns_.start().data(),
          columns_.weights().data(), columns_.pairs(), width_,
          {to + row * width_ * channels_, to + next * width_ * channels_});
    }
  }

 private:
  // Makes a row of the result that is still as wide as the box, in int16.
  void BlendRow(int64_t row, int16_t* to) {
    rows_.WeightsOf(row, weights_.data());
    for (size_t k = 0; k < sources_.size(); ++k) {
      const int64_t source =
          std::min<int64_t>(rows_.start()[row] + k, box_.height - 1);
      sources_[k] = part_ + source * stride_;
    }
    kernels_.blend_rows(sources_.data(), weights_.data(), rows_.pairs(),
                        box_.width * channels_, to);
  }

  const uint8_t* const part_;
  const int64_t stride_, channels_, width_;
  const Box box_;
  const PixelKernels& kernels_;
  const Blend rows_;
  Blend columns_;
  // The two rows that `blend_columns` reads.
  std::vector<int16_t> blended_;
  std::vector<const uint8_t*> sources_;
  std::vector<int16_t> weights_;
};

std::unique_ptr<Resizer> MakeOfFloats(const PixelRows& image, const Box& box,
                                      FloatSpans rows, FloatSpans columns) {
  const auto made = [&](auto value) -> std::unique_ptr<Resizer> {
    using Value = decltype(value);
    return std::make_unique<ValueResizer<Value>>(
        reinterpret_cast<const Value*>(image.memory), image.width,
        image.pixel.channels, box, std::move(rows), std::move(columns));
  };
  switch (image.pixel.type) {
    case ValueType::kUint16:
      return made(uint16_t());
    case ValueType::kInt16:
      return made(int16_t());
    default:
      return made(float());
  }
}

}  // namespace

std::unique_ptr<Resizer> MakeResizer(const PixelRows& image, const Box& box,
                                     const ResizeWindow& window, ImageSize size,
                                     bool antialias,
                                     const PixelKernels& kernels) {
  if (image.pixel.type != ValueType::kUint8) {
    return MakeOfFloats(image, box,
                        BilinearSpans(box.height, size.height, antialias),
                        BilinearSpans(box.width, size.width, antialias));
  }
  return std::make_unique<ByteResizer>(
      image, box,
      Blend(box.height, window.y, window.height, size.height, antialias),
      Blend(box.width, window.x, window.width, size.width, antialias), kernels);
}

std::unique_ptr<Resizer> MakeBlur(const PixelRows& image, ImageSize size,
                                  const Gaussian& gaussian,
                                  const PixelKernels& kernels) {
  const Box box = {0, 0, size.height, size.width};
  const GaussianAxis rows(gaussian, size.height);
  const GaussianAxis columns(gaussian, size.width);
  if (image.pixel.type != ValueType::kUint8) {
    return MakeOfFloats(image, box, rows.Spans(), columns.Spans());
  }
  return std::make_unique<ByteResizer>(image, box, Blend(rows, size.height),
                                       Blend(columns, size.width), kernels);
}

}  // namespace refurbish_tf
