#include "refurbish_tf/cc/image/plan.h"

#include <algorithm>

namespace refurbish_tf {

Axis::Axis(int64_t size) : size_(size), only_{size, 0, 1, 0} {}

Stretches Axis::stretches() const {
  if (!stretches_.empty()) return stretches_;
  Stretches made;
  const int64_t behind = size_ - before_ - only_.length;
  if (before_ > 0) made.push_back({before_, 0, 0, 0});
  if (only_.length > 0) made.push_back(only_);
  if (behind > 0) made.push_back({behind, 0, 0, 0});
  return made;
}

Stretches Axis::Take() {
  Stretches taken = stretches();
  stretches_.clear();
  return taken;
}

void Axis::Append(Stretch stretch) {
  if (stretch.length <= 0) return;
  if (!stretches_.empty()) {
    Stretch& last = stretches_.back();
    if (last.step == stretch.step && last.cutouts == stretch.cutouts &&
        (stretch.step == 0 ||
         last.from + last.step * last.length == stretch.from)) {
      last.length += stretch.length;
      return;
    }
  }
  stretches_.push_back(stretch);
}

void Axis::Append(const Stretches& old, int64_t begin, int64_t length,
                  uint64_t cutouts) {
  int64_t at = 0;
  for (const Stretch& stretch : old) {
    const int64_t first = std::max<int64_t>(begin - at, 0);
    const int64_t end = std::min(begin + length - at, stretch.length);
    if (first < end) {
      const bool zeros = stretch.step == 0;
      Append(Stretch{end - first, stretch.from + stretch.step * first, stretch.step,
              zeros ? 0 : stretch.cutouts | cutouts});
    }
    at += stretch.length;
  }
}

void Axis::AppendReversed(const Stretches& old, int64_t begin,
                          int64_t length) {
  int64_t at = size_;
  for (auto stretch = old.rbegin(); stretch != old.rend(); ++stretch) {
    at -= stretch->length;
    const int64_t first = std::max<int64_t>(begin - at, 0);
    const int64_t end = std::min(begin + length - at, stretch->length);
    if (first < end) {
      Append(Stretch{end - first, stretch->from + stretch->step * (end - 1),
              -stretch->step, stretch->cutouts});
    }
  }
}

void Axis::Shift(int64_t distance, bool reflects) {
  if (distance == 0) return;
  if (!reflects && stretches_.empty()) {
    const int64_t end =
        std::clamp<int64_t>(before_ + only_.length - distance, 0, size_);
    const int64_t begin = std::clamp<int64_t>(before_ - distance, 0, end);
    only_.from += only_.step * (begin + distance - before_);
    only_.length = end - begin;
    before_ = begin;
    return;
  }
  const Stretches old = Take();
  const int64_t before = std::clamp<int64_t>(-distance, 0, size_);
  const int64_t behind = std::clamp<int64_t>(distance, 0, size_);
  if (!reflects) {
    Append(Stretch{before, 0, 0, 0});
    Append(old, behind, size_ - before - behind, 0);
    Append(Stretch{behind, 0, 0, 0});
    return;
  }
  // Reflected about the middle of the first and of the last place.
  AppendReversed(old, 1, before);
  Append(old, behind, size_ - before - behind, 0);
  AppendReversed(old, size_ - 1 - behind, behind);
}

void Axis::Reverse() {
  if (stretches_.empty()) {
    before_ = size_ - before_ - only_.length;
    only_.from += only_.step * (only_.length - 1);
    only_.step = -only_.step;
    return;
  }
  const Stretches old = Take();
  AppendReversed(old, 0, size_);
}

void Axis::CutOut(int64_t begin, int64_t end, int number) {
  begin = std::clamp<int64_t>(begin, 0, size_);
  end = std::clamp<int64_t>(end, begin, size_);
  const Stretches old = Take();
  Append(old, 0, begin, 0);
  Append(old, begin, end - begin, uint64_t{1} << number);
  Append(old, end, size_ - end, 0);
}

void Axis::Cut(int64_t begin, int64_t length) {
  const Stretches old = Take();
  size_ = length;
  Append(old, begin, length, 0);
}

void Plan::Cut(int64_t y, int64_t height, int64_t x, int64_t width) {
  rows.Cut(y, height);
  columns.Cut(x, width);
}

void Plan::Add(const Layer& layer, const int32_t* draws) {
  ++num_layers;
  switch (layer.kind) {
    case LayerKind::kRandomCrop:
      rows.Shift(draws[0] - layer.padding, layer.reflects);
      columns.Shift(draws[1] - layer.padding, layer.reflects);
      break;
    case LayerKind::kRandomFlip:
      if (draws[0] != 0) columns.Reverse();
      break;
    case LayerKind::kCutout: {
      const int64_t top =
          ((draws[0] * rows.size()) >> 31) - layer.side / 2;
      const int64_t left =
          ((draws[1] * columns.size()) >> 31) - layer.side / 2;
      rows.CutOut(top, top + layer.side, num_cutouts);
      columns.CutOut(left, left + layer.side, num_cutouts);
      ++num_cutouts;
      break;
    }
    case LayerKind::kRandomResizedCrop:
    case LayerKind::kResize:
    case LayerKind::kNormalize:
      break;
  }
}

}  // namespace refurbish_tf
