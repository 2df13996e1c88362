#include "refurbish_tf/cc/image/targets/mask.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

#include "refurbish_tf/cc/image/distortions.h"

namespace refurbish_tf {
namespace {

constexpr int kPointBytes = sizeof(int32_t);

std::vector<int32_t> Numbered(int64_t size) {
  std::vector<int32_t> numbers(size);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

std::vector<int32_t> Resized(double from, double length, int64_t input,
                             int64_t output) {
  std::vector<int32_t> line(output);
  for (int64_t i = 0; i < output; ++i) {
    const double point = std::floor(from + (i + 0.5) * (length / output));
    line[i] = static_cast<int32_t>(
        std::clamp<int64_t>(static_cast<int64_t>(point), 0, input - 1));
  }
  return line;
}

}  // namespace

MaskPoints::MaskPoints(ImageSize size, const PixelKernels& kernels)
    : kernels_(kernels),
      size_(size),
      rows_(Numbered(size.height)),
      columns_(Numbered(size.width)) {}

void MaskPoints::Transpose() {
  const ImageSize now = size();
  std::vector<int32_t> points;
  points.reserve(now.height * now.width);
  for (int64_t x = 0; x < now.width; ++x) {
    for (int64_t y = 0; y < now.height; ++y) points.push_back(At(y, x));
  }
  GoOnFrom(std::move(points), {now.width, now.height});
}

void MaskPoints::Resize(const Box& part, ImageSize to, bool /*antialias*/) {
  const ImageSize from = size();
  Follow(Resized(part.y, part.height, from.height, to.height),
         Resized(part.x, part.width, from.width, to.width));
}

template <class Make>
void MaskPoints::Remake(const Make& make) {
  const ImageSize now = size();
  std::vector<int32_t> points, made(now.height * now.width);
  points.reserve(made.size());
  for (int64_t y = 0; y < now.height; ++y) {
    for (int64_t x = 0; x < now.width; ++x) points.push_back(At(y, x));
  }
  make(now, reinterpret_cast<const uint8_t*>(points.data()),
       reinterpret_cast<uint8_t*>(made.data()));
  GoOnFrom(std::move(made), now);
}

void MaskPoints::MoveBy(const PreparedDistortion& distortion) {
  Remake([&](ImageSize now, const uint8_t* from, uint8_t* to) {
    const RowStep step(distortion, /*fill=*/0, from, now.height, now.width,
                       kPointBytes, kernels_);
    const int64_t row_bytes = now.width * kPointBytes;
    uint8_t* const end = to + now.height * row_bytes;
    for (int64_t y = 0; y < now.height; ++y, to += row_bytes) {
      step.Row(y, 0, now.width, to, end);
    }
  });
}

void MaskPoints::Displace(const Displacement& displacement) {
  Displacement nearest = displacement;
  nearest.is_nearest = true;
  nearest.fill = kBlack;
  Remake([&](ImageSize now, const uint8_t* from, uint8_t* to) {
    DisplacementField(nearest, now)
        .Apply(from, {ValueType::kUint8, kPointBytes}, /*times=*/1, to);
  });
}

void MaskPoints::GoOnFrom(std::vector<int32_t> points, ImageSize size) {
  size_ = size;
  rows_ = Numbered(size.height);
  columns_ = Numbered(size.width);
  points_ = std::move(points);
}

void MaskPoints::Follow(const Line& rows, const Line& columns) {
  const auto follow = [](const Line& followed, Line* line) {
    Line made;
    made.reserve(followed.size());
    for (const int32_t i : followed) made.push_back(i < 0 ? -1 : (*line)[i]);
    *line = std::move(made);
  };
  follow(rows, &rows_);
  follow(columns, &columns_);
}

void MaskPoints::Move(const uint8_t* from, int64_t pixel_bytes,
                      uint8_t* to) const {
  const auto move = [&](auto bytes) {
    // `at(i)`: pixel i of the source row, or null if it is empty.
    const auto move_row = [&](const auto& at) {
      for (const int32_t column : columns_) {
        const uint8_t* const pixel = column < 0 ? nullptr : at(column);
        if (pixel == nullptr) {
          std::memset(to, 0, bytes);
        } else {
          std::memcpy(to, pixel, bytes);
        }
        to += bytes;
      }
    };
    for (const int32_t row : rows_) {
      if (row < 0) {
        std::memset(to, 0, columns_.size() * bytes);
        to += columns_.size() * bytes;
      } else if (points_.empty()) {
        const uint8_t* const pixels = from + row * size_.width * bytes;
        move_row([&](int32_t column) { return pixels + column * bytes; });
      } else {
        const int32_t* const points = points_.data() + row * size_.width;
        move_row([&](int32_t column) {
          const int64_t point = points[column];
          return point == 0 ? nullptr : from + (point - 1) * bytes;
        });
      }
    }
  };
  // With a size known at compile time, memcpy is a single instruction.
  switch (pixel_bytes) {
    case 1:
      return move(std::integral_constant<int64_t, 1>());
    case 4:
      return move(std::integral_constant<int64_t, 4>());
    default:
      return move(pixel_bytes);
  }
}

}  // namespace refurbish_tf
