// An image that is not computed yet: pixels in memory, and the steps to apply
// to them in one pass over their bytes. Rows are computed on demand, in bands
// that stay in the L1 cache from step to step.
//
// The steps are, in this order: a resize, a blur or a distortion that reads
// other pixels; distortions of single pixels; the plan of crops, flips and
// cutouts; more distortions of single pixels, which also change empty pixels.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "refurbish_tf/cc/image/distortions.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/plan.h"
#include "refurbish_tf/cc/image/resize.h"

namespace refurbish_tf {

class FusedPass {
 public:
  // The most bytes in a band, unless a single row is longer.
  static constexpr int64_t kBand = 8192;

  // `image` must outlive this. If there is a `resizer`, it is the first step,
  // and its result has size `made`.
  FusedPass(const uint8_t* image, ImageSize size, Pixel pixel,
            const PixelKernels& kernels,
            std::unique_ptr<Resizer> resizer = nullptr, ImageSize made = {})
      : image_(image),
        image_size_(size),
        pixel_bytes_(pixel.bytes()),
        kernels_(kernels),
        resizer_(std::move(resizer)),
        plan_(resizer_ ? made : size) {}

  // The image, or null if there are steps to apply.
  const uint8_t* memory() const;
  // The size of the result.
  ImageSize size() const { return plan_.size(); }
  int64_t row_bytes() const { return plan_.columns.size() * pixel_bytes_; }

  // Adds a step, which can follow any other steps.
  void Add(const PixelStep& step) {
    if (step.changes_nothing()) return;
    PixelSteps& steps = plan_.has_empty ? steps_behind_ : steps_;
    if (steps.empty() || !steps.back().Compose(step)) steps.push_back(step);
  }

  // Each adds a step, or returns false if the step cannot follow the earlier
  // ones. The caller must then compute the image, and add it to a new pass.
  bool Crop(const Box& part, Border border, FillColor color,
            int64_t outermost = 1);
  bool Flip(bool vertically);
  bool CutOut(const Box& part, FillColor color);

  // Must be the first step, so `memory()` must not be null. `RowStep` must
  // accept the image's pixels; if `Add` follows, they must have one or three
  // bytes.
  void Distort(const PreparedDistortion& distortion, uint8_t fill) {
    row_step_.emplace(distortion, fill, image_, image_size_.height,
                      image_size_.width, static_cast<int>(pixel_bytes_),
                      kernels_);
  }

  // Writes `count` rows. Bytes after them, up to `end`, may be overwritten.
  void Rows(int64_t begin, int64_t count, uint8_t* to, uint8_t* end);

 private:
  using PixelSteps = absl::InlinedVector<PixelStep, 2>;
  // A strip of columns of the result, in bytes. The cutouts that a row is in
  // determine which of its columns are empty.
  struct Piece {
    bool is_empty() const { return from < 0; }

    int64_t to, from, length, step;
  };
  using Pieces = absl::InlinedVector<Piece, 8>;

  // Returns whether empty pixels can have this color, and if so, sets it.
  bool Accepts(FillColor color) {
    if (resizer_ || !steps_behind_.empty()) return false;
    if (plan_.has_empty && color != color_) return false;
    color_ = color;
    return true;
  }
  Pieces PiecesOf(uint64_t cutouts) const;
  // Calls visit(number of rows, where to write them, their strip, source of the
  // first row, pieces) for each run of rows with equal pieces.
  template <class Visit>
  void ForEachPart(int64_t begin, int64_t count, uint8_t* to,
                   const Visit& visit) const;
  void MoveRows(int64_t begin, int64_t count, uint8_t* to, uint8_t* end);
  void CopyPieces(const uint8_t* from, int64_t from_stride, int64_t step,
                  int64_t rows, const Pieces& pieces, uint8_t* to) const;
  void DistortPieces(int64_t from, int64_t step, int64_t rows,
                     const Pieces& pieces, uint8_t* to, uint8_t* end);
  void Empty(uint8_t* to, int64_t length) const;
  void Repeat(const uint8_t* pixel, int64_t length, uint8_t* to) const;
  void EmptyPieces(int64_t begin, int64_t count, uint8_t* to) const;

  const uint8_t* const image_;
  const ImageSize image_size_;
  const int64_t pixel_bytes_;
  const PixelKernels& kernels_;
  std::optional<RowStep> row_step_;
  std::unique_ptr<Resizer> resizer_;
  PixelSteps steps_, steps_behind_;
  Plan plan_;
  FillColor color_ = kBlack;
  // A distorted row, before it is mirrored or repeated in the result.
  std::unique_ptr<uint8_t[]> row_;
};

}  // namespace refurbish_tf
