// Swaps rows and columns of the image, with some probability.
#include <utility>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomTranspose : public ChanceLayer {
 public:
  using ChanceLayer::ChanceLayer;

  Movement movement() const override {
    return below() > 0 ? Movement::kTurns : Movement::kKeepsRows;
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    if (below() == 0) return image;
    if (below() < kEndOfFraction) {
      RTF_RETURN_IF_ERROR(CheckIsSquare(image));
      return image;
    }
    std::swap(image.size.height, image.size.width);
    image.size_is_new = true;
    return image;
  }

 private:
  void Change(const int32_t* /*draws*/, Canvas* canvas) const override {
    canvas->Transpose();
  }
};

const LayerType<RandomTranspose> kRandomTranspose("random_transpose");

}  // namespace
}  // namespace refurbish_tf
