// Moves boxes as layers move their image. A box becomes the one around its four
// moved corners, clipped to the image.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "refurbish_tf/cc/image/places.h"
#include "refurbish_tf/cc/image/targets/number_type.h"
#include "refurbish_tf/cc/image/targets/target_kind.h"

namespace refurbish_tf {

// After each layer the numbers are what would be stored, so that it makes no
// difference where layers are split.
class Boxes : public PlaceCanvas {
 public:
  // `numbers`: four for each of `count` boxes in an image of this size; must
  // outlive this.
  Boxes(TargetKind kind, NumberType type, ImageSize size, int64_t count,
        double* numbers)
      : PlaceCanvas(size),
        kind_(kind),
        type_(type),
        count_(count),
        numbers_(numbers) {}

  // Clips them to the image. To be called before any layer. An error, of box
  // `refused()`, goes on from "boxes must ".
  absl::Status Begin();
  int64_t refused() const { return refused_; }
  // Whether all could be stored.
  bool fits() const { return fits_; }

 private:
  struct Edges {
    double top, left, bottom, right;
  };

  void Move(const Affine& to, ImageSize before) override;
  absl::Status Check(int64_t box) const;
  Edges Read(const double* box, ImageSize size) const;
  // Clipped. A box without area becomes zeros.
  void Write(Edges edges, double* box) const;

  const TargetKind kind_;
  const NumberType type_;
  const int64_t count_;
  double* const numbers_;
  bool fits_ = true;
  int64_t refused_ = 0;
};

}  // namespace refurbish_tf
