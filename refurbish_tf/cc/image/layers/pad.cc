#include <algorithm>

#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/layer_chain.h"

namespace refurbish_tf {
namespace {

struct PaddingMode {
  absl::string_view name;
  Border border;
};
constexpr PaddingMode kPaddingModes[] = {{"constant", Border::kEmpty},
                                         {"edge", Border::kEdge},
                                         {"reflect", Border::kReflect},
                                         {"symmetric", Border::kSymmetric}};

class Pad : public Layer {
 public:
  explicit Pad(Arguments& arguments)
      : left_(arguments.Integer("left", 0, kMost)),
        top_(arguments.Integer("top", 0, kMost)),
        right_(arguments.Integer("right", 0, kMost)),
        bottom_(arguments.Integer("bottom", 0, kMost)),
        fill_("fill", arguments) {
    const absl::string_view name = arguments.Text("mode");
    for (const PaddingMode& mode : kPaddingModes) {
      if (mode.name == name) mode_ = &mode;
    }
    if (mode_ == nullptr) arguments.Fail("unknown mode ", name);
  }

  Movement movement() const override {
    const bool mirrors = mode_->border == Border::kReflect ||
                         mode_->border == Border::kSymmetric;
    return mirrors && left_ + right_ > 0 ? Movement::kMirrors
                                         : Movement::kKeepsRows;
  }
  void Apply(const int32_t* /*draws*/, Canvas* canvas) const override {
    const auto [height, width] = canvas->size();
    canvas->Crop(
        {-top_, -left_, height + top_ + bottom_, width + left_ + right_},
        mode_->border, fill_.color());
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(fill_.Check(image));
    ImageSpec made = image;
    RTF_RETURN_IF_ERROR(Extend(image, top_, bottom_, &made.size.height));
    RTF_RETURN_IF_ERROR(Extend(image, left_, right_, &made.size.width));
    made.size_is_new |= left_ + top_ + right_ + bottom_ > 0;
    return made;
  }

 private:
  static constexpr int64_t kMost = 16383;

  absl::Status Extend(const ImageSpec& image, int64_t before, int64_t behind,
                      int64_t* side) const {
    if (*side == kUnknown) return absl::OkStatus();
    const int64_t most = std::max(before, behind);
    // A reflection can only mirror pixels that exist.
    const int64_t least = mode_->border == Border::kReflect     ? most + 1
                          : mode_->border == Border::kSymmetric ? most
                                                                : 1;
    if (*side < least) {
      return InvalidArgument(
          "have a side of at least ", least, " pixels for a padding of ", most,
          " with padding_mode='", mode_->name, "', got ", image.size,
          " pixels. Pass a smaller padding, or padding_mode='edge'");
    }
    *side += before + behind;
    if (*side <= LayerChain::kMaxSide) return absl::OkStatus();
    return InvalidArgument("have sides of at most ", LayerChain::kMaxSide,
                           " pixels after its padding, got ", image.size,
                           " pixels. Crop or resize it first");
  }

  const int64_t left_, top_, right_, bottom_;
  const FillValue fill_;
  // Null if the arguments are wrong.
  const PaddingMode* mode_ = nullptr;
};

const LayerType<Pad> kPad("pad");

}  // namespace
}  // namespace refurbish_tf
