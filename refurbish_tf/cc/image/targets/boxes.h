// Moves boxes as layers move their image. A box becomes the one around its four
// moved corners, clipped to the image.
#pragma once

#include <cstdint>

#include "refurbish_tf/cc/image/targets/target_kind.h"
#include "refurbish_tf/cc/image/targets/target_rows.h"

namespace refurbish_tf {

class Boxes : public TargetRows {
 public:
  static constexpr int kNumbers = 4;

  Boxes(TargetKind kind, NumberType type, ImageSize size, int64_t count,
        double* numbers)
      : TargetRows(type, size, count, kNumbers, numbers), kind_(kind) {}

 private:
  struct Edges {
    bool HasArea() const { return bottom > top && right > left; }
    // Whether they are no more than so much beyond an image.
    bool AreIn(ImageSize image, double beyond) const {
      return top >= -beyond && left >= -beyond &&
             bottom <= static_cast<double>(image.height) + beyond &&
             right <= static_cast<double>(image.width) + beyond;
    }

    double top, left, bottom, right;
  };

  // Clips the box to the image.
  absl::Status BeginRow(double* box) override;
  void MoveRow(const Projection& to, ImageSize before, double* box) override;
  Edges Read(const double* box, ImageSize size) const;
  // Clipped. A box without area becomes zeros.
  void Write(Edges edges, double* box) const;

  const TargetKind kind_;
};

}  // namespace refurbish_tf
