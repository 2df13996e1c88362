// Resizes the image.
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class WholeResize : public ResizingLayer {
 public:
  using ResizingLayer::ResizingLayer;

 private:
  Box PartOf(const int32_t* /*draws*/, ImageSize size) const override {
    return {0, 0, size.height, size.width};
  }
};

const LayerType kResize("resize", 1, LayerType::MakeAs<WholeResize>);

}  // namespace
}  // namespace refurbish_tf
