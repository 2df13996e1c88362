// One native layer, described by text in an attribute of an op. It draws
// numbers from a seed, and changes an image according to these draws.
//
// Each layer is a class in a file of `layers/`, where a `LayerType` registers
// it. Layers touch pixels only through `Canvas`.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/image/arguments.h"
#include "refurbish_tf/cc/image/canvas.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/movement.h"

namespace refurbish_tf {

struct Resizing {
  bool pads() const { return !(size == padded); }
  // The position of the resized part in the padded result.
  Box place() const { return CentredIn(padded, size); }

  Box part;
  ImageSize size;
  bool antialias;
  // The size of the result. The resized part is in its middle.
  ImageSize padded;
  FillColor color = kBlack;
};

class Layer {
 public:
  virtual ~Layer() = default;

  virtual int num_draws() const { return 0; }
  // Draws numbers from a seed and writes them to `draws`. `before`: the draws
  // of the previous layer, or null.
  virtual void Draw(const ImageSeed& seed, const int32_t* /*before*/,
                    int32_t* draws) const {
    const int number = num_draws();
    for (int i = 0; i < number; ++i) {
      draws[i] = seed.Below(i, EndOfDraw(i, draws));
    }
  }
  // Draw i is at least 0 and below this, which may depend on earlier draws. By
  // default, draws are fractions in units of 2^-31.
  virtual int64_t EndOfDraw(int /*i*/, const int32_t* /*draws*/) const {
    return kEndOfFraction;
  }
  // Whether these draws leave every image as it is.
  virtual bool ChangesNothing(const int32_t* /*draws*/) const { return false; }
  // Applies the draws to a canvas. `Behind` must accept the canvas's image.
  virtual void Apply(const int32_t* draws, Canvas* canvas) const = 0;
  // Whether the draws also depend on the boxes in the image. If so, `DrawFrom`
  // must complete the result of `Draw`.
  virtual bool looks_at_boxes() const { return false; }
  // Completes the draws for an image with these boxes, then applies them to
  // `boxes`.
  virtual void DrawFrom(Canvas* boxes, int32_t* draws) const {
    Apply(draws, boxes);
  }

  // The layer's result for `image`. Errors continue "The image must ".
  virtual absl::StatusOr<ImageSpec> Behind(ImageSpec image) const {
    return image;
  }
  // The same for an image of known size and these draws.
  virtual absl::StatusOr<ImageSpec> Made(ImageSpec image,
                                         const int32_t* draws) const;
  // Whether it can follow the layer `before`, or come first if that is null.
  virtual absl::Status MayFollow(const Layer* /*before*/) const {
    return absl::OkStatus();
  }

  // How the layer resizes, if it does nothing else. `decode` then resizes an
  // image while decoding it.
  virtual std::optional<Resizing> ResizingOf(const int32_t* /*draws*/,
                                             ImageSize /*size*/) const {
    return std::nullopt;
  }
  // The largest movement of pixels, and therefore of targets, by any draws.
  virtual Movement movement() const { return Movement::kKeepsRows; }
  // Whether either side of `offload` can run it: the host for some images of a
  // batch, and the accelerator for the others.
  virtual bool is_policy() const { return false; }
  // Whether an accelerator must make a table of values from the whole image
  // before it can apply these draws.
  virtual bool NeedsTable(const int32_t* /*draws*/) const { return false; }
};

// A layer that changes the image with some probability. The first draw decides.
class ChanceLayer : public Layer {
 public:
  explicit ChanceLayer(Arguments& arguments)
      : below_(arguments.Integer("below", 0, kEndOfFraction)) {}

  int num_draws() const override { return 1; }
  bool ChangesNothing(const int32_t* draws) const final {
    return draws[0] >= below_;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const final {
    if (!ChangesNothing(draws)) Change(draws, canvas);
  }

 protected:
  // The probability, in units of 2^-31.
  int64_t below() const { return below_; }

 private:
  virtual void Change(const int32_t* draws, Canvas* canvas) const = 0;

  const int64_t below_;
};

// Checks for one of `kImageTypes`, for layers that compute with values.
absl::Status CheckType(const ImageSpec& image);
// Checks for uint8 and these numbers of channels, for layers that need colors.
absl::Status CheckColors(const ImageSpec& image,
                         std::initializer_list<int64_t> channels);

class ResizingLayer : public Layer {
 public:
  // The longest side that a part may be resized to.
  static constexpr int64_t kMaxSide = 65535;

  // Reads the size, unless there is an argument `short`.
  explicit ResizingLayer(Arguments& arguments);

  void Apply(const int32_t* draws, Canvas* canvas) const override;
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(CheckType(image));
    image.size = size_;
    return image;
  }
  std::optional<Resizing> ResizingOf(const int32_t* draws,
                                     ImageSize size) const override {
    return Resizing{PartOf(draws, size), size_, antialias_, size_};
  }

 protected:
  ImageSize size() const { return size_; }

 private:
  virtual Box PartOf(const int32_t* draws, ImageSize size) const = 0;

  ImageSize size_ = {kUnknown, kUnknown};
  bool antialias_;
};

// The value of empty pixels: one number, or one for each of three channels.
class FillValue {
 public:
  FillValue(absl::string_view key, Arguments& arguments);

  FillColor color() const { return color_; }
  // Checks that the image can have this color. A single 0 suits every image.
  absl::Status Check(const ImageSpec& image) const {
    if (!is_single_) return CheckColors(image, {3});
    if (color_ == kBlack) return absl::OkStatus();
    return CheckColors(image, {1, 2, 3, 4});
  }

 private:
  FillColor color_ = kBlack;
  bool is_single_ = true;
};

// Why a layer refuses an image. If a nested layer refuses it, `inner` names the
// layers from that one outwards, such as "cutout in ".
struct Refusal {
  static Refusal Of(const absl::Status& status) {
    const std::string text(status.message());
    const size_t end = text.find('\n');
    if (end == std::string::npos) return {"", text};
    return {text.substr(0, end), text.substr(end + 1)};
  }
  absl::Status Within(absl::string_view name) const {
    return InvalidArgument(inner, name, " in \n", why);
  }

  std::string inner, why;
};

// Checks for uint8 and three channels, and sets the number of channels.
inline absl::StatusOr<ImageSpec> OfThreeColors(ImageSpec image) {
  RTF_RETURN_IF_ERROR(CheckColors(image, {3}));
  image.pixel.channels = 3;
  return image;
}

// The longest side that fits into 32 bits, with Pillow's 16 fraction bits.
inline constexpr int64_t kMaxFixedSide = 32767;
// Checks that no side is longer than that, for layers that rotate and shear.
absl::Status CheckSides(const ImageSpec& image);

// Checks that the sides are equal, for layers that may swap them.
absl::Status CheckIsSquare(const ImageSpec& image);

// Makes a layer from its arguments, and reports errors with `Arguments::Fail`.
using MakeLayer = std::unique_ptr<const Layer> (*)(Arguments&);
std::map<absl::string_view, MakeLayer>& KnownLayers();

// A global of this type registers a kind of layer when the library is loaded.
template <class Type>
struct LayerType {
  explicit LayerType(absl::string_view name) {
    KnownLayers()[name] = [](Arguments& arguments) {
      return std::unique_ptr<const Layer>(new Type(arguments));
    };
  }
};

}  // namespace refurbish_tf
