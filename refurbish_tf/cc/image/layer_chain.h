// Adjacent native layers, which are one op: it draws int32 numbers from the
// seed and applies them to the image. Each half is an op of its own, too, so
// that draws can be sent to where the pixels are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/image/arguments.h"
#include "refurbish_tf/cc/image/canvas.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {

class LayerChain {
 public:
  // More than any augmentation has. A bit for each cutout fits in a word.
  static constexpr int kMaxLayers = 64;
  static constexpr int64_t kMaxSide = (int64_t{1} << 31) - 1;
  // So that an image's bytes can be counted.
  static constexpr double kMaxPixels = 0x1p48;

  struct Link {
    std::string name;
    // In `compose`, from which the layer's seed is made; -1: it takes the seed
    // as it is.
    int64_t position;
    // How many numbers the layers before it draw.
    int first_draw;
    std::shared_ptr<const Layer> layer;
  };

  // A layer is text: its name, then `argument=value` for each argument, where
  // several numbers are separated by commas. The pieces may be cut at any space
  // and before any comma.
  static absl::StatusOr<LayerChain> Parse(
      const std::vector<std::string>& pieces);
  // Of what layers draw and make. It rises with that of any layer.
  static int Version() {
    return ImageSeed::kVersion + LayerType::SumOfRaises();
  }

  const std::vector<Link>& links() const { return links_; }
  int num_draws() const { return num_draws_; }
  // The layers up to the last policy; none if there is none.
  LayerChain UpToLastPolicy() const;

  // Those in an argument of another layer, where ",~" stands for a space. They
  // must keep an image's dtype, and its size if `keeps_size`. None if they are
  // wrong, which `arguments` is told.
  static LayerChain Of(absl::string_view key, bool keeps_size,
                       Arguments* arguments);

  // What the layers make of such an image; with draws, if its size is known.
  absl::StatusOr<ImageSpec> Behind(const ImageSpec& image,
                                   const int32_t* draws = nullptr) const;
  // The same of layers within another one.
  absl::StatusOr<ImageSpec> BehindWithin(ImageSpec image,
                                         const int32_t* draws = nullptr) const;
  // What they make of a second image, which follows `image` and is `times` as
  // large; with draws, if its size is known. `Behind` must accept `image`.
  absl::StatusOr<ImageSpec> BehindFollower(ImageSpec image, Pixel pixel,
                                           int64_t times,
                                           const int32_t* draws) const;
  // That it is an image for any layer. An error goes on from "The image must ".
  static absl::Status Check(const ImageSpec& image);

  // Writes the `num_draws()` numbers that the layers draw from a seed: a pure
  // function, the same on every machine.
  void Draw(const ImageSeed& seed, int32_t* draws) const;
  // As for a layer.
  int64_t EndOfDraw(int i, const int32_t* draws) const;
  bool moves_pixels() const;
  RowChange row_change() const;
  bool looks_at_boxes() const;
  void DrawFrom(Canvas* boxes, int32_t* draws) const;
  // Checks that `draws`, `num_draws()` numbers, are in the layers' ranges.
  absl::Status CheckDraws(const int32_t* draws) const;
  // Whether these draws leave every image as it is.
  bool ChangesNothing(const int32_t* draws) const;
  void Apply(const int32_t* draws, Canvas* canvas) const;

 private:
  std::vector<Link> links_;
  int num_draws_ = 0;
};

}  // namespace refurbish_tf
