// Crops the image so that some box overlaps the crop enough (SSD, section 2.2).
#include <algorithm>
#include <array>
#include <vector>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class RandomIouCrop : public Layer {
 public:
  explicit RandomIouCrop(Arguments& arguments)
      : scale_(arguments.Range("scale", 0, 1)),
        ratio_(arguments.Range("ratio")),
        options_(arguments.Numbers("options")),
        trials_(arguments.Integer("trials", 1, 10000)) {}

  // A seed of two numbers; then top, left, height and width of the crop, which
  // `DrawFrom` finds. If the height is 0, the image stays as it is.
  int num_draws() const override { return 6; }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    return i < 2 ? Layer::EndOfDraw(i, draws) : 1;
  }
  bool ChangesNothing(const int32_t* draws) const override {
    return draws[4] == 0;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    if (ChangesNothing(draws)) return;
    const Box part = {draws[2], draws[3], draws[4], draws[5]};
    canvas->KeepWithin(part);
    canvas->Crop(part, Border::kEmpty, kBlack);
  }
  bool looks_at_boxes() const override { return true; }
  void DrawFrom(Canvas* boxes, int32_t* draws) const override {
    Find(ImageSeed(draws[0], draws[1]), *boxes, draws + 2);
    Apply(draws, boxes);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    return image.OfDrawnSize();
  }

 private:
  // How many least overlaps it draws before giving up. torchvision never does.
  static constexpr int kMostRounds = 50;

  // In each round, one word of the seed selects the least overlap, and four
  // words per trial make a crop.
  void Find(const ImageSeed& seed, const Canvas& canvas, int32_t* found) const {
    const auto [height, width] = canvas.size();
    const std::vector<Edges> boxes = canvas.boxes();
    uint64_t word = 0;
    for (int round = 0; round < kMostRounds && !boxes.empty(); ++round) {
      const double least = options_[seed.Below(word++, options_.size())];
      if (least >= 1) break;
      for (int64_t trial = 0; trial < trials_; ++trial, word += 4) {
        const auto drawn = [&](int k) { return seed.Fraction(word + k); };
        Box crop;
        crop.width = PixelsOf(width, Between(scale_, drawn(0)));
        crop.height = PixelsOf(height, Between(scale_, drawn(1)));
        crop.x = PixelsOf(width - crop.width, UnitOf(drawn(2)));
        crop.y = PixelsOf(height - crop.height, UnitOf(drawn(3)));
        const Edges edges = Edges::Of(crop);
        const auto fits = [&](const Edges& box) {
          return edges.HasMiddleOf(box) && edges.OverlapWith(box) >= least;
        };
        const double ratio = edges.Ratio();
        if (!(ratio >= ratio_[0] && ratio <= ratio_[1])) continue;
        if (std::none_of(boxes.begin(), boxes.end(), fits)) continue;
        const int64_t sides[] = {crop.y, crop.x, crop.height, crop.width};
        std::copy(std::begin(sides), std::end(sides), found);
        return;
      }
    }
  }

  const std::array<double, 2> scale_, ratio_;
  const std::vector<double> options_;
  const int64_t trials_;
};

const LayerType<RandomIouCrop> kRandomIouCrop("random_iou_crop");

}  // namespace
}  // namespace refurbish_tf
