// Adjacent native layers in one op, which draws int32 numbers from the seed and
// applies them to the image. Drawing and applying are also separate ops, so
// draws can be sent to the device that has the pixels.
#pragma once

#include <algorithm>
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
  // More than any augmentation needs.
  static constexpr int kMaxLayers = 64;
  static constexpr int64_t kMaxSide = (int64_t{1} << 31) - 1;
  // Small enough for the bytes of an image to be counted in an int64.
  static constexpr double kMaxPixels = 0x1p48;

  struct Link {
    std::string name;
    // The position in `compose`, from which the seed of the layer is derived;
    // -1: the layer uses the seed unchanged.
    int64_t position;
    // The index of its first draw among the draws of the chain.
    int first_draw;
    std::shared_ptr<const Layer> layer;
  };

  // Parses layers. Each is text: its name, then `argument=value` for each
  // argument, with commas between several numbers. This text may be cut into
  // pieces at any space and before any comma.
  static absl::StatusOr<LayerChain> Parse(
      const std::vector<std::string>& pieces);
  // Raise this if a layer draws other numbers, or makes another image from
  // them, because stores on disk keep the results of layers.
  static constexpr int kVersion = 2;

  const std::vector<Link>& links() const { return links_; }
  int num_draws() const { return num_draws_; }
  // The layers up to the last policy layer; empty if there is no policy layer.
  LayerChain UpToLastPolicy() const;

  // The layers nested in argument `key`, where ",~" encodes a space. They must
  // keep the dtype of an image, and its size if `keeps_size`. If they are
  // invalid, reports an error to `arguments` and returns an empty chain.
  static LayerChain Of(absl::string_view key, bool keeps_size,
                       Arguments* arguments);

  // The size and format of the image that the layers make from `image`. With
  // draws, the size of `image` must be known.
  absl::StatusOr<ImageSpec> Behind(const ImageSpec& image,
                                   const int32_t* draws = nullptr) const;
  // The same for a chain nested in a layer, whose name is added to errors.
  absl::StatusOr<ImageSpec> BehindWithin(ImageSpec image,
                                         const int32_t* draws = nullptr) const;
  // The same for a second image of this pixel format, which moves with `image`
  // and is `times` as large. `Behind` must accept `image`.
  absl::StatusOr<ImageSpec> BehindFollower(ImageSpec image, Pixel pixel,
                                           int64_t times,
                                           const int32_t* draws) const;
  // Checks the limits that all layers have. Errors continue "The image must ".
  static absl::Status Check(const ImageSpec& image);

  // Writes the `num_draws()` numbers that the layers draw from a seed: a pure
  // function, the same on every machine.
  void Draw(const ImageSeed& seed, int32_t* draws) const;
  // The functions of `Layer`, for the whole chain.
  int64_t EndOfDraw(int i, const int32_t* draws) const {
    auto link = links_.rbegin();
    while (link->first_draw > i) ++link;
    return link->layer->EndOfDraw(i - link->first_draw,
                                  draws + link->first_draw);
  }
  Movement movement() const {
    Movement most = Movement::kNone;
    for (const Link& link : links_) {
      most = std::max(most, link.layer->movement());
    }
    return most;
  }
  bool looks_at_boxes() const {
    return std::any_of(links_.begin(), links_.end(), [](const Link& link) {
      return link.layer->looks_at_boxes();
    });
  }
  void DrawFrom(Canvas* boxes, int32_t* draws) const {
    for (const Link& link : links_) {
      link.layer->DrawFrom(boxes, draws + link.first_draw);
    }
  }
  // Checks that the `num_draws()` draws are within the limits of the layers.
  absl::Status CheckDraws(const int32_t* draws) const;
  bool ChangesNothing(const int32_t* draws) const {
    for (const Link& link : links_) {
      if (!link.layer->ChangesNothing(draws + link.first_draw)) return false;
    }
    return true;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const {
    for (const Link& link : links_) {
      link.layer->Apply(draws + link.first_draw, canvas);
    }
  }

 private:
  std::vector<Link> links_;
  int num_draws_ = 0;
};

}  // namespace refurbish_tf
