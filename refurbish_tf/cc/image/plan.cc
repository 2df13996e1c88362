#include "refurbish_tf/cc/image/plan.h"

#include <algorithm>

namespace refurbish_tf {

Strips Axis::strips() const {
  if (!strips_.empty()) return strips_;
  Strips made;
  const int64_t behind = size_ - before_ - only_.length;
  if (before_ > 0) made.push_back(Strip::Empty(before_));
  if (only_.length > 0) made.push_back(only_);
  if (behind > 0) made.push_back(Strip::Empty(behind));
  return made;
}

std::vector<int32_t> Axis::Sources() const {
  std::vector<int32_t> sources;
  sources.reserve(size_);
  for (const Strip& strip : strips()) {
    for (int64_t i = 0; i < strip.length; ++i) {
      sources.push_back(static_cast<int32_t>(strip.from + strip.step * i));
    }
  }
  return sources;
}

void Axis::Append(Strip strip) {
  if (strip.length <= 0) return;
  if (!strips_.empty()) {
    Strip& last = strips_.back();
    if (last.step == strip.step && last.cutouts == strip.cutouts &&
        last.from + last.step * last.length == strip.from) {
      last.length += strip.length;
      return;
    }
  }
  strips_.push_back(strip);
}

void Axis::Append(const Strips& old, int64_t begin, int64_t length,
                  uint64_t cutouts) {
  int64_t at = 0;
  for (const Strip& strip : old) {
    const int64_t first = std::max<int64_t>(begin - at, 0);
    const int64_t end = std::min(begin + length - at, strip.length);
    if (first < end) {
      Append(Strip{end - first, strip.from + strip.step * first, strip.step,
                   strip.is_empty() ? 0 : strip.cutouts | cutouts});
    }
    at += strip.length;
  }
}

void Axis::AppendReversed(const Strips& old, int64_t begin, int64_t length) {
  Strips reversed(old.rbegin(), old.rend());
  for (Strip& strip : reversed) {
    strip.from += strip.step * (strip.length - 1);
    strip.step = -strip.step;
  }
  Append(reversed, size_ - begin - length, length, 0);
}

void Axis::AppendRepeated(const Strips& old, int64_t at, int64_t length) {
  for (const Strip& strip : old) {
    if (at < strip.length) {
      Append(Strip{length, strip.from + strip.step * at, 0, strip.cutouts});
      return;
    }
    at -= strip.length;
  }
}

void Axis::Crop(int64_t begin, int64_t length, Border border,
                int64_t outermost) {
  const int64_t end = begin + length;
  if (begin == 0 && end == size_) return;
  if (strips_.empty() &&
      (border == Border::kEmpty || (begin >= 0 && end <= size_))) {
    const int64_t only_end =
        std::clamp<int64_t>(before_ + only_.length - begin, 0, length);
    const int64_t first = std::clamp<int64_t>(before_ - begin, 0, only_end);
    only_.from += only_.step * (first + begin - before_);
    only_.length = only_end - first;
    before_ = first;
    size_ = length;
    return;
  }
  const Strips old = Drain();
  const int64_t before = std::clamp<int64_t>(-begin, 0, length);
  const int64_t behind = std::clamp<int64_t>(end - size_, 0, length);
  const int64_t between = length - before - behind;
  // A reflection about the outermost points does not repeat them.
  const int64_t skipped = border == Border::kReflect ? outermost : 0;
  switch (border) {
    case Border::kEmpty:
      Append(Strip::Empty(before));
      Append(old, begin + before, between, 0);
      Append(Strip::Empty(behind));
      break;
    case Border::kReflect:
    case Border::kSymmetric:
      AppendReversed(old, skipped - begin - before, before);
      Append(old, begin + before, between, 0);
      AppendReversed(old, 2 * size_ - skipped - end, behind);
      break;
    case Border::kEdge:
      AppendRepeated(old, 0, before);
      Append(old, begin + before, between, 0);
      AppendRepeated(old, size_ - 1, behind);
      break;
    case Border::kRollOver:
      Append(old, size_ - before, before, 0);
      Append(old, begin + before, between, 0);
      Append(old, 0, behind, 0);
      break;
  }
  size_ = length;
}

void Axis::Reverse() {
  if (strips_.empty()) {
    before_ = size_ - before_ - only_.length;
    only_.from += only_.step * (only_.length - 1);
    only_.step = -only_.step;
    return;
  }
  const Strips old = Drain();
  AppendReversed(old, 0, size_);
}

void Axis::CutOut(int64_t begin, int64_t end, int number) {
  begin = std::clamp<int64_t>(begin, 0, size_);
  end = std::clamp<int64_t>(end, begin, size_);
  const Strips old = Drain();
  Append(old, 0, begin, 0);
  Append(old, begin, end - begin, uint64_t{1} << number);
  Append(old, end, size_ - end, 0);
}

void Plan::CutOut(const Box& part) {
  rows.CutOut(part.y, part.y + part.height, num_cutouts);
  columns.CutOut(part.x, part.x + part.width, num_cutouts);
  ++num_cutouts;
  changes_nothing = false;
  has_empty = true;
}

}  // namespace refurbish_tf
