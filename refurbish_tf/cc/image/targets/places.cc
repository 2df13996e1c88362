#include "refurbish_tf/cc/image/targets/places.h"

namespace refurbish_tf {

Affine Affine::Inverse() const {
  const double determinant = yy * xx - yx * xy;
  Affine made;
  made.yy = xx / determinant;
  made.yx = -yx / determinant;
  made.xy = -xy / determinant;
  made.xx = yy / determinant;
  made.y = -(made.yy * y + made.yx * x);
  made.x = -(made.xy * y + made.xx * x);
  return made;
}

Affine SourceOf(const PreparedDistortion& distortion, ImageSize size) {
  Affine source;
  const Move move = distortion.MoveOf(size);
  switch (distortion.distortion) {
    case Distortion::kRotate:
    case Distortion::kAffine: {
      const double y = static_cast<double>(size.height) / 2;
      const double x = static_cast<double>(size.width) / 2;
      const double from_y = y - static_cast<double>(move.y);
      const double from_x = x - static_cast<double>(move.x);
      source.yy = distortion.yy;
      source.yx = distortion.yx;
      source.xy = distortion.xy;
      source.xx = distortion.xx;
      source.y = y - (source.yy * from_y + source.yx * from_x);
      source.x = x - (source.xy * from_y + source.xx * from_x);
      break;
    }
    case Distortion::kShearX:
      source.xy = distortion.parameter;
      break;
    case Distortion::kShearY:
      source.yx = distortion.parameter;
      break;
    case Distortion::kTranslateX:
    case Distortion::kTranslateY:
    case Distortion::kMoveX:
    case Distortion::kMoveY:
      source.y = static_cast<double>(move.y);
      source.x = static_cast<double>(move.x);
      break;
    default:
      break;
  }
  return source;
}

void PlaceCanvas::Crop(const Box& part, bool /*reflects*/,
                       FillColor /*color*/) {
  Affine to;
  to.y = static_cast<double>(-part.y);
  to.x = static_cast<double>(-part.x);
  MoveTo(to, {part.height, part.width});
}

void PlaceCanvas::Flip(bool vertically) {
  Affine to;
  if (vertically) {
    to.yy = -1;
    to.y = static_cast<double>(size_.height);
  } else {
    to.xx = -1;
    to.x = static_cast<double>(size_.width);
  }
  MoveTo(to, size_);
}

void PlaceCanvas::Resize(const Box& part, ImageSize size, bool /*antialias*/) {
  Affine to;
  to.yy = static_cast<double>(size.height) / static_cast<double>(part.height);
  to.xx = static_cast<double>(size.width) / static_cast<double>(part.width);
  to.y = -to.yy * static_cast<double>(part.y);
  to.x = -to.xx * static_cast<double>(part.x);
  MoveTo(to, size);
}

void PlaceCanvas::MoveBy(const PreparedDistortion& distortion) {
  MoveTo(SourceOf(distortion, size_).Inverse(), size_);
}

void PlaceCanvas::MoveTo(const Affine& to, ImageSize made) {
  const ImageSize before = size_;
  size_ = made;
  Move(to, before);
}

}  // namespace refurbish_tf
