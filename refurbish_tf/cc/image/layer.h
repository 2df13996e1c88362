// One native layer, as the attribute of an op describes it: what it draws from
// a seed, and what it does to an image with these draws.
//
// Each layer is a class of its own in `layers/`, and only its file names it: a
// `LayerType` there makes it known. It touches pixels through `Canvas` alone.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/image/arguments.h"
#include "refurbish_tf/cc/image/canvas.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/row_change.h"

namespace refurbish_tf {

// The resizing of a part of an image.
struct Resizing {
  bool pads() const { return !(size == padded); }
  // Where the resized part is in the result.
  Box place() const { return CentredIn(padded, size); }

  Box part;
  ImageSize size;
  bool antialias;
  // The size of the result, in whose middle the resized part is.
  ImageSize padded;
  FillColor color = kBlack;
};

class Layer {
 public:
  virtual ~Layer() = default;

  // How many numbers it draws.
  virtual int num_draws() const { return 0; }
  // Writes them, of the seed: fractions, unless a layer says otherwise.
  // `before` are the draws of the layer before, or null.
  virtual void Draw(const ImageSeed& seed, const int32_t* /*before*/,
                    int32_t* draws) const {
    const int number = num_draws();
    for (int i = 0; i < number; ++i) draws[i] = seed.Fraction(i);
  }
  // Draw i is from 0 to below this, given the draws before it.
  virtual int64_t EndOfDraw(int /*i*/, const int32_t* /*draws*/) const {
    return int64_t{1} << 31;
  }
  // Whether these draws leave every image as it is.
  virtual bool ChangesNothing(const int32_t* /*draws*/) const { return false; }
  // Does it. `Behind` must accept the image.
  virtual void Apply(const int32_t* draws, Canvas* canvas) const = 0;
  // Whether its draws depend on boxes: then `DrawFrom` must come first.
  virtual bool looks_at_boxes() const { return false; }
  // Makes the draws what they are for an image with the boxes of this canvas,
  // and applies them to it.
  virtual void DrawFrom(Canvas* boxes, int32_t* draws) const {
    Apply(draws, boxes);
  }

  // What it makes of such an image. An error goes on from "The image must ".
  virtual absl::StatusOr<ImageSpec> Behind(ImageSpec image) const {
    return image;
  }
  // What it makes of an image of known size with these draws.
  virtual absl::StatusOr<ImageSpec> Made(ImageSpec image,
                                         const int32_t* draws) const;
  // Whether it may stand behind this layer, or first: null.
  virtual absl::Status MayFollow(const Layer* /*before*/) const {
    return absl::OkStatus();
  }

  // Of a layer that does nothing else: `decode` does it while it decodes.
  virtual std::optional<Resizing> ResizingOf(const int32_t* /*draws*/,
                                             ImageSize /*size*/) const {
    return std::nullopt;
  }
  // Whether it moves any image's pixels, and so what follows the image.
  virtual bool moves_pixels() const { return true; }
  // The most that it may do to rows, whatever it draws.
  virtual RowChange row_change() const { return RowChange::kKept; }
  // Whether either side of `offload` may do it: the host for some images of a
  // batch, and the accelerator for the others.
  virtual bool is_policy() const { return false; }
  // Whether, on an accelerator, these draws need a table of the whole image.
  virtual bool NeedsTable(const int32_t* /*draws*/) const { return false; }
};

// A layer that changes the image with a probability. Its first draw says
// whether it does; `ChangesNothing` if not.
class ChanceLayer : public Layer {
 public:
  explicit ChanceLayer(Arguments& arguments)
      : below_(arguments.Integer("below", 0, int64_t{1} << 31)) {}

  int num_draws() const override { return 1; }
  bool ChangesNothing(const int32_t* draws) const final {
    return draws[0] >= below_;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const final {
    if (!ChangesNothing(draws)) Change(draws, canvas);
  }

 protected:
  // In units of 2^-31, the probability.
  int64_t below() const { return below_; }

 private:
  virtual void Change(const int32_t* draws, Canvas* canvas) const = 0;

  const int64_t below_;
};

// A layer that resizes a part of the image.
class ResizingLayer : public Layer {
 public:
  // The longest side that a part is resized to.
  static constexpr int64_t kMaxSide = 65535;

  // Without a size if there is an argument `short`.
  explicit ResizingLayer(Arguments& arguments);

  void Apply(const int32_t* draws, Canvas* canvas) const override;
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override;
  std::optional<Resizing> ResizingOf(const int32_t* draws,
                                     ImageSize size) const override {
    return Resizing{PartOf(draws, size), size_, antialias_, size_};
  }

 protected:
  ImageSize size() const { return size_; }
  // The size of an image whose shortest side becomes this one. The other is
  // rounded down, as in torchvision.
  static ImageSize ByShortest(int64_t shortest, ImageSize image);
  // That its sides can be resized to; unknown ones can.
  static absl::Status CheckShortest(int64_t shortest, ImageSize image);

 private:
  virtual Box PartOf(const int32_t* draws, ImageSize size) const = 0;

  ImageSize size_ = {kUnknown, kUnknown};
  bool antialias_;
};

// What empty pixels get: a number for all channels, or one for each of three.
class FillValue {
 public:
  FillValue(absl::string_view key, Arguments& arguments);

  FillColor color() const { return color_; }
  // That the image can have it. Any can have a single 0.
  absl::Status Check(const ImageSpec& image) const;

 private:
  FillColor color_ = kBlack;
  bool is_single_ = true;
};

// Why a layer refuses an image, and which of the layers within it does: their
// names, the innermost first, such as "cutout in ", or nothing.
struct Refusal {
  static Refusal Of(const absl::Status& status);
  absl::Status Within(absl::string_view name) const {
    return absl::InvalidArgumentError(absl::StrCat(inner, name, " in \n", why));
  }

  std::string inner, why;
};

// That the image has one of `kImageTypes`, for layers that compute with values.
absl::Status CheckType(const ImageSpec& image);
// That the image has bytes of so many channels, for layers that know colors.
absl::Status CheckColors(const ImageSpec& image,
                         std::initializer_list<int64_t> channels);

// The image, which has bytes of three channels, for layers that take no others.
absl::StatusOr<ImageSpec> OfThreeColors(ImageSpec image);

// The longest side of an image whose coordinates fit into Pillow's 16 fraction
// bits.
inline constexpr int64_t kMaxFixedSide = 32767;
// That the image has no longer ones, for layers that turn and shear.
absl::Status CheckSides(const ImageSpec& image);

// That its sides are equal, for layers that swap them by chance.
absl::Status CheckIsSquare(const ImageSpec& image);

// A kind of layer, by name. Made once, before `main`.
class LayerType {
 public:
  // `make` tells errors to the arguments. `version` begins with 1, and is
  // raised whenever the layer draws other numbers, or makes another image of
  // them: stores on disk keep what layers made. If a layer goes, its raises go
  // to `ImageSeed::kVersion`.
  using Make = std::unique_ptr<const Layer> (*)(Arguments&);
  LayerType(absl::string_view name, int version, Make make);

  // Null if there is none of this name.
  static Make Find(absl::string_view name);
  // How often versions were raised.
  static int SumOfRaises();

  template <class Type>
  static std::unique_ptr<const Layer> MakeAs(Arguments& arguments) {
    return std::make_unique<const Type>(arguments);
  }
};

}  // namespace refurbish_tf
