// Moves boxes as layers move their image. A box becomes the bounding box of its
// four moved corners or, if lines do not stay straight, of a moved place for
// each pixel of its outline. It is clipped to the image.
#pragma once

#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/image/targets/target_kind.h"
#include "refurbish_tf/cc/image/targets/target_rows.h"

namespace refurbish_tf {

class Boxes : public TargetRows {
 public:
  static constexpr int kNumbers = 4;

  Boxes(TargetKind kind, NumberType type, ImageSize size, int64_t count,
        double* numbers)
      : TargetRows(type, size, count, kNumbers, numbers), kind_(kind) {}

  std::vector<Edges> boxes() const override;
  void KeepWithin(const Box& part) override;
  // The box in a row, and another one in its place.
  Edges edges(int64_t row) const { return Read(at(row), size()); }
  void Set(int64_t row, const Edges& edges) { Write(edges, at(row)); }

 private:
  // Checks the box, and clips it to the image.
  absl::Status BeginRow(double* box) override;
  void MoveRow(PlaceMap to, ImageSize before, bool bends, double* box) override;
  Edges Read(const double* box, ImageSize size) const;
  // Writes the box, clipped to the image. A box without area becomes zeros.
  void Write(Edges edges, double* box) const;

  const TargetKind kind_;
};

}  // namespace refurbish_tf
