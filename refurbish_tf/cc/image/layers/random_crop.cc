// Pads the image, and crops it back at a random place.
#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomCrop : public Layer {
 public:
  explicit RandomCrop(Arguments& arguments)
      : padding_(arguments.Integer("padding", 0, 16383)),
        reflects_(arguments.Boolean("reflect")) {}

  int num_draws() const override { return 2; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    for (int i = 0; i < 2; ++i) draws[i] = seed.Below(i, 2 * padding_ + 1);
  }
  int64_t EndOfDraw(int /*i*/, const int32_t* /*draws*/) const override {
    return 2 * padding_ + 1;
  }
  bool ChangesNothing(const int32_t* draws) const override {
    return draws[0] == padding_ && draws[1] == padding_;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    canvas->Shift(draws[0] - padding_, draws[1] - padding_, reflects_, kBlack);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    for (const int64_t side : {image.size.height, image.size.width}) {
      if (reflects_ && side != kUnknown && padding_ >= side) {
        return absl::InvalidArgumentError(absl::StrCat(
            "have sides above the padding, ", padding_,
            ", for padding_mode='reflect', got ", image.size.height, " x ",
            image.size.width,
            " pixels. Pass a smaller padding, or padding_mode='constant'"));
      }
    }
    return image;
  }

 private:
  const int64_t padding_;
  const bool reflects_;
};

const LayerType kRandomCrop("random_crop", 1, LayerType::MakeAs<RandomCrop>);

}  // namespace
}  // namespace refurbish_tf
