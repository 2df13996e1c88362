#include "refurbish_tf/cc/image/targets/places.h"

namespace refurbish_tf {

Projection Projection::Inverse() const {
  Projection made;
  if (wy != 0 || wx != 0) {
    // Up to a factor, which is positive because no image is seen from behind.
    made.yy = xx * w - x * wx;
    made.yx = y * wx - yx * w;
    made.y = yx * x - y * xx;
    made.xy = x * wy - xy * w;
    made.xx = yy * w - y * wy;
    made.x = y * xy - yy * x;
    made.wy = xy * wx - xx * wy;
    made.wx = yx * wy - yy * wx;
    made.w = yy * xx - yx * xy;
    return made;
  }
  const double determinant = yy * xx - yx * xy;
  made.yy = xx / determinant;
  made.yx = -yx / determinant;
  made.xy = -xy / determinant;
  made.xx = yy / determinant;
  made.y = -(made.yy * y + made.yx * x);
  made.x = -(made.xy * y + made.xx * x);
  return made;
}

Projection SourceOf(const PreparedDistortion& distortion, ImageSize size) {
  Projection source;
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
    case Distortion::kPerspective:
      source.yy = distortion.yy;
      source.yx = distortion.yx;
      source.y = distortion.y;
      source.xy = distortion.xy;
      source.xx = distortion.xx;
      source.x = distortion.x;
      source.wy = distortion.wy;
      source.wx = distortion.wx;
      source.w = distortion.w;
      break;
    default:
      break;
  }
  return source;
}

}  // namespace refurbish_tf
