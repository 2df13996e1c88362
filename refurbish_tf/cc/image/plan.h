// The rows and columns of the input that make a cropped, flipped or cut-out
// image.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "refurbish_tf/cc/image/image.h"

namespace refurbish_tf {

// Consecutive rows or columns of the result, made from `from`, `from + step`,
// ... of the input. They are empty if `from` is `kNowhere` and `step` is 0.
struct Strip {
  static constexpr int64_t kNowhere = -1;
  static Strip Empty(int64_t length) { return {length, kNowhere, 0, 0}; }
  bool is_empty() const { return from == kNowhere; }

  int64_t length;
  int64_t from;
  int64_t step;
  // The cutouts that contain these points, one bit for each cutout.
  static constexpr int kMostCutouts = 64;
  uint64_t cutouts;
};

using Strips = absl::InlinedVector<Strip, 8>;

// The rows or the columns of an image.
class Axis {
 public:
  explicit Axis(int64_t size) : size_(size), only_{size, 0, 1, 0} {}

  // Keeps `length` points from `begin` on. `border` says what is beyond the
  // ends. `kReflect` does not repeat the `outermost` points at each end.
  void Crop(int64_t begin, int64_t length, Border border,
            int64_t outermost = 1);
  void Reverse();
  // Marks [begin, end), clipped to the axis, as part of cutout `number`.
  void CutOut(int64_t begin, int64_t end, int number);

  int64_t size() const { return size_; }
  Strips strips() const;
  // The point of the input that each point comes from, or -1. Ignores cutouts.
  std::vector<int32_t> Sources() const;

 private:
  // Appends `length` points of `old` from `begin` on.
  void Append(const Strips& old, int64_t begin, int64_t length,
              uint64_t cutouts);
  void AppendReversed(const Strips& old, int64_t begin, int64_t length);
  // Appends point `at` of `old`, `length` times.
  void AppendRepeated(const Strips& old, int64_t at, int64_t length);
  void Append(Strip strip);
  Strips Drain() {
    Strips drained = strips();
    strips_.clear();
    return drained;
  }

  int64_t size_;
  // Until a cutout or a crop with another border than `kEmpty`, an axis is
  // `before_` empty points, `only_`, and more empty points. `strips_` stays
  // empty until then: making three strips takes as long as copying a small
  // image.
  int64_t before_ = 0;
  Strip only_;
  Strips strips_;
};

// Combines rows and columns: a pixel is empty if its row or column is, or if
// both are in the same cutout.
struct Plan {
  explicit Plan(ImageSize size) : rows(size.height), columns(size.width) {}

  void Crop(const Box& part, Border border, int64_t outermost = 1) {
    has_empty |= border == Border::kEmpty && !Contains(part);
    rows.Crop(part.y, part.height, border, outermost);
    columns.Crop(part.x, part.width, border, outermost);
    changes_nothing = false;
  }
  void Flip(bool vertically) {
    (vertically ? rows : columns).Reverse();
    changes_nothing = false;
  }
  // Empties a part, which may extend beyond the edges.
  void CutOut(const Box& part);

  bool Contains(const Box& part) const {
    return part.y >= 0 && part.x >= 0 && part.y + part.height <= rows.size() &&
           part.x + part.width <= columns.size();
  }
  ImageSize size() const { return {rows.size(), columns.size()}; }

  Axis rows, columns;
  bool changes_nothing = true;
  // Whether there may be empty pixels.
  bool has_empty = false;
  int num_cutouts = 0;  // At most Strip::kMostCutouts.
};

}  // namespace refurbish_tf
